// Launchers of quantized_mm<BITS>, one set of instances per width: nothing branches on BITS.

#include "kernels/cuda/quantized_mm.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantized_mm_gemv.cuh"
#include "kernels/cuda/quantized_mm_rows.cuh"
#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda {
namespace {

constexpr int kAnyWarps = 4, kMostGridRows = 65535, kMostSplit = 8, kManyRows = 32;
constexpr int kSharedBytes =
    96 << 10;  // of parts of one or two tokens; what every device from 8.0 on gives a thread block

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <int BITS>
cudaError_t start_decode(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p,
                         const Device& device, bool overlap, cudaStream_t stream) {
  constexpr int kColumnBytes = 16 / BITS * 64;  // of a chunk, in one column of parts
  const int chunks = static_cast<int>(std::max<int64_t>(1, ceil_div((p.k * BITS + 7) / 8, kChunkBytes)));
  const int columns = static_cast<int>(p.m) * kParts;
  const int pass =
      std::max(1, std::min({chunks, kMostChunks * kDecodeWarps, (kSharedBytes / columns - 64) / kColumnBytes}));
  const int column_bytes =
      (pass * kColumnBytes + 127) / 128 * 128 + 64;  // columns meet alternating halves of the banks
  constexpr int kSums = kDecodeWarps * 16 * 9 * 4;
  const auto kernel = quantized_mm<BITS>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  return launch(kernel, dim3(static_cast<unsigned>(ceil_div(p.n, 16))), dim3(32 * kDecodeWarps),
                static_cast<size_t>(std::max(columns * column_bytes, kSums)), stream, overlap && device.bulk_copies,
                input, weight, output, p, pass, column_bytes);
}

/// Boxes of 16 rows by 128 bytes of the weights; false where rows are not whole, aligned 16 bytes.
template <int BITS>
bool make_weight_map(const uint8_t* weight, const QuantizedConfig& p, CUtensorMap* map) {
  const int64_t row_bytes = (p.k * BITS + 7) / 8;
  if (reinterpret_cast<uintptr_t>(weight) % 16 != 0 || p.weight_stride % 16 != 0 || p.weight_stride < row_bytes ||
      p.k == 0 || encode_tiled() == nullptr)
    return false;
  const cuuint64_t sizes[2] = {cuuint64_t(row_bytes), cuuint64_t(p.n)}, strides[1] = {cuuint64_t(p.weight_stride)};
  const cuuint32_t box[2] = {kLineBytes, 16}, steps[2] = {1, 1};
  return encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(weight), sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// One token on a device with tensor maps (code for 8.0 is empty); false when it is not for quantized_mm_gemv.
template <int BITS, int kSlots>
bool start_gemv(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p, const Device& device,
                bool overlap, cudaStream_t stream, cudaError_t* error) {
  const auto kernel = quantized_mm_gemv<BITS, kSlots>;
  if (!device.bulk_copies || p.m != 1 || p.groups > 1) return false;
  const int64_t lines = ceil_div((p.k * BITS + 7) / 8, kLineBytes), warp_lines = ceil_div(lines, kLineWarps);
  const int64_t shared =
      kLinePartsAt<kSlots> + int64_t{kLineWarps} * kParts * line_part_bytes<BITS>(static_cast<int>(warp_lines));
  CUtensorMap map;
  if (warp_lines > 64 || shared > device.shared_bytes || !make_weight_map<BITS>(weight, p, &map)) return false;
  *error = allow_shared(reinterpret_cast<const void*>(kernel), device);
  if (*error != cudaSuccess) return true;
  // A block for every multiprocessor, a few idle: of two launches on the device none has two blocks on one.
  const int64_t blocks = ceil_div(p.n, kLineRows);
  const int64_t grid = blocks < device.processors && 4 * blocks >= 3 * device.processors ? device.processors : blocks;
  *error = launch(kernel, dim3(static_cast<unsigned>(grid)), dim3(32 * kLineWarps), static_cast<size_t>(shared), stream,
                  overlap, map, input, output, p, static_cast<int>(warp_lines));
  return true;
}

/// Clusters of `split` blocks that the device runs at a time. The driver tells; asked once per kernel, device and
/// shape.
int clusters_at_a_time(const void* kernel, const Device& device, int split, int threads, int shared) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, int, int, int>, int> known;
  const std::lock_guard lock(mutex);
  const auto [place, added] = known.try_emplace({kernel, device.index, split, threads, shared}, 0);
  if (!added) return place->second;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {1, 1, static_cast<unsigned>(split)};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, 1, static_cast<unsigned>(split));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (cudaOccupancyMaxActiveClusters(&place->second, kernel, &config) != cudaSuccess) {
    (void)cudaGetLastError();
    place->second = 0;
  }
  return place->second;
}

/// Rows of x of a block and how its warps stand, for a device that gives a block so much shared memory.
template <int BITS, int RowWarps>
RowsCut cut_rows(const QuantizedConfig& p, const Device& device, const void* kernel, int& shared) {
  using P = Piece<BITS>;
  RowsCut c{};
  c.column_warps = p.m > 16 ? 2 : 1;
  c.depth = 4 / c.column_warps;
  const auto measure = [&] {
    c.rows_of_x = kWarpRowsOfX * c.column_warps;
    c.pass_pieces = P::kOfWarp * c.depth;
    c.column_bytes = kPassQuads * c.depth * 64 + 64;  // columns meet alternating halves of the banks
    const int rows = static_cast<int>(std::min<int64_t>(p.m, c.rows_of_x));
    shared = std::max(rows * kParts * c.column_bytes, c.depth * rows * 32 * RowWarps * 4);
  };
  for (measure(); shared > device.shared_bytes && c.column_warps * c.depth > 1; measure()) {
    int& less = c.depth > 1 ? c.depth : c.column_warps;
    less /= 2;
  }
  // Blocks share K as long as all of them run at a time, and each has a whole pass to do.
  const int64_t pieces = std::max<int64_t>(1, ceil_div((p.k * BITS + 7) / 8, P::kBytes));
  const int64_t tiles = ceil_div(p.n, 32 * RowWarps) * ceil_div(p.m, c.rows_of_x);
  const int threads = 32 * RowWarps * c.column_warps * c.depth;
  c.split = 1;
  while (device.bulk_copies && c.split < kMostSplit && 2 * c.split * c.pass_pieces <= pieces &&
         tiles <= clusters_at_a_time(kernel, device, 2 * c.split, threads, shared))
    c.split *= 2;
  c.split_pieces = static_cast<int>(ceil_div(pieces, c.split));
  return c;
}

template <int BITS, int RowWarps>
cudaError_t start_rows(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p,
                       const Device& device, cudaStream_t stream) {
  int shared = 0;
  const auto kernel = quantized_mm_rows<BITS, RowWarps>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const RowsCut c = cut_rows<BITS, RowWarps>(p, device, reinterpret_cast<const void*>(kernel), shared);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.n, 32 * RowWarps)),
                  static_cast<unsigned>(ceil_div(p.m, c.rows_of_x)), static_cast<unsigned>(c.split));
  const dim3 block(static_cast<unsigned>(32 * RowWarps * c.column_warps * c.depth));
  // Without overlap: blocks of the next launch would be spread unevenly (measured: 16 to 33 % slower from 8 rows on).
  return launch_cluster(kernel, grid, block, dim3(1, 1, static_cast<unsigned>(c.split)), static_cast<size_t>(shared),
                        stream, false, input, weight, output, p, c);
}

}  // namespace

template <int BITS>
cudaError_t launch_quantized_mm(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p,
                                bool overlap, cudaStream_t stream) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  constexpr int kChunkColumns = 8 * kChunkBytes / BITS;
  if ((p.groups > 1 && p.group % kChunkColumns != 0) || p.m > int64_t{kMostGridRows} * kWarpRowsOfX) {
    const dim3 grid(static_cast<unsigned>((p.n + kAnyWarps - 1) / kAnyWarps),
                    static_cast<unsigned>(std::min<int64_t>(p.m, kMostGridRows)));
    return launch(quantized_mm_any<BITS>, grid, dim3(32 * kAnyWarps), 0, stream, false, input, weight, output, p);
  }
  if constexpr (BITS == 8) {
    cudaError_t e = cudaSuccess;
    if (overlap && start_gemv<BITS, kSlotsOverlapping>(input, weight, output, p, device, true, stream, &e)) return e;
    if (start_gemv<BITS, kSlotsAlone>(input, weight, output, p, device, overlap, stream, &e)) return e;
  }
  if (p.m <= kDecodeRows) return start_decode<BITS>(input, weight, output, p, device, overlap, stream);
  // 128 rows of weights share what is read of x, where that is much.
  return p.m > kManyRows ? start_rows<BITS, 4>(input, weight, output, p, device, stream)
                         : start_rows<BITS, 2>(input, weight, output, p, device, stream);
}

template cudaError_t launch_quantized_mm<1>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool,
                                            cudaStream_t);
template cudaError_t launch_quantized_mm<2>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool,
                                            cudaStream_t);
template cudaError_t launch_quantized_mm<4>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool,
                                            cudaStream_t);
template cudaError_t launch_quantized_mm<8>(const void*, const uint8_t*, void*, const QuantizedConfig&, bool,
                                            cudaStream_t);

}  // namespace lowbit::cuda
