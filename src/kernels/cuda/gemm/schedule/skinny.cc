#include "kernels/cuda/gemm/schedule/skinny.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/gemm/weight_order/stored_bits.h"

namespace lowbit::cuda {

extern const SkinnyKernel kSkinnyInt8[], kSkinnyHalf[];
extern const int kSkinnyInt8Count, kSkinnyHalfCount;

namespace {

constexpr int kSkinnyWeightBytes = 40 << 10;  // in flight, per 16 rows
constexpr int kMostHalfStep = 8;              // blocks of K of a group: 512 columns

int ceil_div(int a, int b) { return (a + b - 1) / b; }

const SkinnyKernel* find_in(const SkinnyKernel* all, int count, GemmActivation activation, int bits, int64_t rows) {
  for (const SkinnyKernel* k = all; k != all + count; ++k)
    if (k->activation == activation && k->bits == bits && k->rows >= rows) return k;
  return nullptr;
}

/// Byte positions in shared memory for one token; the bytes in all.
int64_t lay_out_gemv(GemmArgs& args) {
  const int64_t scales = (args.groups > 1 ? int64_t{args.row_tiles} * args.groups : args.depth) * 64;
  const int64_t sums = int64_t{args.row_tiles} * args.slots * 64, step_bytes = args.step_blocks * args.lane_words * 256;
  const int64_t x = int64_t{ceil_div(args.k_blocks, args.step_blocks)} * args.step_blocks * 128;
  args.sums_at = int(scales);
  args.x_at = int(scales + sums);
  args.weights_at = int(scales + sums + x);
  return scales + sums + x + args.depth * gemv_slots(int(step_bytes)) * step_bytes;
}

/// Tiles of a block, at most: those at one position of their panels of eight are dealt to the blocks of that position
/// (gemv_stride()).
int most_tiles(int tiles, int blocks) {
  int most = 1;
  for (int position = 0; position < std::min(8, blocks); ++position)
    most = std::max(most, ceil_div(ceil_div(tiles - position, 8), ceil_div(blocks - position, 8)));
  return most;
}

/// One token: warps get whole groups and whole steps, blocks as many tiles as there is room for: as few waves of blocks
/// as can be. A multiprocessor has one block of a launch, short rows more of fewer warps, and room for the next
/// launch's. As many warps as fit; below eight of them rather another wave.
bool cut_gemv(const GemmProblem& p, int processors, int device_shared, bool overlap, GemmArgs& args) {
  const bool half = p.w.activation == GemmActivation::kF16 || p.w.activation == GemmActivation::kBf16;
  constexpr int kMostWarps = kSkinnyThreads / 32, kFewestWarps = 8, kReserved = 1 << 10;  // bytes that the device takes
  args.step_blocks = half ? 2 : 1;
  const int step_batches = 2 * args.step_blocks, tiles = ceil_div(args.n, 16);
  const int align = args.groups > 1 ? args.slot_batches / std::gcd(args.slot_batches, step_batches) : 1;
  if (half && align * args.step_blocks > kMostHalfStep) return false;  // too few warps would share K
  const int parts = ceil_div(ceil_div(args.k_blocks, args.step_blocks), align);
  const auto fits = [&](int row_tiles, int most_warps, int room) {
    const int each = ceil_div(parts, std::min(most_warps, parts));
    args.row_tiles = row_tiles;
    args.warp_steps = each * align;
    args.warp_groups = args.groups > 1 ? args.warp_steps * step_batches / args.slot_batches : 0;
    args.depth = ceil_div(parts, each);
    args.slots = !half && args.groups > 1 ? args.groups : args.depth;
    return row_tiles <= 2 * args.depth && lay_out_gemv(args) <= room;  // a thread for each row
  };
  const int beside = kMostWarps / std::min(kMostWarps, parts);  // blocks of a launch on a multiprocessor
  const int wave = processors * (overlap || tiles > 2 * processors ? beside : 2 * beside);
  const int shared = (device_shared + kReserved) / ((overlap ? 2 : 1) * beside) - kReserved;
  for (const int room : {shared, device_shared}) {
    if (!fits(1, kFewestWarps, room)) continue;
    for (int waves = ceil_div(tiles, wave * 2 * kMostWarps);; ++waves) {
      args.skinny_blocks = std::min(tiles, wave * waves);
      for (int warps = kMostWarps; warps >= kFewestWarps; --warps)
        if (fits(most_tiles(tiles, args.skinny_blocks), warps, room)) return true;
    }
  }
  return false;
}

}  // namespace

int skinny_shared_bytes(const GemmArgs& args) {
  if (args.m > 1) return SkinnyOffsets(args).bytes;
  GemmArgs one = args;
  return int(lay_out_gemv(one));
}

const SkinnyKernel* find_skinny_kernel(GemmActivation activation, int bits, int64_t rows) {
  const bool half = activation == GemmActivation::kF16 || activation == GemmActivation::kBf16;
  return half ? find_in(kSkinnyHalf, kSkinnyHalfCount, activation, bits, rows)
              : find_in(kSkinnyInt8, kSkinnyInt8Count, activation, bits, rows);
}

bool cut_skinny(const GemmProblem& p, int processors, int device_shared, bool overlap, GemmArgs& args) {
  const bool half = p.w.activation == GemmActivation::kF16 || p.w.activation == GemmActivation::kBf16;
  if (args.n == 0 || args.k == 0 || p.w.offsets != nullptr || p.m < 1 || p.m > kSkinnyTokens) return false;
  if (p.m > 1 && args.x_aligned == 0) return false;
  const int batch_k = half ? 32 : 64, batches = ceil_div(args.k, batch_k);
  if (args.groups > 1 && args.group % batch_k != 0) return false;
  args.slot_batches = args.groups > 1 ? args.group / batch_k : batches;
  args.scale_batches = !half ? args.slot_batches : args.groups > 1 && args.slot_batches % 2 != 0 ? 1 : 2;
  args.lane_words = stored_width(stored_bits(p.w.format, p.w.activation).bits) / (half ? 2 : 1);
  if (p.m == 1) return cut_gemv(p, processors, device_shared, overlap, args);
  // Warps of a block: more where there are few blocks and much to read.
  const int tiles = args.packs * 4, words = batches * args.lane_words;
  args.row_tiles = tiles > processors ? 2 : 1;
  args.skinny_blocks = ceil_div(args.n, 16 * args.row_tiles);
  const bool long_rows = words >= 128 && tiles <= 2 * processors;
  const int most = args.row_tiles == 2 || long_rows ? kSkinnyThreads / 32 / args.row_tiles : 8;
  const int step = half ? args.scale_batches : args.groups > 1 ? args.slot_batches : 1, steps = ceil_div(batches, step);
  const int each = ceil_div(steps, std::min(most, steps));
  args.warp_batches = each * step;
  args.depth = ceil_div(steps, each);
  args.slots = !half && args.groups > 1 ? args.groups : args.depth;
  // All of a warp's weights at once where they fit.
  const int room = kSkinnyWeightBytes / (args.depth * 2 * args.lane_words * 128);
  args.half_batches = std::max(1, std::min(room, ceil_div(args.warp_batches, 2)));
  return SkinnyOffsets(args).bytes <= device_shared;
}

}  // namespace lowbit::cuda
