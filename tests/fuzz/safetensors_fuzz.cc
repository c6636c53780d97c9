// safetensors: header, metadata, every tensor.
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  using namespace lowbit;  // NOLINT
  const fuzz::FuzzFile input(data, size);
  const auto file = SafetensorsFile::open(input.path());
  if (!file) return 0;
  for (const SafetensorsEntry& e : file->tensors()) {
    fuzz::require(file->find(e.name) != nullptr, "a tensor that is not found by its name");
    if (const auto bytes = file->bytes(e)) fuzz::touch(bytes->span());
  }
  return 0;
}
