// Attention of rows that decode on packed pages, on tensor cores: the default of a GPU, where attention_packed_span.cu
// has the CPU's bits. Codes are operands as they are; their rows' scales go into queries and weights, each rounded to
// f16, and least values are sums of their own. The order is that of docs/numerics.md ("Packed pages on tensor cores").
//
// A thread block has a part of the items of a tile, a warp every eighth of them; the last block of a tile puts its
// parts together.

#include <algorithm>
#include <climits>

#include "kernels/cuda/block/code_sums.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// The slot behind `slot`, around.
template <class F>
__device__ __forceinline__ uint8_t* next_slot_of(uint8_t* slots, uint8_t* slot) {
  return slot == slots + (F::kSlots - 1) * F::kSlot ? slots : slot + F::kSlot;
}

/// A warp's items of a part, one after the other; ends with `slot` read and free, and nothing asked for into it yet.
template <class F>
__device__ __forceinline__ void attend_items(const AttendPacked& call, const CodesItems& items, CodesCopies<F>& copies,
                                             int item, int end, uint8_t* slots, uint8_t*& slot,
                                             const CodesShared<F>& shared, CodesSums<F>& sums) {
  static_assert(F::kSlots == 3);  // so the order of copies is that of the loop
  constexpr int kAll = INT_MAX;   // the predecessor has ended
  const auto slot_arrives = [] {
    wait_for_copies<F::kSlots - 1>();
    sync_warp();
  };
#pragma unroll 1
  for (; item < end; item += kCodesWarps) {
    const bool packed = items.is_packed(item);
    Scores<F> scores;
    slot_arrives();
    if (packed) {
      multiply_codes<F>(shared, slot, scores);
    } else {
      multiply_f16_keys<F>(shared, slot, scores);
    }
    sync_warp();
    copies.template fetch<true>(call, items, slot, kAll);
    slot = next_slot_of<F>(slots, slot);
    const int first = packed ? items.page(item) * kTensorPage : items.begin(item);
    sums.weigh(items, shared, first, first + (packed ? kTensorPage : kQuarter), scores);
    slot_arrives();
    if (packed) {
      sums.add_codes(slot, scores);
    } else {
      sums.add_f16_values(items, shared, first, slot, scores);
    }
    sync_warp();
    if (item + kCodesWarps >= end) break;
    copies.template fetch<false>(call, items, slot, kAll);
    slot = next_slot_of<F>(slots, slot);
  }
}

/// Puts the warps' results together: give(query, element, two elements, largest score, sum of weights).
template <class F, class Give>
__device__ __forceinline__ void join_warps(const CodesShared<F>& shared, const uint8_t* bytes, const Give& give) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < shared.count * F::kHead / 2; at += kCodesThreads) {
    const int q = at / (F::kHead / 2), element = at % (F::kHead / 2) * 2;
    float most = -INFINITY, total = 0;
    float2 all = {0, 0};
#pragma unroll
    for (int w = 0; w < kCodesWarps; ++w) most = fmaxf(most, shared.most[w][q]);
    const float shift = shift_of(most);
#pragma unroll
    for (int w = 0; w < kCodesWarps; ++w) {
      const float by = power_of_two(__fsub_rn(shared.most[w][q], shift));
      const float2 two = *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(bytes + shared.results[w]) +
                                                          q * F::kPitch + element);
      total = __fmaf_rn(shared.total[w][q], by, total);
      all = {__fmaf_rn(two.x, by, all.x), __fmaf_rn(two.y, by, all.y)};
    }
    give(q, element, all, most, total);
  }
}
/// The tile's outputs, [query][kHead], behind the results of its warps.
template <class F>
__device__ __forceinline__ float* outputs_in(uint8_t* bytes) {
  constexpr int kOutputs = F::kQueries * F::kHead * 4;
  static_assert(F::kResult + kOutputs <= F::kWarpBytes);
  return reinterpret_cast<float*>(bytes + F::kBytes - kOutputs);
}
/// Weighted values by their sum of weights.
template <class F>
__device__ __forceinline__ void keep_output(uint8_t* bytes, int q, int element, float2 all, float total) {
  const float by = __fdiv_rn(1.0f, total);
  *reinterpret_cast<float2*>(outputs_in<F>(bytes) + q * F::kHead + element) = {__fmul_rn(all.x, by),
                                                                               __fmul_rn(all.y, by)};
}
/// Stores the outputs, transformed if they are to be (docs/numerics.md#hadamard-transform): a warp has a query.
template <class F>
__device__ __forceinline__ void store_outputs(const AttendPacked& call, const CodesShared<F>& shared, uint8_t* bytes) {
  constexpr int kEach = F::kHead / 32;
  __syncthreads();
  const int q = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (q >= shared.count) return;
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = outputs_in<F>(bytes)[q * F::kHead + lane * kEach + i];
  if (call.hadamard != 0) {
#pragma unroll
    for (int w = 1; w < kEach; w *= 2)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i & w) continue;
        const float a = x[i], b = x[i + w];
        x[i] = __fadd_rn(a, b), x[i + w] = __fsub_rn(a, b);
      }
#pragma unroll
    for (int w = 1; w < 32; w *= 2)
#pragma unroll
      for (float& v : x) {
        const float other = xor_lanes(v, w);
        v = lane & w ? __fsub_rn(other, v) : __fadd_rn(v, other);
      }
#pragma unroll
    for (float& v : x) v = __fmul_rn(v, call.hadamard);
  }
  float* const to = call.attend.out + shared.offsets[q] + lane * kEach;
#pragma unroll
  for (int i = 0; i < kEach; i += 2) *reinterpret_cast<float2*>(to + i) = {x[i], x[i + 1]};
}

/// Where one part's result of a tile's query lies: largest score, sum of weights, weighted values.
__device__ __forceinline__ float* part_result(const AttendPages& call, int most_parts, int tile, int part, int query) {
  const int64_t at = (int64_t{tile} * call.kv.kv_heads + blockIdx.y) * most_parts + part;
  return call.results + (at * call.tile_queries + query) * (call.kv.head_dim + 2);
}
/// Puts the parts of a tile together. All that is read of one part is asked for at once with that of others, and values
/// before scores have come: one after the other they would wait for memory that often.
template <class F>
__device__ __forceinline__ void join_parts(const AttendPages& call, int most_parts, int tile, int parts, uint8_t* bytes,
                                           CodesShared<F>& shared) {
  auto* const of_parts = reinterpret_cast<float2*>(bytes);  // [query][parts]: score, or factor, and sum of weights
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, q_of_warp = thread / 32;
  constexpr int kAtOnce = 16, kPairs = F::kHead / 2;
  const int64_t apart = int64_t{call.tile_queries} * (call.kv.head_dim + 2);
  float2 values[kAtOnce];
  const auto ask = [&](int at, int first) {
    const float* const from =
        part_result(call, most_parts, tile, first, at / kPairs) + 2 + static_cast<unsigned>(at) % kPairs * 2;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[i] = {0, 0};
      if (first + i < parts) values[i] = load_from_others(reinterpret_cast<const float2*>(from + i * apart));
    }
  };
  if (thread < shared.count * kPairs) ask(thread, 0);
  if (q_of_warp < shared.count) {
    float2* const own = of_parts + q_of_warp * parts;
    float most = -INFINITY, total = 0;
#pragma unroll 4
    for (int u = lane; u < parts; u += 32) {
      own[u] = load_from_others(reinterpret_cast<const float2*>(part_result(call, most_parts, tile, u, q_of_warp)));
      most = fmaxf(most, own[u].x);
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2) most = fmaxf(most, xor_lanes(most, w));
    for (int u = lane; u < parts; u += 32) {
      own[u].x = power_of_two(__fsub_rn(own[u].x, shift_of(most)));
      total = __fmaf_rn(own[u].y, own[u].x, total);
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2) total = __fadd_rn(total, xor_lanes(total, w));
    if (lane == 0) shared.of_parts[q_of_warp] = total;
  }
  __syncthreads();
#pragma unroll 1
  for (int at = thread; at < shared.count * kPairs; at += kCodesThreads) {
    if (at != thread) ask(at, 0);
    const int q = at / kPairs;
    float2 all = {0, 0};
#pragma unroll 1
    for (int first = 0;; ask(at, first)) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= parts) break;
        const float by = of_parts[q * parts + first + i].x;
        all = {__fmaf_rn(values[i].x, by, all.x), __fmaf_rn(values[i].y, by, all.y)};
      }
      first += kAtOnce;
      if (first >= parts) break;
    }
    keep_output<F>(bytes, q, at % kPairs * 2, all, shared.of_parts[q]);
  }
}

template <class F>
__global__ void __launch_bounds__(kCodesThreads, F::kBlocksOfProcessor)
    attend_codes(const __grid_constant__ AttendPacked call, const __grid_constant__ CodesLaunch launch) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto& shared = *reinterpret_cast<CodesShared<F>*>(bytes + F::kBytes);
  let_successor_start();
  if (!call.overlap) wait_for_predecessor();
  const AttendPages& attend = call.attend;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const CodesShare share(call, launch, shared.parts, shared.blocks);
  if (share.blocks == 0) return;
  const CodesTile tile(attend, launch, share.tile);
  const CodesItems items(call, launch, tile);
  const int of_part = items_of_warp(launch, items.count) * kCodesWarps, parts = parts_of(launch, items.count);
  const int blocks = min(share.blocks, parts);
  if (share.block >= blocks) return;
  const int end_part = (share.block + 1) * parts / blocks;
  int part = share.block * parts / blocks;
  uint8_t* const slots = bytes + warp * F::kWarpBytes;
  uint8_t* slot = slots;
  CodesCopies<F> copies;
  {
    const int old = tile.sequence.position;
    copies.begin(call, tile, items, part * of_part + warp, min(items.count, end_part * of_part));
    copies.template fetch<false>(call, items, slots, old);
    copies.template fetch<true>(call, items, slots + F::kSlot, old);
    copies.template fetch<false>(call, items, slots + 2 * F::kSlot, old);
    wait_for_predecessor();
    load_queries<F>(attend, launch, tile, shared);
    __syncthreads();
  }
#pragma unroll 1
  for (; part < end_part; ++part) {
    CodesSums<F> sums;
    sums.clear();
    attend_items<F>(call, items, copies, part * of_part + warp, min(items.count, (part + 1) * of_part), slots, slot,
                    shared, sums);
    uint8_t* const result = part + 1 == end_part ? slots : slot;  // outputs lie behind those of the last part
    sums.put(reinterpret_cast<float*>(result));
    if (lane == 0) shared.results[warp] = static_cast<int>(result - bytes);
#pragma unroll
    for (int set = 0; set < F::kSets; ++set)
      if (lane < 4)
        shared.most[warp][4 * set + lane] = sums.most[set], shared.total[warp][4 * set + lane] = sums.total[set];
    __syncthreads();
    if (parts == 1) break;
    join_warps<F>(shared, bytes, [&](int q, int element, float2 all, float most, float total) {
      float* const to = part_result(attend, launch.most_parts, share.tile, part, q);
      *reinterpret_cast<float2*>(to + 2 + element) = all;
      if (element == 0) *reinterpret_cast<float2*>(to) = {most, total};
    });
    __syncthreads();
    if (part + 1 == end_part) break;
    copies.template fetch<false>(call, items, slot, INT_MAX);
    slot = next_slot_of<F>(slots, slot);
  }
  if (parts == 1) {
    join_warps<F>(shared, bytes, [&](int q, int element, float2 all, float, float total) {
      keep_output<F>(bytes, q, element, all, total);
    });
    store_outputs<F>(call, shared, bytes);
    return;
  }
  if (threadIdx.x == 0)
    shared.is_last = arrives_last(call.arrived + share.tile * attend.kv.kv_heads + static_cast<int>(blockIdx.y),
                                  static_cast<uint32_t>(blocks));
  __syncthreads();
  if (!shared.is_last) return;
  join_parts<F>(attend, launch.most_parts, share.tile, parts, bytes, shared);
  store_outputs<F>(call, shared, bytes);
}

template <class F>
cudaError_t launch_codes(const AttendPacked& call, const Device& device) {
  auto* const kernel = &attend_codes<F>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  AttendPacked turn = call;
  AttendPages& a = turn.attend;
  // As many thread blocks of a tile as fill the device with the heads of one sequence; fewer where it has fewer items.
  const int64_t of_device = fast_packed_parts(int64_t{device.processors} * F::kBlocksOfProcessor, a.kv.kv_heads);
  const int64_t most = std::min(of_device, 2 * (a.spans + 1));
  const int64_t at_once =
      call.room_floats / attend_results_floats(1, a.tile_queries, most, a.kv.kv_heads, a.kv.head_dim);
  CodesLaunch known = {Divisor(a.heads / a.kv.kv_heads), Divisor(of_device * kCodesWarps), static_cast<int>(most), 0,
                       static_cast<int>(of_device)};
  a.results = call.room;
  for (int64_t first = 0; first < call.attend.tile_count; first += at_once) {
    a.tiles = call.attend.tiles + first;
    a.tile_count = std::min(at_once, call.attend.tile_count - first);
    // Several tiles share blocks for which the device has room at once; one tile has a block for each part.
    const bool shares = a.tile_count > 1 && a.tile_count <= kMostSharedTiles;
    known.shared_tiles = shares ? static_cast<int>(a.tile_count) : 0;
    const dim3 grid(static_cast<unsigned>(shares ? known.shared_blocks + a.tile_count : most),
                    static_cast<unsigned>(a.kv.kv_heads), static_cast<unsigned>(shares ? 1 : a.tile_count));
    const auto e = launch(kernel, grid, dim3(kCodesThreads), F::kBytes + sizeof(CodesShared<F>),
                          static_cast<cudaStream_t>(a.stream), device.bulk_copies, turn, known);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

template <int kHead, int kSets>
cudaError_t launch_code_bits(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.packed.key_bits, values = call.kv.packed.value_bits;
  if (keys == 8) return launch_codes<CodesForm<kHead, 8, 8, kSets>>(call, device);
  if (keys == 2) return launch_codes<CodesForm<kHead, 2, 2, kSets>>(call, device);
  return values == 2 ? launch_codes<CodesForm<kHead, 4, 2, kSets>>(call, device)
                     : launch_codes<CodesForm<kHead, 4, 4, kSets>>(call, device);
}
template <int kHead>
cudaError_t launch_code_sets(const AttendPacked& call, const Device& device) {
  return call.attend.tile_queries <= 4 ? launch_code_bits<kHead, 1>(call, device)
                                       : launch_code_bits<kHead, 2>(call, device);
}

template <int kHead>
constexpr int64_t shared_bytes_of(int key_bits) {
  const int64_t bytes = key_bits == 8   ? CodesForm<kHead, 8, 8, 2>::kBytes
                        : key_bits == 2 ? CodesForm<kHead, 2, 2, 2>::kBytes
                                        : CodesForm<kHead, 4, 4, 2>::kBytes;
  static_assert(CodesForm<kHead, 4, 2, 2>::kBytes <= CodesForm<kHead, 4, 4, 2>::kBytes);
  return bytes + int64_t{sizeof(CodesShared<CodesForm<kHead, 4, 4, 2>>)};
}
bool takes_code_bits(int key_bits, int value_bits, int64_t head_dim, const Device& device) {
  return key_bits != 3 && has_packed_form(key_bits, value_bits, head_dim) &&
         (head_dim == 64 ? shared_bytes_of<64>(key_bits) : shared_bytes_of<128>(key_bits)) <= device.shared_bytes;
}

}  // namespace

bool block::takes_codes(const AttendPacked& call, const Device& device) {
  const PackedPages& packed = call.kv.packed;
  const AttendPages& a = call.attend;
  const auto least_room = fast_packed_floats(device.processors, a.kv.kv_heads, a.kv.head_dim);
  return !a.exact && call.arrived != nullptr && call.room != nullptr && call.room_floats >= least_room &&
         call.kv.old.tables == nullptr && !packed.fp8 && a.tile_queries <= 8 && call.teams == 0 &&
         takes_code_bits(packed.key_bits, packed.value_bits, a.kv.head_dim, device);
}

bool is_fast_packed(const AttendPacked& call) {
  Device device{};
  return current_device(&device) == cudaSuccess && takes_codes(call, device);
}
bool has_fast_packed(int key_bits, int value_bits, int64_t head_dim) {
  Device device{};
  return current_device(&device) == cudaSuccess && takes_code_bits(key_bits, value_bits, head_dim, device);
}

cudaError_t block::attend_codes(const AttendPacked& call, const Device& device) {
  return call.attend.kv.head_dim == 64 ? launch_code_sets<64>(call, device) : launch_code_sets<128>(call, device);
}

}  // namespace lowbit::cuda
