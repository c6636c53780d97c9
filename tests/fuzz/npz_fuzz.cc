// npz and npy, and the arrays as floats.
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "io/npy.h"

namespace {

void use(const lowbit::NpyArray& array) {
  lowbit::fuzz::touch(array.data.span());
  const int64_t count = lowbit::element_count(array.shape).value_or(0);
  if (count > 1 << 20) return;
  std::vector<float> floats(static_cast<size_t>(count));
  lowbit::convert_to_f32(array.view(), 0, count, floats.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  const lowbit::fuzz::FuzzFile input(data, size);
  if (const auto one = lowbit::read_npy(input.path())) use(*one);
  if (const auto all = lowbit::read_npz(input.path()))
    for (const auto& array : *all) use(array);
  return 0;
}
