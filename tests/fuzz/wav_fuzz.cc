// Sounds of the denoiser.
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "sound.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  const lowbit::fuzz::FuzzFile input(data, size);
  (void)load_sound(input.path());
  return 0;
}
