// A checkpoint directory: the first two bytes say how long config.json is, which follows; the rest is
// model.safetensors.
#include <sys/stat.h>

#include <cstdio>

#include "format/qtensor.h"
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "io/checkpoint.h"

namespace {

/// One for the whole run.
const std::string& folder() {
  static const lowbit::fuzz::FuzzFolder kFolder;
  return kFolder.path();
}

void write(const std::string& name, const std::uint8_t* data, size_t size) {
  std::FILE* file = std::fopen((folder() + "/" + name).c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  using namespace lowbit;  // NOLINT
  if (size < 2) return 0;
  const size_t config = std::min(size - 2, static_cast<size_t>(data[0]) + 256 * static_cast<size_t>(data[1]));
  write("config.json", data + 2, config);
  write("model.safetensors", data + 2 + config, size - 2 - config);
  (void)verify_checkpoint(folder());
  const auto checkpoint = Checkpoint::open(folder());
  if (!checkpoint) return 0;
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    const auto w = checkpoint->load(t.name);
    if (!w || w->n * w->k > 1 << 16) continue;
    std::vector<float> reals(static_cast<size_t>(w->n * w->k));
    dequantize_rows(*w, 0, w->n, reals.data());
  }
  return 0;
}
