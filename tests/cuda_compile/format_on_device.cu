// The format list in device code: every codec and packing compiles and the proofs hold under nvcc, for every
// architecture.
#include <cstdint>

#include "format/formats.h"

namespace {

template <class F>
__global__ void decode_packs(const uint8_t* packs, float* values, int count) {
  const int pack = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (pack >= count) return;
  for (int e = 0; e < F::kElems; ++e)
    values[pack * F::kElems + e] = static_cast<float>(F::decode(packs + pack * F::kPackBytes, e));
}

template <class F>
struct LauncherOf {
  static void launch(const uint8_t* packs, float* values, int count) {
    decode_packs<F><<<(count + 127) / 128, 128>>>(packs, values, count);
  }
  static constexpr auto value = &launch;
};

}  // namespace

// One launcher per format, found by FormatId: no branch on the bit width.
void decode_on_device(int format, const uint8_t* packs, float* values, int count) {
  constexpr auto kLaunchers = lowbit::make_table<LauncherOf>(lowbit::RandomAccessFormatList{});
  kLaunchers[static_cast<size_t>(format)](packs, values, count);
}
