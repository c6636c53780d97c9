// Attention of rows that decode on packed pages, on tensor cores: the default of a GPU, where attention_packed_span.cu
// has the CPU's bits. Codes are operands as they are; their rows' scales go into queries and weights, each rounded to
// f16, and least values are sums of their own. The order is that of docs/numerics.md ("Packed pages on tensor cores").
//
// A thread block has parts of the items of tiles, a warp every eighth of a part's; the last block of a tile puts its
// parts together, or the blocks of a cluster do.

#include <algorithm>
#include <climits>

#include "base/checked.h"
#include "kernels/cuda/block/code_copies.cuh"
#include "kernels/cuda/block/code_joins.cuh"
#include "kernels/cuda/block/code_sums.cuh"
#include "kernels/cuda/cluster_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// A warp's items of a part, one after the other; keys and values of the next are on their way behind it. Ends with the
/// slots free.
template <class F>
__device__ __forceinline__ void attend_items(const AttendPacked& call, const uint64_t* pages, CodesCopies<F>& copies,
                                             int end, CodesSlots<F>& slots, const CodesShared<F>& shared,
                                             CodesSums<F>& sums) {
  constexpr int kAll = INT_MAX;  // the predecessor has ended
  const auto slot_arrives = [] {
    wait_for_copies<1>();
    sync_warp();  // the one that was read before is free, too
  };
#pragma unroll 1
  while (static_cast<int>(copies.at) <= end) {
    ItemOfWarp of = copies.next();
    of.item -= kCodesWarps;
    Scores<F> scores;
    slot_arrives();
    copies.template fetch<false>(call, pages, shared.items, slots.before(), kAll);
    if (of.packed()) {
      multiply_codes<F>(shared, slots.now(), scores);
    } else {
      multiply_f16_keys<F>(shared, slots.now(), scores);
    }
    slots.advance();
    sums.weigh(shared, of, scores);
    slot_arrives();
    copies.template fetch<true>(call, pages, shared.items, slots.before(), kAll);
    if (of.packed()) {
      sums.add_codes(slots.now(), scores);
    } else {
      sums.add_f16_values(shared, of, slots.now(), scores);
    }
    slots.advance();
  }
  sync_warp();
}

/// A warp's results of a part, for join_warps(), in a slot.
template <class F>
__device__ __forceinline__ void put_results(const CodesSums<F>& sums, uint8_t* slot, const uint8_t* bytes,
                                            CodesShared<F>& shared) {
  const int thread = thread_read_here(), warp = thread / 32, lane = thread % 32;
  sums.put(reinterpret_cast<float*>(slot), static_cast<unsigned>(lane));
  if (lane == 0) shared.results.of[warp] = static_cast<int>(slot - bytes);
#pragma unroll
  for (int set = 0; set < F::kSets; ++set)
    if (lane < 4)
      shared.most[4 * set + lane].of[warp] = sums.most[set], shared.total[4 * set + lane].of[warp] = sums.total[set];
}

/// kCluster: one tile, whose parts a cluster may put together.
template <class F, bool kCluster>
__global__ void __launch_bounds__(kCodesThreads, F::kBlocksOfProcessor)
    attend_codes(const __grid_constant__ AttendPacked call, const __grid_constant__ CodesLaunch launch) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto& shared = *reinterpret_cast<CodesShared<F>*>(bytes + F::kBytes);
  let_successor_start();
  if (!call.overlap) wait_for_predecessor();
  const AttendPages& attend = call.attend;
  CodesWork work(call, launch, shared.work);
  if (work.blocks == 0) return;
  const CodesTile tile(attend, launch, work.tile);
  const CodesItems items(call, launch, tile);
  if (!work.take_parts(launch, items.count)) return;
  CodesSlots<F> slots(bytes, threadIdx.x / 32 * F::kWarpBytes);
  CodesCopies<F> copies(call, tile.kv_head);
  {
    const int of_part = work.of_warp * kCodesWarps, old = tile.sequence.position;
    copies.begin(work.part * of_part + static_cast<int>(threadIdx.x) / 32, min(items.count, work.end * of_part));
    copies.template fetch<false>(call, tile.pages, items, slots.now(), old);
    copies.template fetch<true>(call, tile.pages, items, slots.next(), old);
    if constexpr (kCluster) expect_parts(work, tile.count, shared);
    if (threadIdx.x == 0) shared.items = items;
    wait_for_predecessor();
    load_queries<F>(attend, launch, tile, shared);
    __syncthreads();
  }
  int end = 0;  // of the warp's items
#pragma unroll 1
  for (int part = work.part; part < work.end; ++part) {
    CodesSums<F> sums;
    sums.clear();
    end = min(end + work.of_warp, copies.count);
    attend_items<F>(call, tile.pages, copies, end, slots, shared, sums);
    put_results<F>(sums, kCluster ? slots.first() : slots.before(), bytes, shared);
    __syncthreads();
    if constexpr (kCluster)
      if (joins_in_cluster(work)) return join_cluster<F>(call, work, bytes, shared);
    join_warps<F>(shared, bytes, [&](int q, int element, float2 all, float most, float total) {
      if (work.parts == 1) return keep_output(shared, q, element, all, total);
      float* const to = part_result(attend, launch.most_parts, work.tile, part, q);
      *reinterpret_cast<float2*>(to + 2 + element) = all;
      if (element == 0) *reinterpret_cast<float2*>(to) = {most, total};
    });
    __syncthreads();
  }
  if (work.parts > 1) {
    if (threadIdx.x == 0)
      shared.is_last = arrives_last(call.arrived + work.tile * attend.kv.kv_heads + static_cast<int>(blockIdx.x),
                                    static_cast<uint32_t>(work.blocks));
    __syncthreads();
    if (!shared.is_last) return;
    join_parts<F>(attend, launch.most_parts, work.tile, work.parts, bytes, shared);
    __syncthreads();
  }
  store_outputs<F>(call, shared);
}

template <class F>
cudaError_t launch_codes(const AttendPacked& call, const Device& device) {
  auto* kernel = &attend_codes<F, false>;
  constexpr size_t kBytes = F::kBytes + sizeof(CodesShared<F>);
  static_assert(F::kBlocksOfProcessor * (kBytes + (1 << 10)) <= (228 << 10));
  unsigned cluster = 1;
  if constexpr (F::kSets == 1) {
    auto* const in_clusters = &attend_codes<F, true>;
    const int64_t pages = (call.attend.spans + 1) * kSpanPages, f16 = 3 + 4 * (call.kv.packed.behind + 2);
    if (call.attend.tile_count == 1 && device.bulk_copies && pages + f16 <= kClusterParts * kCodesWarps &&
        most_clusters(reinterpret_cast<const void*>(in_clusters), kClusterParts, kCodesThreads, kBytes, device) >=
            call.attend.kv.kv_heads)
      kernel = in_clusters, cluster = kClusterParts;
  }
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  AttendPacked turn = call;
  AttendPages& a = turn.attend;
  // As many thread blocks of a tile as fill the device with the heads of one sequence; fewer where it has fewer items.
  const int64_t of_device =
      std::min(fast_packed_parts(int64_t{device.processors} * F::kBlocksOfProcessor, a.kv.kv_heads),
               int64_t{F::kSlot / sizeof(float2)});  // join_parts() has a slot for a number of each
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
    // Heads first: of one tile those blocks begin last that have nothing to do, and others share no multiprocessor.
    const dim3 grid(static_cast<unsigned>(a.kv.kv_heads),
                    static_cast<unsigned>(round_up(shares ? known.shared_blocks + a.tile_count : most, cluster)),
                    static_cast<unsigned>(shares ? 1 : a.tile_count));
    const auto e = launch_cluster(kernel, grid, dim3(kCodesThreads), dim3(1, cluster, 1), kBytes,
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
