// How the kernels for few tokens cut K.

#include <algorithm>
#include <numeric>

#include "kernels/cuda/gemm/schedule/activation_groups.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostWarps = kActivationGroupSkinnyThreads / 32;

int parts_of(int all, int each) { return (all + each - 1) / each; }

}  // namespace

void cut_activation_groups_skinny(ActivationGroupArgs& args) {
  // Two activation groups to a batch: so many batches hold whole groups.
  const int step = args.per_scale / std::gcd(args.per_scale, 2), batches = parts_of(args.k, 64);
  args.whole_groups = step <= kActivationGroupSkinnyBatches ? 1 : 0;
  const int align = args.whole_groups != 0 ? step : 1, most = kActivationGroupSkinnyBatches / align * align;
  args.warp_batches = std::min(most, parts_of(parts_of(batches, kMostWarps), align) * align);
  args.depth = std::min(kMostWarps, parts_of(batches, args.warp_batches));
}

int activation_group_skinny_threads(const ActivationGroupArgs& args) {
  return std::max(32 * args.depth, parts_of(16 * std::min(args.m, kActivationGroupSkinnyTokens), 32) * 32);
}

}  // namespace lowbit::cuda
