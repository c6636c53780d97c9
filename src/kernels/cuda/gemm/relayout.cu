// Canonical rows -> fragment order, on the device, one launch per matrix at load.
#include <cuda_runtime.h>

#include "kernels/cuda/gemm/stored_bits.h"
#include "kernels/cuda/gemm/tile_order.h"

namespace lowbit::cuda {
namespace {

struct Rows {
  const uint8_t* codes;
  int64_t row_bytes, n, k;
};

/// One thread makes one word of the derived order.
template <class F, int Bits, int XBytes, int Zero>
__global__ void relayout(Rows rows, int64_t unit_blocks, int64_t words, uint32_t* out) {
  using Order = FragmentOrder<Bits, XBytes>;
  const int64_t w = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (w >= words) return;
  const int64_t index = w / Order::kUnitWords, panel = index / (kPanelUnits * unit_blocks);
  const int64_t n0 = panel * kPanelRows + index % kPanelUnits * kUnitRows;
  const int64_t k0 = index / kPanelUnits % unit_blocks * Order::kUnitK;
  uint32_t word = 0;
  for (int field = 0; field < Order::kFields; ++field) {
    const auto at = Order::element(int(w % Order::kUnitWords), field);
    const int64_t n = n0 + at.row, k = k0 + at.k;
    int value = 0;
    if (n < rows.n && k < rows.k)
      value = int(F::decode(rows.codes + n * rows.row_bytes + k / F::kElems * F::kUnitBytes, int(k % F::kElems)));
    word |= (uint32_t(XBytes == 1 ? value : value + Zero) & (0xffffffffu >> (32 - Bits))) << at.shift;
  }
  out[w] = word;
}

using Launch = void (*)(const Rows&, int64_t unit_blocks, int64_t words, uint32_t* out, cudaStream_t);

template <class F, bool Int8>
void launch(const Rows& rows, int64_t unit_blocks, int64_t words, uint32_t* out, cudaStream_t stream) {
  constexpr StoredBits kStored = stored_bits_of<F, Int8>();
  relayout<F, kStored.bits, Int8 ? 1 : 2, kStored.zero>
      <<<unsigned((words + 255) / 256), 256, 0, stream>>>(rows, unit_blocks, words, out);
}
template <class F, bool Int8>
constexpr Launch launcher() {
  if constexpr (stored_bits_of<F, Int8>().bits == 0)
    return nullptr;
  else
    return &launch<F, Int8>;
}
template <class F>
struct Int8Launcher {
  static constexpr Launch value = launcher<F, true>();
};
template <class F>
struct HalfLauncher {
  static constexpr Launch value = launcher<F, false>();
};

__global__ void transpose_scales(const float* in, int64_t n, int64_t groups, int64_t padded, float* out) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= groups * padded) return;
  const int64_t g = i / padded, row = i % padded;
  out[i] = row < n ? in[row * groups + g] : 0.0f;
}

}  // namespace

GemmStatus relayout_weights(FormatId format, GemmActivation activation, const uint8_t* codes, int64_t row_stride_bytes,
                            int64_t n, int64_t k, void* tiles, cudaStream_t stream) {
  constexpr auto kInt8 = make_table<Int8Launcher>(FormatList{});
  constexpr auto kHalf = make_table<HalfLauncher>(FormatList{});
  if (n < 0 || k < 0 || row_stride_bytes < 0) return GemmStatus::kInvalidArgument;
  if (stored_bits(format, activation).bits == 0) return GemmStatus::kUnsupported;
  const int64_t words = int64_t(tile_bytes(format, activation, n, k) / 4);
  if (words == 0) return GemmStatus::kOk;
  if (codes == nullptr || tiles == nullptr) return GemmStatus::kInvalidArgument;
  const size_t at = size_t(format) - kDenseFormats;
  const bool int8 = activation == GemmActivation::kInt8;
  const int64_t unit_k = int8 ? 128 : 64;
  (int8 ? kInt8[at] : kHalf[at])({codes, row_stride_bytes, n, k}, (k + unit_k - 1) / unit_k, words,
                                 static_cast<uint32_t*>(tiles), stream);
  return cudaPeekAtLastError() == cudaSuccess ? GemmStatus::kOk : GemmStatus::kCudaError;
}

GemmStatus relayout_scales(const float* in, int64_t n, int64_t groups, float* out, cudaStream_t stream) {
  if (n < 0 || groups < 0) return GemmStatus::kInvalidArgument;
  const int64_t count = groups * padded_rows(n);
  if (count == 0) return GemmStatus::kOk;
  if (in == nullptr || out == nullptr) return GemmStatus::kInvalidArgument;
  transpose_scales<<<unsigned((count + 255) / 256), 256, 0, stream>>>(in, n, groups, padded_rows(n), out);
  return cudaPeekAtLastError() == cudaSuccess ? GemmStatus::kOk : GemmStatus::kCudaError;
}

}  // namespace lowbit::cuda
