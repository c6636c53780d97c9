// GGUF: structure, metadata, every tensor, and the configuration that comes from the metadata.
#include "format/qtensor.h"
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "io/gguf.h"
#include "model/source_kinds.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  using namespace lowbit;  // NOLINT
  const fuzz::FuzzFile input(data, size);
  const auto file = GgufFile::open(input.path());
  if (!file) return 0;
  for (const auto& [key, value] : file->metadata()) {
    (void)value.as_int();
    (void)value.as_double();
    (void)value.as_bool();
    (void)value.as_string();
    (void)value.as_strings();
    (void)value.as_ints();
    (void)value.as_floats();
  }
  for (const GgufTensor& t : file->tensors()) {
    const auto w = file->load(t);
    if (!w) continue;
    fuzz::touch(w->codes.span());
    if (w->n * w->k > 1 << 16) continue;
    std::vector<float> reals(static_cast<size_t>(w->n * w->k));
    dequantize_rows(*w, 0, w->n, reals.data());
  }
  (void)gguf_config_json(*file);
  (void)gguf_generation_config_json(*file);
  return 0;
}
