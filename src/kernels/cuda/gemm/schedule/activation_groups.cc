#include "kernels/cuda/gemm/schedule/activation_groups.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/gemm/schedule/activation_group_stream.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"

namespace lowbit::cuda {
namespace {

constexpr int64_t kFewestBytes = 99 << 10;  // of shared memory of a block, on every architecture

template <class T>
T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

/// Microseconds of a launch over 4096 columns, fitted to an H100's times: at least, and for every tile of the busiest
/// multiprocessor. With 4, 2 and any other number of activation groups to a scale; where a tile was never the fastest
/// the last two are estimates.
struct Microseconds {
  double least, each;
};
constexpr Microseconds kMicroseconds[][3] = {
    {},
    {{4.9, 4.9}, {6.0, 6.0}, {8.0, 8.0}},   // kSkinny
    {{9.5, 5.5}, {14.8, 8.4}, {21, 10.7}},  // kSplit32x16
    {{11.3, 11}, {15, 14.7}, {22, 21}},     // kSplit64x16
    {{24.5, 12.4}, {27, 14}, {34, 18}},     // kSplit32x32
    {{29, 16}, {27.8, 27}, {36.6, 36.8}},   // kSplit64x32
    {{4.1, 2.7}, {4.5, 2.9}, {5, 3.5}},     // kStream16x16
    {{4.5, 3.9}, {4.5, 4}, {}},             // kStream32x16
    {{5.1, 3.9}, {5.5, 4.2}, {7, 5.5}},     // kStream16x32
    {{6.5, 5.9}, {7, 6.2}, {}},             // kStream32x32
    {{35, 9.7}, {41, 10.5}, {45, 13}},      // k64x32
    {{50, 29.7}, {50, 31.4}, {64, 47}},     // k128x64
    {{30.5, 29.5}, {32, 31.3}, {36, 35}},   // kWgmma128x64
    {{47, 45.6}, {53, 50.3}, {60, 58}},     // kWgmma128x128
    {{18, 15}, {}, {}},                     // kWhole128x64
    {{26, 22}, {}, {}},                     // kWhole128x128
};

std::span<const ActivationGroupKernel> kernels_of(int bits) {
  constexpr size_t kAll = kActivationGroupInstances;
  if (bits == kTable) return {kActivationGroupsTable, kActivationGroupTableInstances};
  if (bits == kTrellis) return {kActivationGroupsTrellis, kActivationGroupTableInstances};
  constexpr size_t kWithWhole = kAll + kActivationGroupWholeInstances;
  return bits == 2   ? std::span{kActivationGroupsBits2, kWithWhole}
         : bits == 4 ? std::span{kActivationGroupsBits4, kWithWhole}
         : bits == 8 ? std::span{kActivationGroupsBits8, kAll}
                     : std::span<const ActivationGroupKernel>{};
}

const ActivationGroupKernel* find_stream_kernel([[maybe_unused]] int bits, [[maybe_unused]] ActivationGroupTile tile,
                                                [[maybe_unused]] const ActivationGroupArgs& args) {
#if defined(LOWBIT_WGMMA)
  const bool whole = args.whole_sums != 0 && args.per_scale > 1;
  const std::span<const ActivationGroupStreamKernel> all =
      bits == kTrellis ? std::span<const ActivationGroupStreamKernel>{kTrellisStreams} : kActivationGroupStreams;
  for (const int wanted : {args.per_scale, 0})
    for (const ActivationGroupStreamKernel& k : all)
      if (k.bits == bits && k.whole == whole && k.kernel.tile == tile && k.kernel.per_scale == wanted) return &k.kernel;
#endif
  return nullptr;
}

}  // namespace

bool can_stream(const GemmProblem& p, int tokens) {
  return p.m <= tokens && p.w.k > 0 && p.w.k % 128 == 0 && p.w.offsets == nullptr && p.x_scale_group_stride == 1 &&
         p.ldx % 16 == 0 && p.x_scale_row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.x_scale) % 16 == 0;
}

bool has_wgmma_activation_groups([[maybe_unused]] int arch) {
#if defined(LOWBIT_WGMMA)  // a build for compute capability 9.0
  return arch == 90;
#else
  return false;
#endif
}

const ActivationGroupKernel* find_activation_group_kernel(int bits, ActivationGroupTile tile,
                                                          const ActivationGroupArgs& args) {
  if (is_stream(tile)) return find_stream_kernel(bits, tile, args);
  const std::span all = kernels_of(bits);
  const auto with = [&](int wanted) -> const ActivationGroupKernel* {
    const auto at = std::ranges::find_if(
        all, [&](const ActivationGroupKernel& k) { return k.tile == tile && k.per_scale == wanted; });
    return at == all.end() ? nullptr : &*at;
  };
  const auto* const exact = with(tile == ActivationGroupTile::kSkinny ? args.whole_groups : args.per_scale);
  return exact != nullptr ? exact : with(0);
}

ActivationGroupTile choose_activation_groups(const GemmProblem& p, int64_t per_scale, int arch, int processors,
                                             int device_shared) {
  const int64_t scale_bytes = (group_count(p.w) / per_scale + 1) * 64;
  const bool skinny = p.m <= kActivationGroupSkinnyTokens && scale_bytes < kFewestBytes / 2;
  ActivationGroupArgs args{};
  args.per_scale = int(std::clamp<int64_t>(per_scale, 1, group_count(p.w)));
  args.whole_sums = p.whole_sums ? 1 : 0;
  // One row streams by itself (step_gemv.cuh) where lanes can pass a group's sum on.
  const bool alone = std::has_single_bit(unsigned(args.per_scale)) || args.per_scale == group_count(p.w);
  if (skinny && p.m == 1 && alone && !p.whole_sums) return ActivationGroupTile::kSkinny;
  const size_t shared_scale = args.per_scale == 4 ? 0 : args.per_scale == 2 ? 1 : 2;
  ActivationGroupTile best = ActivationGroupTile::k64x32;
  double least = 0;
  const auto consider = [&](ActivationGroupTile tile, int64_t rows, int64_t tokens) {
    const Microseconds& t = kMicroseconds[static_cast<size_t>(tile)][shared_scale];
    const int64_t tiles = ceil_div<int64_t>(p.m, tokens) * ceil_div<int64_t>(p.w.n, rows);
    const double cost = std::max(t.least, double(ceil_div<int64_t>(tiles, processors)) * t.each);
    if (least != 0 && cost >= least) return;
    least = cost, best = tile;
  };
  if (skinny && !p.whole_sums) consider(ActivationGroupTile::kSkinny, 16, kActivationGroupSkinnyTokens);
  for (auto tile = ActivationGroupTile::kSplit32x16; tile <= kLastActivationGroupTile;
       tile = static_cast<ActivationGroupTile>(static_cast<int>(tile) + 1)) {
    const ActivationGroupKernel* const kernel =
        find_activation_group_kernel(stored_bits(p.w.format, p.w.activation).bits, tile, args);
    if (kernel == nullptr || kernel->shared_bytes > device_shared || (p.whole_sums && !is_stream(tile))) continue;
    if (is_stream(tile) ? arch != 90 || !can_stream(p, kernel->tokens) : skinny && p.m <= 2) continue;
    if (tile >= ActivationGroupTile::kWhole128x64 && !p.exact_x_scales) continue;
    if (tile >= ActivationGroupTile::kWgmma128x64 && (!has_wgmma_activation_groups(arch) || p.w.offsets != nullptr))
      continue;
    consider(tile, kernel->rows, kernel->tokens);
  }
  return best;
}

}  // namespace lowbit::cuda
