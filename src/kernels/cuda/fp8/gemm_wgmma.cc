#include "kernels/cuda/fp8/gemm_wgmma.h"

#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda {
namespace fp8 {

namespace {

int64_t tiles_of(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

/// As many thread blocks as the multiprocessors take at once, each with as deep a pipeline as fits.
Cut cut_skinny(const Fp8Gemm& g, int64_t processors) {
  constexpr int kMostRows = 32;
  Cut cut{.skinny = true, .q = 8};
  while (cut.q < g.m && cut.q < kMostRows) cut.q *= 2;
  const int64_t tiles = tiles_of(g.n, cut.p) * tiles_of(g.m, cut.q);
  if (tiles > processors) {
    cut.blocks = tiles > 2 * processors ? 3 : 2;
    return cut;
  }
  constexpr int64_t kMostSplit = 4, kLeastBlocks = 4;
  const int64_t unused = processors / 10;  // clusters of more than two do not fit everywhere
  const int64_t blocks = tiles_of(g.k, kFp8Block);
  for (int split = 2; split <= kMostSplit && blocks >= split * kLeastBlocks; ++split)
    if (tiles * split <= (split == 2 ? processors : processors - unused)) cut.split = split;
  return cut;
}

/// 33 to 128 rows, which memory bounds: as many thread blocks as multiprocessors, or small tiles, whose weights come
/// while others are stored.
Cut cut_few(const Fp8Gemm& g, int64_t processors) {
  const int64_t down = tiles_of(g.m, 64);
  if (down * tiles_of(g.n, 32) <= processors) return {.p = 64, .q = 32};
  if (down == 1 || down * tiles_of(g.n, 64) <= processors) return {.p = 64, .q = 64};
  return {.p = 128, .q = 64};
}

/// The tile of the least time: rounds of tiles, of which the last one takes half a round however few tiles it has.
Cut cut_many(const Fp8Gemm& g, int64_t processors) {
  struct Shape {
    int p, q;
    double cost;  // microseconds for a block of K, measured on an H100
  };
  static constexpr Shape kShapes[] = {{128, 64, 0.28},  {128, 96, 0.36},  {128, 128, 0.39}, {128, 144, 0.50},
                                      {128, 192, 0.59}, {192, 128, 0.58}, {256, 128, 0.75}};
  // Blocks of K: summing and storing that no other tile hides; filling the pipeline and the last store.
  constexpr double kPerTile = 2, kOnce = 2;
  const auto has_row_scales = [](const Shape& s) { return s.p == 192 || (s.p == 128 && (s.q == 64 || s.q == 128)); };
  Cut best;
  double least = 0;
  for (const Shape& shape : kShapes) {
    if (g.b_rows == 1 && !has_row_scales(shape)) continue;
    const int64_t tiles = tiles_of(g.m, shape.p) * tiles_of(g.n, shape.q), full = (tiles - 1) / processors;
    const double rounds = double(full) + 0.5 + 0.5 * double(tiles - full * processors) / double(processors);
    const double cost = shape.cost * (rounds * (double(tiles_of(g.k, kFp8Block)) + kPerTile) + kOnce);
    if (best.q != 0 && cost >= least) continue;
    best = {.p = shape.p, .q = shape.q};
    least = cost;
  }
  return best;
}

}  // namespace

Cut choose_cut(const Fp8Gemm& g, const Device& device) {
  if (g.m <= 32) return cut_skinny(g, device.processors);
  return g.m <= 128 ? cut_few(g, device.processors) : cut_many(g, device.processors);
}

Cut choose_group_cut(const Fp8Gemm& g, const Fp8Groups& groups, const Device& device) {
  constexpr int64_t kFewRows = 32, kManyRows = 512;
  const int64_t rows = tiles_of(g.m, groups.count);  // of a group
  if (rows <= kFewRows) {
    Fp8Gemm group = g;
    group.m = rows;
    group.n = g.n * groups.count;  // as many tiles as groups have together
    return cut_skinny(group, device.processors);
  }
  if (rows >= kManyRows) return {.p = 256, .q = 128};
  return {.p = 128, .q = groups.count * tiles_of(rows, 128) * tiles_of(g.n, 128) < device.processors ? 64 : 128};
}

}  // namespace fp8

namespace {
[[maybe_unused]] bool in_sixteens(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 16 == 0;
}
}  // namespace

bool gemm_fp8_wgmma(const DeviceGemm& g, const Fp8Groups& groups, cudaStream_t stream, cudaError_t* error) {
#if defined(LOWBIT_WGMMA)
  Device device;
  if (current_device(&device) != cudaSuccess || device.arch < 90 || device.arch >= 100 || encode_tiled() == nullptr)
    return false;
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
  if (g.k == 0 || g.k > kLargest || g.m > kLargest || g.n > kLargest || g.b_rows > kLargest) return false;
  const bool row_scales = g.b_rows == 1 && groups.count == 0 && !g.exact && g.n * g.ldb_scales <= kLargest;
  if (g.b_rows % kFp8Block != 0 && !row_scales) return false;
  const int64_t scales = g.a_scales_by_column ? (g.k + kFp8Block - 1) / kFp8Block * g.lda_scales : g.m * g.lda_scales;
  if (scales > kLargest) return false;
  if (!in_sixteens(g.a, g.lda) || !in_sixteens(g.b, g.ldb) || g.n * groups.count > kLargest) return false;
  const fp8::Cut cut = groups.count > 0 ? fp8::choose_group_cut(g, groups, device) : fp8::choose_cut(g, device);
  return cut.skinny ? fp8::launch_skinny(g, groups, cut, device, stream, error)
                    : fp8::launch_many_rows(g, groups, cut, device, stream, error);
#else
  (void)g, (void)groups, (void)stream, (void)error;
  return false;
#endif
}

}  // namespace lowbit::cuda
