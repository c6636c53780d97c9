#include "kernels/cuda/gemm/few.h"

#include <algorithm>

#include "kernels/cuda/gemm/stored_bits.h"

namespace lowbit::cuda {

extern const FewKernel kFewInt8[], kFewHalf[];
extern const int kFewInt8Count, kFewHalfCount;

namespace {

constexpr int kFewWeightBytes = 40 << 10;  // in flight, per 16 rows

int ceil_div(int a, int b) { return (a + b - 1) / b; }

const FewKernel* find_in(const FewKernel* all, int count, GemmActivation activation, int bits, int64_t rows) {
  for (const FewKernel* k = all; k != all + count; ++k)
    if (k->activation == activation && k->bits == bits && k->rows >= rows) return k;
  return nullptr;
}

}  // namespace

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
  // Warps of a block: more where there are few blocks and much to read.
  const int tiles = args.units * 4, words = batches * args.lane_words;
  args.row_tiles = p.m > 1 && tiles > processors ? 2 : 1;
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
