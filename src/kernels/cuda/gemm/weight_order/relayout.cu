// Canonical rows -> fragment order, on the device, one launch per matrix at load.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/gemm/primitives/running_arch.h"
#include "kernels/cuda/gemm/weight_order/fragment_order.h"
#include "kernels/cuda/gemm/weight_order/integer_value.cuh"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "kernels/cuda/gemm/weight_order/trellis_order.h"
#include "kernels/cuda_lookup.h"

namespace lowbit::cuda {
namespace {

struct Rows {
  const uint8_t* codes;
  int64_t row_bytes, n, k;
};

/// Where field `field` of word `word` of a pack comes from; the order is an argument.
template <int Bits, int XBytes>
__device__ __forceinline__ typename FragmentOrder<Bits, XBytes>::Element element_in(int word, int field) {
  using Order = FragmentOrder<Bits, XBytes>;
  if constexpr (Bits == kTwoPlanes) {
    return Order::plane_element(word, field);
  } else if constexpr (Bits == kTrellis) {
    return Order::trellis_element(word, field);
  } else {
    return Order::element(word, field);
  }
}

struct FieldPosition {
  int row, k, shift;
};
template <int XBytes>
__device__ FieldPosition position_of(int bits, int word, int field) {
  const auto at = [](auto element) { return FieldPosition{element.row, element.k, element.shift}; };
  if (bits == 2) return at(element_in<2, XBytes>(word, field));
  if (stored_width(bits) == 8) return at(element_in<8, XBytes>(word, field));
  if constexpr (XBytes == 1) {
    if (bits == kTwoPlanes) return at(element_in<kTwoPlanes, XBytes>(word, field));
    if (bits == kTable) return at(element_in<kTable, XBytes>(word, field));
    if (bits == kTrellis) return at(element_in<kTrellis, XBytes>(word, field));
  }
  return at(element_in<4, XBytes>(word, field));
}

struct Order {
  FormatId format;
  StoredBits stored;
  bool int8;
  int pack_k, pack_words;
};

/// One thread makes one word of the derived order. One kernel for all formats and orders: it runs once per weight.
__global__ void relayout(const Order o, Rows rows, int64_t k_blocks, int64_t words, uint32_t* out) {
  const int64_t w = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (w >= words) return;
  const int64_t index = w / o.pack_words, panel = index / (kPanelPacks * k_blocks);
  const int64_t n0 = panel * kPanelRows + index % kPanelPacks * kPackRows;
  const int64_t k0 = index / kPanelPacks % k_blocks * o.pack_k;
  const bool planes = o.stored.bits == kTwoPlanes || o.stored.bits == kTrellis;
  const int in_pack = int(w % o.pack_words), width = stored_width(o.stored.bits), fields = planes ? 32 : 32 / width;
  const uint32_t mask = 0xffffffffu >> (32 - width);
  uint32_t word = 0;
#pragma unroll 1
  for (int field = 0; field < fields; ++field) {
    const FieldPosition at =
        o.int8 ? position_of<1>(o.stored.bits, in_pack, field) : position_of<2>(o.stored.bits, in_pack, field);
    const int64_t n = n0 + at.row, k = k0 + at.k;
    const int value = n < rows.n && k < rows.k ? integer_value(o.format, rows.codes + n * rows.row_bytes, k) : 0;
    if (o.stored.bits == kTrellis) {
      word |= uint32_t(trellis_planes(unsigned(value)) >> in_pack % 2 & 1) << at.shift;
    } else if (o.stored.bits == kTwoPlanes) {
      word |= uint32_t(in_pack % 2 == 0 ? value > 0 : value != 0) << at.shift;
    } else {
      const int code = o.stored.bits == kTable ? stored_index(value) : o.int8 ? value : value + o.stored.zero;
      word |= (uint32_t(code) & mask) << at.shift;
    }
  }
  out[w] = word;
}

/// Bytes of canonical binary rows in the order of int8 values; bits behind column k are 0.
__global__ void relayout_bits(Rows rows, int64_t k_blocks, int64_t words, uint32_t* out) {
  using Bytes = FragmentOrder<8, 1>;
  const int64_t w = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (w >= words) return;
  const int64_t index = w / Bytes::kPackWords, panel = index / (kPanelPacks * k_blocks);
  const int64_t n0 = panel * kPanelRows + index % kPanelPacks * kPackRows;
  const int64_t k0 = index / kPanelPacks % k_blocks * Bytes::kPackK, bytes = (rows.k + 7) / 8;
  uint32_t word = 0;
  for (int field = 0; field < Bytes::kFields; ++field) {
    const auto at = Bytes::element(int(w % Bytes::kPackWords), field);
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

int running_arch() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  cudaFuncAttributes compiled{};
  if (cudaFuncGetAttributes(&compiled, transpose_scales) != cudaSuccess) {  // no code for it: the first launch says so
    (void)cudaGetLastError();
    return 10 * major + minor;
  }
  return std::min(10 * major + minor, compiled.ptxVersion);
}

GemmStatus relayout_weights(FormatId format, GemmActivation activation, const uint8_t* codes, int64_t row_stride_bytes,
                            int64_t n, int64_t k, void* tiles, cudaStream_t stream) {
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
  const bool int8 = activation == GemmActivation::kInt8;
  const int pack_k = int8 ? 128 : 64;
  const StoredBits stored = stored_bits(format, activation);
  // Codes on a trellis are packed as those of two bits are.
  const Order order = {stored.bits == kTrellis ? FormatId::kCodebook2 : format, stored, int8, pack_k,
                       kPackRows * pack_k * stored_width(stored.bits) / 32};
  relayout<<<unsigned((words + 255) / 256), 256, 0, stream>>>(
      order, {codes, row_stride_bytes, n, k}, (k + pack_k - 1) / pack_k, words, static_cast<uint32_t*>(tiles));
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
