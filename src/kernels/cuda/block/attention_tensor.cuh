#pragma once
// Attention on tensor cores: what rows of prompts and rows that decode have in common, so that a row's bits do not
// depend on which of them it is, nor on its neighbours. docs/numerics.md ("Attention on tensor cores") has the order.
//
// A float is the sum of two f16, and keys and values are f16: a product of both parts is as exact as one of f32.
// Fragments of products are those of mma_f16(): lane 4 g + t has rows g and g + 8.

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/half_matrices.cuh"

namespace lowbit::cuda {
struct Device;
}
namespace lowbit::cuda::block {

constexpr int kTensorPage = static_cast<int>(kKvPage), kTensorRows = 16;
constexpr int kPageTiles = kTensorPage / 8;   // of eight positions
constexpr int kPageSteps = kTensorPage / 16;  // of sixteen positions, in sums along them
constexpr int kKeyPitch = kTensorPage + 8;    // 16 bytes more than a row: eight rows in different banks
constexpr uint32_t kAllLanes = 0xffffffffu;

/// Halves from a row of keys of one element to the next, and of values of one position.
template <int kDim>
constexpr int kValuePitch16 = kDim + 8;
/// Halves of a page's keys and of its values.
template <int kDim>
constexpr int kKeyHalves = kDim* kKeyPitch;
template <int kDim>
constexpr int kValueHalves = kTensorPage* kValuePitch16<kDim>;

struct TensorPair {
  uint32_t high, low;  // each the f16 of two neighbours
};
__device__ __forceinline__ TensorPair split_pair(float a, float b) {
  const uint32_t high = f16_pair(a, b);
  return {high, f16_pair(__fsub_rn(a, f16_value(static_cast<uint16_t>(high))),
                         __fsub_rn(b, f16_value(static_cast<uint16_t>(high >> 16))))};
}

/// Powers of two: a query times `factor` has its largest element in [2^14, 2^15), and factor * inverse is 1.
struct QueryScale {
  float factor, inverse;
};
__device__ __forceinline__ QueryScale query_scale(float largest) {
  const int biased = min(max(268 - static_cast<int>(__float_as_uint(largest) >> 23), 1), 253);
  return {__uint_as_float(static_cast<uint32_t>(biased) << 23),
          __uint_as_float(static_cast<uint32_t>(254 - biased) << 23)};
}
constexpr float kLog2E = 1.44269504088896341f;

__device__ __forceinline__ float xor_lanes(float v, int by) {
  return __uint_as_float(__shfl_xor_sync(kAllLanes, __float_as_uint(v), by, 32));
}
__device__ __forceinline__ float largest_of_four(float v) {
  v = fmaxf(v, xor_lanes(v, 1));
  return fmaxf(v, xor_lanes(v, 2));
}
__device__ __forceinline__ float sum_of_four(float v) {
  v = __fadd_rn(v, xor_lanes(v, 1));
  return __fadd_rn(v, xor_lanes(v, 2));
}

/// Where a lane's matrices begin: position or element l % 16 of the sums, and eight columns on for half of the lanes.
__device__ __forceinline__ int lane_row() { return static_cast<int>(threadIdx.x % 16); }
__device__ __forceinline__ int lane_column() { return static_cast<int>(threadIdx.x % 32) / 16 * 8; }

/// The span so far and one page more: results of both are sums relative to their largest scores.
__device__ __forceinline__ Merging join_page(float most, float total, Running& running) {
  const float next = fmaxf(running.most, most), shift = shift_of(next);
  const Merging by = {power_of_two(__fsub_rn(running.most, shift)), power_of_two(__fsub_rn(most, shift))};
  running = {next, __fmaf_rn(total, by.here, __fmul_rn(running.total, by.before))};
  return by;
}
__device__ __forceinline__ float joined_page(const Merging& by, float sum, float all) {
  return __fmaf_rn(sum, by.here, __fmul_rn(all, by.before));
}

/// Whether one of two f16 is infinite or not a number.
__device__ __forceinline__ bool has_no_number(uint32_t pair) {
  return (pair & 0x7c00u) == 0x7c00u || (pair & 0x7c000000u) == 0x7c000000u;
}

/// attend_tensor_step() of more spans than its thread blocks run at once.
bool takes_tensor_stream(const AttendPages& call, const Device& device);
Status attend_tensor_stream(const AttendStep& call, const Device& device);

}  // namespace lowbit::cuda::block
