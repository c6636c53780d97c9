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
  const auto value_at = [&](int64_t n, int64_t k) {
    return n < rows.n && k < rows.k
               ? int(F::decode(rows.codes + n * rows.row_bytes + k / F::kElems * F::kUnitBytes, int(k % F::kElems)))
               : 0;
  };
  if constexpr (Bits == kTwoPlanes) {
    for (int bit = 0; bit < 32; ++bit) {
      const auto at = Order::plane_element(int(w % Order::kUnitWords), bit);
      const int value = value_at(n0 + at.row, k0 + at.k);
      word |= uint32_t(w % 2 == 0 ? value > 0 : value != 0) << at.shift;
    }
  } else {
    for (int field = 0; field < Order::kFields; ++field) {
      const auto at = Order::element(int(w % Order::kUnitWords), field);
      const int value = value_at(n0 + at.row, k0 + at.k);
      word |= (uint32_t(XBytes == 1 ? value : value + Zero) & (0xffffffffu >> (32 - Bits))) << at.shift;
    }
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

/// Bytes of canonical binary rows in the order of int8 values; bits behind column k are 0.
__global__ void relayout_bits(Rows rows, int64_t unit_blocks, int64_t words, uint32_t* out) {
  using Order = FragmentOrder<8, 1>;
  const int64_t w = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (w >= words) return;
  const int64_t index = w / Order::kUnitWords, panel = index / (kPanelUnits * unit_blocks);
  const int64_t n0 = panel * kPanelRows + index % kPanelUnits * kUnitRows;
  const int64_t k0 = index / kPanelUnits % unit_blocks * Order::kUnitK, bytes = (rows.k + 7) / 8;
  uint32_t word = 0;
  for (int field = 0; field < Order::kFields; ++field) {
    const auto at = Order::element(int(w % Order::kUnitWords), field);
    const int64_t n = n0 + at.row, k = k0 + at.k;
    if (n >= rows.n || k >= bytes) continue;
    const uint32_t keep = k + 1 == bytes && rows.k % 8 != 0 ? (1u << rows.k % 8) - 1u : 0xffu;
    word |= (rows.codes[n * rows.row_bytes + k] & keep) << at.shift;
  }
  out[w] = word;
}

__global__ void count_bits(Rows rows, int64_t padded, int32_t* out) {
  const int64_t n = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32, bytes = (rows.k + 7) / 8;
  if (n >= padded) return;
  int ones = 0;
  for (int64_t k = threadIdx.x % 32; n < rows.n && k < bytes; k += 32) {
    const uint32_t keep = k + 1 == bytes && rows.k % 8 != 0 ? (1u << rows.k % 8) - 1u : 0xffu;
    ones += __popc(rows.codes[n * rows.row_bytes + k] & keep);
  }
  ones = __reduce_add_sync(0xffffffffu, ones);
  if (threadIdx.x % 32 == 0) out[n] = n < rows.n ? int32_t(rows.k) - 2 * ones : 0;
}

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
  if (activation == GemmActivation::kBit) {
    relayout_bits<<<unsigned((words + 255) / 256), 256, 0, stream>>>({codes, row_stride_bytes, n, k}, (k + 1023) / 1024,
                                                                     words, static_cast<uint32_t*>(tiles));
    return cudaPeekAtLastError() == cudaSuccess ? GemmStatus::kOk : GemmStatus::kCudaError;
  }
  const size_t at = size_t(format) - kDenseFormats;
  const bool int8 = activation == GemmActivation::kInt8;
  const int64_t unit_k = int8 ? 128 : 64;
  (int8 ? kInt8[at] : kHalf[at])({codes, row_stride_bytes, n, k}, (k + unit_k - 1) / unit_k, words,
                                 static_cast<uint32_t*>(tiles), stream);
  return cudaPeekAtLastError() == cudaSuccess ? GemmStatus::kOk : GemmStatus::kCudaError;
}

GemmStatus relayout_bit_terms(const uint8_t* codes, int64_t row_stride_bytes, int64_t n, int64_t k, int32_t* out,
                              cudaStream_t stream) {
  if (n < 0 || k < 0 || row_stride_bytes < 0) return GemmStatus::kInvalidArgument;
  if (n == 0) return GemmStatus::kOk;
  if ((codes == nullptr && k > 0) || out == nullptr) return GemmStatus::kInvalidArgument;
  const int64_t padded = padded_rows(n);
  count_bits<<<unsigned((padded + 7) / 8), 256, 0, stream>>>({codes, row_stride_bytes, n, k}, padded, out);
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
