// The format list in device code: every codec and packing compiles and the proofs hold under nvcc, for every
// architecture.
#include <cstdint>

#include "format/formats.h"

namespace {

template <class F>
__global__ void decode_units(const uint8_t* units, float* values, int count) {
  const int unit = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (unit >= count) return;
  for (int e = 0; e < F::kElems; ++e)
    values[unit * F::kElems + e] = static_cast<float>(F::decode(units + unit * F::kUnitBytes, e));
}

template <class F>
struct LauncherOf {
  static void launch(const uint8_t* units, float* values, int count) {
    decode_units<F><<<(count + 127) / 128, 128>>>(units, values, count);
  }
  static constexpr auto value = &launch;
};

}  // namespace

// One launcher per format, found by FormatId: no branch on the bit width.
void decode_on_device(int format, const uint8_t* units, float* values, int count) {
  constexpr auto kLaunchers = lowbit::make_table<LauncherOf>(lowbit::UnitFormatList{});
  kLaunchers[static_cast<size_t>(format)](units, values, count);
}
