#include "kernels/cuda/gemm/few.h"

#include <algorithm>

#include "kernels/cuda/gemm/stored_bits.h"

namespace lowbit::cuda {

extern const FewKernel kFewInt8[], kFewHalf[];
extern const int kFewInt8Count, kFewHalfCount;

namespace {

constexpr int kFewWeightBytes = 40 << 10;  // in flight, per 16 rows
constexpr int kMostHalfStep = 8;           // blocks of K of a group: 512 columns

int ceil_div(int a, int b) { return (a + b - 1) / b; }

const FewKernel* find_in(const FewKernel* all, int count, GemmActivation activation, int bits, int64_t rows) {
  for (const FewKernel* k = all; k != all + count; ++k)
    if (k->activation == activation && k->bits == bits && k->rows >= rows) return k;
  return nullptr;
}

/// One row of x: warps get whole groups and whole blocks of K.
bool cut_one_row(const GemmProblem& p, int processors, int device_shared, GemmArgs& args) {
  const bool half = p.w.activation == GemmActivation::kF16 || p.w.activation == GemmActivation::kBf16;
  const int tiles = args.units * 4;
  // Measured: as many warps as fit where there are few blocks; elsewhere several blocks share a multiprocessor.
  const int most = tiles <= 2 * processors ? kFewThreads / 32 : half ? 8 : 12;
  int step = 1;  // blocks of K
  if (args.groups > 1) step = args.slot_batches % 2 == 0 ? args.slot_batches / 2 : args.slot_batches;
  if (half && step > kMostHalfStep) return false;  // too few warps would share K
  const int steps = ceil_div(args.unit_blocks, step), each = ceil_div(steps, std::min(most, steps));
  args.row_tiles = 1;
  args.warp_blocks = each * step;
  args.warp_groups = args.groups > 1 ? 2 * args.warp_blocks / args.slot_batches : 0;
  args.depth = ceil_div(steps, each);
  args.slots = !half && args.groups > 1 ? args.groups : args.depth;
  args.ring = std::min(kOneRowRing, args.warp_blocks);
  const int64_t scales = args.groups > 1 ? int64_t{args.groups} * 64 : 0, sums = int64_t{args.slots} * 64;
  const int64_t bytes =
      scales + sums + int64_t{args.unit_blocks} * 128 + args.depth * args.ring * args.lane_words * 256;
  if (bytes > device_shared) return false;
  args.sums_at = int(scales);
  args.x_at = int(scales + sums);
  args.weights_at = args.x_at + args.unit_blocks * 128;
  return true;
}

}  // namespace

int few_shared_bytes(const GemmArgs& args) {
  return args.m == 1 ? args.weights_at + args.depth * args.ring * args.lane_words * 256 : FewPlaces(args).bytes;
}

const FewKernel* find_few_kernel(GemmActivation activation, int bits, int64_t rows) {
  const bool half = activation == GemmActivation::kF16 || activation == GemmActivation::kBf16;
  return half ? find_in(kFewHalf, kFewHalfCount, activation, bits, rows)
              : find_in(kFewInt8, kFewInt8Count, activation, bits, rows);
}

bool cut_few(const GemmProblem& p, int processors, int device_shared, GemmArgs& args) {
  const bool half = p.w.activation == GemmActivation::kF16 || p.w.activation == GemmActivation::kBf16;
  if (args.k == 0 || p.w.offsets != nullptr || p.m < 1 || p.m > kFewRows) return false;
  if (p.m > 1 && args.x_aligned == 0) return false;
  const int batch_k = half ? 32 : 64, batches = ceil_div(args.k, batch_k);
  if (args.groups > 1 && args.group % batch_k != 0) return false;
  args.slot_batches = args.groups > 1 ? args.group / batch_k : batches;
  args.fold_batches = !half ? args.slot_batches : args.groups > 1 && args.slot_batches % 2 != 0 ? 1 : 2;
  args.lane_words = stored_width(stored_bits(p.w.format, p.w.activation).bits) / (half ? 2 : 1);
  if (p.m == 1) return cut_one_row(p, processors, device_shared, args);
  // Warps of a block: more where there are few blocks and much to read.
  const int tiles = args.units * 4, words = batches * args.lane_words;
  args.row_tiles = tiles > processors ? 2 : 1;
  const bool long_rows = words >= 128 && tiles <= 2 * processors;
  const int most = args.row_tiles == 2 || long_rows ? kFewThreads / 32 / args.row_tiles : 8;
  const int step = half ? args.fold_batches : args.groups > 1 ? args.slot_batches : 1, steps = ceil_div(batches, step);
  const int each = ceil_div(steps, std::min(most, steps));
  args.warp_batches = each * step;
  args.depth = ceil_div(steps, each);
  args.slots = !half && args.groups > 1 ? args.groups : args.depth;
  // All of a warp's weights at once where they fit.
  const int room = kFewWeightBytes / (args.depth * 2 * args.lane_words * 128);
  args.half_batches = std::max(1, std::min(room, ceil_div(args.warp_batches, 2)));
  return FewPlaces(args).bytes <= device_shared;
}

}  // namespace lowbit::cuda
