#include "kernels/cuda/gemm/schedule/activation_groups.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/gemm/weight_order/stored_bits.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostWarps = kActivationGroupSkinnyThreads / 32;
constexpr int64_t kFewestBytes = 99 << 10;  // of shared memory of a block, on every architecture

int ceil_div(int a, int b) { return (a + b - 1) / b; }

const ActivationGroupKernel* kernels_of(int bits) {
  return bits == 2   ? kActivationGroupsBits2
         : bits == 4 ? kActivationGroupsBits4
         : bits == 8 ? kActivationGroupsBits8
                     : nullptr;
}

}  // namespace

bool has_bulk_activation_groups([[maybe_unused]] int arch) {
#if defined(LOWBIT_WGMMA)  // a build for compute capability 9.0
  return arch == 90;
#else
  return false;
#endif
}

const ActivationGroupKernel* find_activation_group_kernel(int bits, ActivationGroupTile tile,
                                                          const ActivationGroupArgs& args) {
  const ActivationGroupKernel* const all = kernels_of(bits);
  if (all == nullptr) return nullptr;
  const int wanted = tile == ActivationGroupTile::kSkinny ? args.whole_groups : args.per_scale;
  const auto* const exact = std::find_if(all, all + kActivationGroupInstances, [&](const ActivationGroupKernel& k) {
    return k.tile == tile && k.per_scale == wanted;
  });
  if (exact != all + kActivationGroupInstances) return exact;
  const auto* const any = std::find_if(all, all + kActivationGroupInstances, [&](const ActivationGroupKernel& k) {
    return k.tile == tile && k.per_scale == 0;
  });
  return any == all + kActivationGroupInstances ? nullptr : any;
}

void cut_activation_groups_skinny(ActivationGroupArgs& args) {
  // Two activation groups to a batch: so many batches hold whole groups.
  const int step = args.per_scale / std::gcd(args.per_scale, 2), batches = ceil_div(args.k, 64);
  args.whole_groups = step <= kActivationGroupSkinnyBatches ? 1 : 0;
  const int align = args.whole_groups != 0 ? step : 1, most = kActivationGroupSkinnyBatches / align * align;
  args.warp_batches = std::min(most, ceil_div(ceil_div(batches, kMostWarps), align) * align);
  args.depth = std::min(kMostWarps, ceil_div(batches, args.warp_batches));
}

int activation_group_skinny_threads(const ActivationGroupArgs& args) {
  return std::max(32 * args.depth, ceil_div(16 * std::min(args.m, kActivationGroupSkinnyTokens), 32) * 32);
}

ActivationGroupTile choose_activation_groups(const GemmProblem& p, int64_t per_scale, int arch,
                                             int processors, int device_shared) {
  const int64_t scale_bytes = (group_count(p.w) / per_scale + 1) * 64;
  if (p.m <= kActivationGroupSkinnyTokens && scale_bytes < kFewestBytes / 2) return ActivationGroupTile::kSkinny;
  // The busiest multiprocessor decides: its outputs, and for each tile as much as half of 64 x 32 ones beside them.
  constexpr double kOfTile = 1024;
  ActivationGroupArgs args{};
  args.per_scale = int(std::clamp<int64_t>(per_scale, 1, group_count(p.w)));
  ActivationGroupTile best = ActivationGroupTile::k64x32;
  double least = 0;
  for (auto tile = ActivationGroupTile::kSplit32x16; tile <= ActivationGroupTile::kBulk128x96;
       tile = static_cast<ActivationGroupTile>(static_cast<int>(tile) + 1)) {
    const ActivationGroupKernel* const kernel =
        find_activation_group_kernel(stored_bits(p.w.format, p.w.activation).bits, tile, args);
    if (kernel == nullptr || kernel->shared_bytes > device_shared) continue;
    if (tile >= ActivationGroupTile::kBulk128x128 && (!has_bulk_activation_groups(arch) || p.w.offsets != nullptr)) continue;
    const int64_t tiles = (p.m + kernel->tokens - 1) / kernel->tokens * ((p.w.n + kernel->rows - 1) / kernel->rows);
    const double outputs = double(kernel->rows) * kernel->tokens;
    const double cost = double((tiles + processors - 1) / processors) * (outputs + kOfTile);
    if (least != 0 && cost >= least) continue;
    least = cost, best = tile;
  }
  return best;
}

}  // namespace lowbit::cuda
