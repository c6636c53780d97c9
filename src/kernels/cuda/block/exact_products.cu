#include "kernels/cuda/block/exact_products.cuh"

#include <algorithm>
#include <bit>

#include "kernels/cuda/block/exact_product_input.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

bool gates_pairs(ProductEnd end) { return end == ProductEnd::kSilu || end == ProductEnd::kSquaredRelu; }

/// The scale of a lane's row of a tile of the set. Behind the last row or tile it does not matter.
__device__ __forceinline__ float exact_product_scale(const ExactProductArgs& a, int set,
                                                     const ExactProductPlace& group) {
  const ExactProductTile tile = exact_product_tile(a, min(set * a.tiles_of_set + group.which, a.tiles - 1));
  const ExactProductPart& part = a.part[tile.part];
  if (part.scales == nullptr) return 1.0f;
  const int n = min(tile.n0 + static_cast<int>(threadIdx.x) % 32, static_cast<int>(part.n) - 1);
  return part.scales[int64_t{n >> a.scale_shift[tile.part]} * static_cast<int>(part.row_step) +
                     int64_t{group.within} * static_cast<int>(part.group_step)];
}

/// An output before its bias: the groups' sums, in order.
template <int kM>
__device__ __forceinline__ float add_groups(const ExactProductArgs& a, const uint8_t* shared, int buffer, int tile,
                                            int m, int r) {
  const int at = (buffer * a.tiles_of_set + tile) * a.groups;
  const auto* const sums = reinterpret_cast<const float*>(shared + a.results_at) + (at * kM + m) * kRowsOfTile + r;
  const auto* const scales = reinterpret_cast<const float*>(shared + a.scales_at) + at * kRowsOfTile + r;
  const auto* const x_scales = reinterpret_cast<const float*>(shared + a.x_scales_at) + m * a.groups;
  float acc = 0;
  if (a.rounding == RowRounding::kE4m3) {
#pragma unroll 8
    for (int g = 0; g < a.groups; ++g)
      acc = __fmaf_rn(__fmul_rn(sums[g * kM * kRowsOfTile], x_scales[g]), scales[g * kRowsOfTile], acc);
  } else {
#pragma unroll 8
    for (int g = 0; g < a.groups; ++g) acc = __fmaf_rn(sums[g * kM * kRowsOfTile], scales[g * kRowsOfTile], acc);
  }
  return acc;
}

/// Where a lane's output of a set goes: `i` counts warps of them.
struct ExactProductOutput {
  const ExactProductPart* part = nullptr;
  int tile = 0, m = 0, r = 0, n = 0;  // tile: in the set
  int64_t at = 0;
  __device__ __forceinline__ ExactProductOutput(const ExactProductArgs& a, int set, int i, bool pairs) {
    r = static_cast<int>(threadIdx.x) % kRowsOfTile;
    tile = i;
    if (a.m > 1) m = i % a.m, tile = i / a.m;
    if (pairs) tile *= 2;
    const int of_all = set * a.tiles_of_set + tile;
    if (tile >= a.tiles_of_set || of_all >= a.tiles) return;
    const ExactProductTile where = exact_product_tile(a, of_all);
    n = where.n0 + r;
    if (n >= a.part[where.part].n) return;
    part = &a.part[where.part];
    at = m * part->ldy + n;
  }
};
__device__ __forceinline__ float bias_at(const ExactProductPart& part, int n) {
  return part.bias == nullptr ? 0.0f : part.bias[n];
}

/// The outputs of a set; `before` and `bias` are those of a thread's first one.
template <int kM>
__device__ __forceinline__ void store_exact_products(const ExactProductArgs& a, const uint8_t* shared, int buffer,
                                                     int set, float before, float bias) {
  const bool pairs = a.end == ProductEnd::kSilu || a.end == ProductEnd::kSquaredRelu;
  const int count = a.tiles_of_set / (pairs ? 2 : 1) * a.m, own = static_cast<int>(threadIdx.x) / 32;
  for (int i = own; i < count; i += a.warps) {
    const ExactProductOutput to(a, set, i, pairs);
    if (to.part == nullptr) continue;
    if (i != own) {
      bias = bias_at(*to.part, to.n);
      if (a.end == ProductEnd::kAdd) before = static_cast<const float*>(to.part->y)[to.at];
    }
    float y = __fadd_rn(add_groups<kM>(a, shared, buffer, to.tile, to.m, to.r), bias);
    if (pairs)
      y = gated(y, __fadd_rn(add_groups<kM>(a, shared, buffer, to.tile + 1, to.m, to.r), bias_at(a.part[1], to.n)),
                a.end);
    if (a.end == ProductEnd::kAdd) y = __fadd_rn(before, y);
    if (a.y_element == Element::kF32)
      static_cast<float*>(to.part->y)[to.at] = y;
    else
      static_cast<uint16_t*>(to.part->y)[to.at] = a.y_element == Element::kBf16 ? f32_to_bf16(y) : f16_nearest(y);
  }
}

template <ValueType kType, int kM>
__global__ void __launch_bounds__(32 * kMostExactProductWarps, 1)
    multiply_exact_products(const __grid_constant__ ExactProductArgs a) {
  LOWBIT_DYNAMIC_SHARED(shared);
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  uint8_t* const pipeline = shared + warp * a.stages * kStageBytes;
  const auto* const x = reinterpret_cast<const float*>(shared + a.x_at);
  ExactProductCursor at(a, warp), ahead = at;
  int slot_ahead = 0, slot = 0;
  const auto copy_next = [&] {
    if (ahead.set < a.sets) {
      copy_exact_products(a, ahead, pipeline + slot_ahead * kStageBytes);
      if (++slot_ahead == a.stages) slot_ahead = 0;
      ahead.next(a);
    }
    __syncwarp();
    end_exact_product_stage();
  };
#pragma unroll 1
  for (int i = 0; i < a.stages; ++i) copy_next();
  if (a.norm != nullptr)
#pragma unroll 8
    for (int i = thread; i < a.k; i += 32 * a.warps) reinterpret_cast<float*>(shared + a.norm_at)[i] = a.norm[i];
  // Scales of [tiles][groups] x 32 rows, a warp's: a set's come while the one before it is multiplied.
  const int scale_rows = a.tiles_of_set * a.groups;
  const ExactProductPlace first_group(warp, a.groups), group_step(a.warps, a.groups);
  float held[kHeldScales];
  const auto hold_scales = [&](int set) {
    ExactProductPlace group = first_group;
#pragma unroll
    for (int i = 0; i < kHeldScales; ++i) {
      if (group.which < a.tiles_of_set) held[i] = exact_product_scale(a, set, group);
      group.next(group_step, a.groups);
    }
  };
  const auto put_scales = [&](int set, int buffer) {
    auto* const to = reinterpret_cast<float*>(shared + a.scales_at) + buffer * scale_rows * kRowsOfTile + lane;
    ExactProductPlace group = first_group;
#pragma unroll
    for (int i = 0; i < kHeldScales; ++i) {
      if (group.which < a.tiles_of_set) to[(warp + i * a.warps) * kRowsOfTile] = held[i];
      group.next(group_step, a.groups);
    }
    for (int i = warp + kHeldScales * a.warps; i < scale_rows; i += a.warps, group.next(group_step, a.groups))
      to[i * kRowsOfTile] = exact_product_scale(a, set, group);
  };
  hold_scales(at.set);
  wait_for_predecessor();
  stage_exact_products<kM>(a, shared);
  put_scales(at.set, 0);
  __syncthreads();
  int buffer = 0;
#pragma unroll 1
  for (int set = at.set; set < a.sets; set += a.grid) {
    const int next = set + a.grid, next_buffer = a.buffers == 2 ? 1 - buffer : 0;
    if (next < a.sets) hold_scales(next);
    float before = 0, bias = 0;
    const ExactProductOutput own(a, set, warp, a.end == ProductEnd::kSilu || a.end == ProductEnd::kSquaredRelu);
    if (own.part != nullptr) {
      bias = bias_at(*own.part, own.n);
      if (a.end == ProductEnd::kAdd) before = static_cast<const float*>(own.part->y)[own.at];
    }
    float sums[kM] = {};
    ExactProductGroup in = {};
    float* const results = reinterpret_cast<float*>(shared + a.results_at) + buffer * scale_rows * kM * kRowsOfTile;
#pragma unroll 1
    for (; at.set == set; at.next(a)) {
      wait_for_exact_product_stage(a.stages);
      __syncwarp();
      multiply_stage<kType, kM>(a, at, pipeline + slot * kStageBytes, x,
                                results + at.share.which * a.groups * kM * kRowsOfTile, in, sums);
      if (++slot == a.stages) slot = 0;
      __syncwarp();
      copy_next();
    }
    __syncthreads();
    if (a.buffers == 2 && next < a.sets) put_scales(next, next_buffer);  // nobody stores the set before this one now
    store_exact_products<kM>(a, shared, buffer, set, before, bias);
    if (a.buffers == 2) {  // a thread that comes here again has met those that store
      buffer = next_buffer;
    } else if (next < a.sets) {
      __syncthreads();
      put_scales(next, 0);
      __syncthreads();
    }
  }
}

// ---- How a launch is cut

int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of; }

int columns_of_piece(ValueType type) { return kPieceBytes / value_bytes(type); }

/// Rows of x that kernels are made for.
int row_slots(int64_t m) { return m <= 1 ? 1 : m <= 2 ? 2 : m <= 4 ? 4 : 8; }

/// Tiles of a set and warps: as many shares as warps, if there are enough tiles, so that all multiprocessors have some;
/// where a tile is one share, so that none has more than it must.
void cut_sets(ExactProductArgs& a, bool pairs, int processors) {
  constexpr int kUsualWarps = 8;
  a.tiles_of_set = pairs ? 2 : 1;
  if (a.shares == 1) {
    int64_t least = 0;
    for (int warps = kMostExactProductWarps; warps >= 2; warps -= 2) {
      const int64_t most = whole(a.tiles, int64_t{processors} * warps) * warps;  // tiles of a multiprocessor
      if (least != 0 && most >= least) continue;
      least = most;
      a.tiles_of_set = warps;
    }
  } else if (a.tiles >= 4 * processors && a.shares * a.tiles_of_set < kUsualWarps) {
    a.tiles_of_set *= kMostExactProductWarps / (a.shares * a.tiles_of_set);
  }
  const int shares = a.tiles_of_set * a.shares;
  a.warps = shares <= kMostExactProductWarps ? shares : kUsualWarps;
  a.sets = static_cast<int>(whole(a.tiles, a.tiles_of_set));
  a.grid = std::min(a.sets, processors);
}

/// Lays out shared memory; returns its bytes.
int64_t place_exact_products(ExactProductArgs& a, int slots, int stages) {
  const int64_t shares = whole(a.tiles_of_set * a.shares, a.warps) * whole(a.sets, a.grid);  // of a warp
  a.stages = static_cast<int>(std::min<int64_t>(shares * whole(a.share_pieces, kStagePieces), stages));
  int64_t at = int64_t{a.warps} * a.stages * kStageBytes;
  const auto take = [&](int& place, int64_t floats) {
    place = static_cast<int>(std::min<int64_t>(at, 1 << 30));
    at += whole(floats, 4) * 16;
  };
  const int64_t of_buffer = int64_t{a.tiles_of_set} * a.groups * kRowsOfTile;
  take(a.x_at, int64_t{slots} * a.x_pitch);
  take(a.norm_at, a.norm == nullptr ? 0 : a.k);
  take(a.x_scales_at, int64_t{a.m} * a.groups);
  take(a.results_at, a.buffers * of_buffer * slots);
  take(a.scales_at, a.buffers * of_buffer);
  take(a.factors_at, kMostStepRows);
  return at;
}

/// The deepest pipeline that shared memory has room for.
int64_t fit_exact_products(ExactProductArgs& a, int slots, int64_t most) {
  int64_t bytes = 0;
  for (int stages = kExactProductStages; stages >= 1; --stages)
    for (a.buffers = a.sets > a.grid ? 2 : 1; a.buffers >= 1; --a.buffers)
      if (bytes = place_exact_products(a, slots, stages); bytes <= most) return bytes;
  a.buffers = 1;
  return bytes;
}

/// The launch of a call; returns its bytes of shared memory.
int64_t cut_exact_products(const ExactProducts& call, const Device& device, ExactProductArgs& a) {
  const int columns = columns_of_piece(call.type);
  const bool pairs = gates_pairs(call.end);
  a.parts = call.count;
  for (int i = 0; i < call.count; ++i) {
    a.part[i] = call.parts[static_cast<size_t>(i)];
    a.first_tile[i] = a.tiles;
    a.scale_shift[i] = std::countr_zero(static_cast<uint64_t>(a.part[i].scale_rows));
    a.tiles += static_cast<int>(whole(a.part[i].n, kRowsOfTile));
  }
  a.rows = call.rows, a.norm = call.norm, a.eps = call.eps;
  a.codes = call.codes, a.code_scales = call.code_scales;
  a.ldcodes = call.ldcodes, a.scale_row = call.scale_row, a.scale_block = call.scale_block;
  a.rounding = call.rounding, a.end = call.end, a.y_element = call.y_element;
  a.m = static_cast<int>(call.m), a.k = static_cast<int>(call.k);
  a.aligned = call.codes == nullptr && call.k % 4 == 0 && reinterpret_cast<uintptr_t>(call.rows) % 16 == 0;
  a.pieces = static_cast<int>(whole(call.k, columns));
  const bool one = call.parts[0].scales == nullptr || call.group >= call.k;
  a.groups = one ? 1 : static_cast<int>(whole(call.k, call.group));
  a.group_pieces = one ? a.pieces : static_cast<int>(call.group / columns);
  a.share_pieces = static_cast<int>(whole(kStagePieces, a.group_pieces)) * a.group_pieces;
  a.share_groups = a.share_pieces / a.group_pieces;
  a.shares = static_cast<int>(whole(a.pieces, a.share_pieces));
  a.whole_stages = a.groups == 1 || a.group_pieces % kStagePieces == 0;
  a.x_pitch = static_cast<int>(whole(int64_t{a.pieces} * columns, kFp8Block) * kFp8Block);
  cut_sets(a, pairs, device.processors);
  return fit_exact_products(a, row_slots(call.m), device.shared_bytes);
}

template <ValueType kType>
auto* exact_product_kernel(int slots) {
  return slots == 1   ? &multiply_exact_products<kType, 1>
         : slots == 2 ? &multiply_exact_products<kType, 2>
         : slots == 4 ? &multiply_exact_products<kType, 4>
                      : &multiply_exact_products<kType, 8>;
}
}  // namespace

bool takes_exact_products(const ExactProducts& call) {
  constexpr int64_t kLargest = int64_t{1} << 24;
  const bool coded = call.rounding == RowRounding::kE4m3;
  if (call.m < 1 || call.m > kMostStepRows || call.k < 1 || call.k > kLargest || call.count < 1) return false;
  if (coded && call.group != kFp8Block) return false;
  const bool grouped = call.parts[0].scales != nullptr && call.group < call.k;
  if (grouped && call.group % columns_of_piece(call.type) != 0) return false;
  if (gates_pairs(call.end) && (call.count != 2 || call.parts[0].n != call.parts[1].n)) return false;
  for (int i = 0; i < call.count; ++i) {
    const ExactProductPart& part = call.parts[static_cast<size_t>(i)];
    if (part.n < 1 || part.n > kLargest || part.row_bytes % kPieceBytes != 0) return false;
    if (!std::has_single_bit(static_cast<uint64_t>(part.scale_rows))) return false;
    if (reinterpret_cast<uintptr_t>(part.values) % kPieceBytes != 0) return false;
    if ((part.scales == nullptr) != (call.parts[0].scales == nullptr)) return false;
  }
  Device device{};
  ExactProductArgs args{};
  return current_device(&device) == cudaSuccess && cut_exact_products(call, device, args) <= device.shared_bytes;
}

Status exact_products(const ExactProducts& call) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "few rows");
  ExactProductArgs args{};
  const int64_t shared = cut_exact_products(call, device, args);
  auto* const kernel =
      with_value_type(call.type, [&]<ValueType kType>() { return exact_product_kernel<kType>(row_slots(call.m)); });
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess)
    return check_cuda(e, "few rows");
  return check_cuda(launch(kernel, dim3(static_cast<unsigned>(args.grid)), dim3(static_cast<unsigned>(32 * args.warps)),
                           static_cast<size_t>(shared), static_cast<cudaStream_t>(call.stream),
                           device.bulk_copies && !call.new_weights, args),
                    "few rows");
}

}  // namespace lowbit::cuda
