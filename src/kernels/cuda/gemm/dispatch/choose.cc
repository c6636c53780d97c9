#include "kernels/cuda/gemm/dispatch/choose.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/gemm/schedule/skinny.h"
#include "kernels/cuda/gemm/schedule/split_k.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"

namespace lowbit::cuda {
namespace {

constexpr int kMaxShared = 232448, kMaxSplit = 8;  // sm_90: of a block; portable cluster size
constexpr int kAnyShared = 99 << 10;               // of a block, on every architecture

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
bool is_integer(GemmActivation a) { return a == GemmActivation::kInt8 || a == GemmActivation::kBit; }
int64_t pack_k(GemmActivation a) { return is_integer(a) ? 128 : 64; }
/// Columns; of bits: bytes.
int64_t elements(const GemmWeights& w) { return w.activation == GemmActivation::kBit ? ceil_div(w.k, 8) : w.k; }

/// Microseconds of one call of gemm_warp_specialized.cuh, fitted to clock stamps and times: x arrives 1.2 us behind the
/// previous launch, a block of K takes the tensor cores' time and that of decoding and scaling, sums meet and leave in
/// 1 us, those of two blocks in 1.6; waves do not overlap. Boxes of x that lie half outside of it arrive at half the
/// rate. Where half of the multiprocessors have no block the others are faster.
double specialized_microseconds(const WgmmaKernel& kernel, const GemmProblem& p, int split, int processors) {
  const double bm = kernel.bm, packs = kernel.tile_packs;
  const int64_t blocks = ceil_div(ceil_div(p.w.k, pack_k(p.w.activation)), split);
  const int64_t ctas = ceil_div(p.m, kernel.bm) * ceil_div(p.w.n, 64 * kernel.tile_packs) * split;
  const double alone = 0.0315 + packs * (0.0269 + 0.00098 * bm);
  const double block = alone * (p.m < kernel.bm ? 2.0 : 1.0) * (2 * ctas <= processors ? 0.88 : 1.0);
  return double(ceil_div(ctas, processors)) * (2.2 + (split > 1 ? 0.6 : 0.0) + double(blocks) * block);
}

/// Microseconds of one call with int8 and groups of one block of K, of the tiles that scale one block under the
/// products of another; 0 for other kernels and problems. Measured: what a block of K takes, alone on a multiprocessor
/// and beside another block.
double overlapped_microseconds(const WgmmaKernel& kernel, const GemmProblem& p, int bits, int split, int processors) {
  if (p.w.activation != GemmActivation::kInt8 || p.w.group != 128 || group_count(p.w) == 1 || kernel.scale_at != 1)
    return 0;
  if (split != 1 || p.x_scale_group_stride != 0) return 0;
  struct Measured {
    int bm, packs;
    double alone, beside;
  };
  static constexpr Measured kAll[] = {{32, 1, 0.20, 0.27}, {64, 1, 0.205, 0.32}, {64, 2, 0.33, 0}, {128, 2, 0.47, 0}};
  const auto* const m = std::find_if(std::begin(kAll), std::end(kAll), [&](const Measured& v) {
    return v.bm == kernel.bm && v.packs == kernel.tile_packs;
  });
  if (m == std::end(kAll)) return 0;
  const int64_t tiles = ceil_div(p.m, kernel.bm) * ceil_div(p.w.n, 64 * kernel.tile_packs);
  const int64_t blocks = ceil_div(p.w.k, 128),
                waves = ceil_div(tiles, int64_t{processors} * kernel.blocks_per_processor);
  const bool beside = kernel.blocks_per_processor > 1 && tiles > processors;
  const double bytes = 128.0 * kernel.bm + kernel.tile_packs * 64.0 * 16 * bits;
  const double fill = bytes * double(std::min<int64_t>(tiles, int64_t{processors} * (beside ? 2 : 1))) / 13e6;
  const double block = std::max(beside ? m->beside : m->alone, fill);
  // The next launch asks for its weights meanwhile where it finds multiprocessors without a block.
  const bool apart = 2 * tiles <= processors && kernel.blocks_per_processor == 1 && p.m >= kernel.bm;
  const bool spread = kernel.bm == 32 && tiles <= processors && 4 * tiles >= 3 * processors;  // spread_evenly()
  const double start = apart ? 0.8 : spread ? 0.6 : 1.5;
  return start + double(waves) * (double(blocks) * block + 0.2 + kernel.bm * kernel.tile_packs / 300.0);
}

/// Microseconds of one call. The constants were fitted to an H200's times of every instance on the shapes of
/// docs/cuda-gemm.md (132 multiprocessors, dependent launches): what a warpgroup needs for a block of K when nothing
/// else holds it up, the tensor cores' own time, and what the L2 delivers.
double microseconds(const WgmmaKernel& kernel, const GemmProblem& p, int bits, int split, int processors) {
  if (is_warp_specialized(kernel)) return specialized_microseconds(kernel, p, split, processors);
  if (const double t = overlapped_microseconds(kernel, p, bits, split, processors); t > 0) return t;
  const bool int8 = is_integer(p.w.activation), many = group_count(p.w) > 1;
  const double bm = kernel.bm, packs = kernel.tile_packs, k = double(elements(p.w));
  const int64_t blocks = ceil_div(ceil_div(elements(p.w), pack_k(p.w.activation)), split);
  const int64_t tiles = ceil_div(p.m, kernel.bm) * ceil_div(p.w.n, 64 * kernel.tile_packs), ctas = tiles * split;
  // Clusters of four and eight do not fill a group of multiprocessors to the last one.
  const int64_t usable = split <= 2 ? processors : processors - (split == 4 ? 8 : 20);
  const int64_t waves = ceil_div(ctas, usable * kernel.blocks_per_processor);
  const bool shared = kernel.blocks_per_processor > 1 && ctas > usable;

  // One warpgroup, one block on a multiprocessor and nothing to join: measured apart.
  const bool alone = int8 && !many && kernel.bm == 64 && kernel.tile_packs == 1 && kernel.blocks_per_processor == 1;
  const double chain = alone  ? 0.197
                       : int8 ? (many ? 0.20 + 0.0035 * bm : 0.10 + 0.001 * bm) + 0.05 * packs
                              : 0.15 + 0.0012 * bm + 0.05 * packs;
  // Small tiles slow down when most multiprocessors want the same tokens.
  const double crowd = bm <= (int8 ? 16 : 32) && ctas * 4 >= usable * 3 && split == 1 ? 1.45 : 1.0;
  const double math = 2 * bm * packs / 1750;
  const double pack_bytes = 64.0 * double(pack_k(p.w.activation)) * bits / 8;
  const double fill = (bm * 128 + packs * pack_bytes) * double(std::min<int64_t>(ctas, usable)) / 7.2e6;
  const double block = std::max({chain * (shared ? 1.4 : crowd), math, fill});
  const double epilogue = 0.2 + bm * packs / 300;
  // Sums of many groups are sent one by one and accumulated behind the last of them: costly, more so with two blocks at
  // work.
  const double join = split == 1      ? 0
                      : int8 && !many ? 1.2 + 0.1 * split
                      : int8          ? 2.2 * split * (ctas > usable ? 2.0 : 1.0)
                                      : 1.0 + 0.5 * split;
  const double memory = (double(p.w.n) * k * bits / 8 + double(p.m) * double(p.w.n) * 2) / 4.2e6;
  return (alone ? 1.45 : 2.8) + std::max(memory, double(waves) * (double(blocks) * block + epilogue)) + join;
}

/// A split-K kernel. Measured (4096 x 4096, 16 rows): integers with groups in two parts (4.9 us; four: 9.0, the sums go
/// from block to block), others with one scale in as few as fit (3.6; four: 4.1), two blocks at most on a
/// multiprocessor; f16 in as few as fit, one block on a multiprocessor: clusters of four cannot be spread evenly.
bool choose_split_k(const GemmProblem& p, const WgmmaTable& table, int processors, GemmChoice& choice) {
  for (int i = 0; i < table.count; ++i) {
    const WgmmaKernel& kernel = table.kernels[i];
    if (!is_split_k(kernel)) continue;
    const int64_t tiles = ceil_div(padded_rows(p.w.n) / 64, kernel.tile_packs);
    for (int split = 2; split <= kMaxSplit; split *= 2) {
      if (tiles * split > int64_t{processors} * kernel.blocks_per_processor || !can_run(kernel, p, split)) continue;
      if (SplitKSums(kernel.scale_at) == SplitKSums::kHeld && split > 2) continue;
      if (SplitKSums(kernel.scale_at) == SplitKSums::kScaled && 2 * tiles * split < processors) continue;
      choice = {&kernel, false, split, 0};
      return true;
    }
  }
  return false;
}

}  // namespace

const WgmmaTable* find_wgmma_table([[maybe_unused]] GemmActivation activation, [[maybe_unused]] int bits) {
#if defined(LOWBIT_WGMMA)  // a build for compute capability 9.0
  for (const WgmmaTable* t :
       {&kWgmmaInt8Bits2, &kWgmmaInt8Bits4, &kWgmmaInt8Bits8, &kWgmmaBits, &kWgmmaF16Bits2, &kWgmmaF16Bits4,
        &kWgmmaF16Bits8, &kWgmmaF16E4m3, &kWgmmaBf16Bits2, &kWgmmaBf16Bits4, &kWgmmaBf16Bits8, &kWgmmaBf16E4m3})
    if (t->activation == activation && t->bits == bits) return t;
#endif
  return nullptr;
}

int shared_bytes(const WgmmaKernel& kernel, const GemmProblem& p, int split) {
  if (is_split_k(kernel)) return cut_split_k(kernel, p, split).bytes;
  if (split == 1 || is_warp_specialized(kernel)) return kernel.shared_bytes;
  const int64_t groups = group_count(p.w);
  const int64_t parts = is_integer(p.w.activation) && groups > 1 ? groups : split;
  const int64_t bytes = kernel.shared_bytes + parts * std::max(1, kernel.pairs / split) * kernel.pair_bytes;
  return int(std::min<int64_t>(bytes, 1 << 30));
}

bool can_run(const WgmmaKernel& kernel, const GemmProblem& p, int split) {
  if (is_split_k(kernel)) return cut_split_k(kernel, p, split).bytes > 0;
  const int64_t groups = group_count(p.w), block_k = pack_k(p.w.activation), blocks = ceil_div(elements(p.w), block_k);
  const int64_t row_bytes = p.w.activation == GemmActivation::kBit ? p.ldx / 8 : p.ldx * (128 / block_k);
  if (p.w.k == 0 || p.w.offsets != nullptr) return false;
  if (reinterpret_cast<uintptr_t>(p.x) % 16 != 0 || row_bytes % 16 != 0) return false;
  if (groups > 1 &&
      (kernel.scale_at == 2 ? p.w.group != block_k / 2 : kernel.scale_at == 0 || p.w.group % block_k != 0))
    return false;
  if (is_warp_specialized(kernel) && (p.w.k % 128 != 0 || (groups > 1 && p.w.group % 128 != 0))) return false;
  if (groups == 1 && kernel.scale_at == 2) return false;
  if (kernel.scale_at == 0 && p.w.k >= kSmallSumColumns && stored_bits(p.w.format, p.w.activation).bits == 2)
    return false;
  if (p.x_scale_group_stride != 0 && (kernel.scale_at == 0 || groups == 1 || p.w.group > 256)) return false;
  if (is_warp_specialized(kernel) && split != kernel.scale_at - kSpecialized + 1) return false;
  if (split == 1) return true;
  if ((kernel.pair_bytes == 0 && !is_warp_specialized(kernel)) || (split & (split - 1)) != 0 || split > kMaxSplit)
    return false;
  const int64_t least = is_warp_specialized(kernel) ? 2 : 1;
  const int64_t step = groups > 1 ? std::max<int64_t>(least, p.w.group / block_k) : least;  // blocks of K between cuts
  const int64_t per_block = ceil_div(ceil_div(blocks, split), step) * step;
  if (per_block * (split - 1) >= blocks) return false;  // an empty block
  return shared_bytes(kernel, p, split) <= kMaxShared;
}

GemmChoice choose(const GemmProblem& p, int arch, int processors) {
  GemmChoice best;
  const int bits = stored_bits(p.w.format, p.w.activation).bits;
  const WgmmaTable* table = arch == 90 ? find_wgmma_table(p.w.activation, bits) : nullptr;
  if (table != nullptr && p.m > 1 && choose_split_k(p, *table, processors, best)) return best;
  // Measured: with more than one row only where groups make the others wait, or with few rows of 16-bit x.
  const bool bits_or_row =
      p.w.activation == GemmActivation::kBit ||
      (p.w.activation == GemmActivation::kInt8 && group_count(p.w) == 1 && p.w.format != FormatId::kTernaryPlanes);
  const int64_t most = arch != 90                   ? kSkinnyTokens
                       : bits_or_row                ? 1
                       : is_integer(p.w.activation) ? kSkinnyTokens
                                                    : kSkinnyTokens / 2;
  if (p.m <= most && can_run_skinny(p, processors, arch == 90 ? kMaxShared : kAnyShared)) {
    best.skinny = true;
    return best;
  }
  if (table == nullptr) return best;
  for (int i = 0; i < table->count; ++i)
    for (int split = 1; split <= kMaxSplit; split *= 2) {
      const WgmmaKernel& kernel = table->kernels[i];
      if (is_split_k(kernel) || !can_run(kernel, p, split)) continue;
      // 64 x 64 of integers in two parts lost to one (4096 x 4096: 8.5 us, 7.8).
      if (split > 1 && is_integer(p.w.activation) && kernel.bm == 64 && kernel.tile_packs == 1) continue;
      const double t = microseconds(kernel, p, stored_width(bits), split, processors);
      if (best.wgmma == nullptr || t < best.microseconds) best = {&kernel, false, split, t};
    }
  return best;
}

}  // namespace lowbit::cuda
