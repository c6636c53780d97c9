// Launchers of quantized_mm<BITS>, one instance per width and shape of thread block: nothing branches on BITS.

#include "kernels/cuda/quantized_mm.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantized_mm_tensor.cuh"

namespace lowbit::cuda {
namespace {

constexpr int kAnyWarps = 4;
constexpr int kSharedBytes = 96 << 10;  // of parts of x; what every device from 8.0 on gives a thread block

using Decode = TensorShape<8, 1, 1, 1, 8>;   // 1 or 2 rows of x
using Batch = TensorShape<8, 2, 1, 6, 2>;    // up to 16
using Prefill = TensorShape<8, 2, 4, 3, 4>;  // 32 at a time
using Wide = TensorShape<16, 2, 8, 3, 4>;    // 64 at a time; needs more shared memory

template <int BITS, class Shape>
cudaError_t start(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p, int shared_limit,
                  const Device& device, bool overlap, cudaStream_t stream) {
  constexpr int kPairBytes = 16 / BITS * 64;  // of a chunk, in one column of parts
  const int chunks = static_cast<int>(std::max<int64_t>(1, ((p.k * BITS + 7) / 8 + kChunkBytes - 1) / kChunkBytes));
  const int columns = static_cast<int>(std::min<int64_t>(p.m, Shape::kRowsOfX)) * kParts;
  const int stored = Shape::kColumnTiles == 1 ? columns : Shape::kColumns;  // wide shapes read all columns
  int pass = std::min({chunks, Shape::kMostChunks * Shape::kDepthWarps, (shared_limit / stored - 64) / kPairBytes});
  pass = std::max(pass, 1);
  const int column_bytes = (pass * kPairBytes + 127) / 128 * 128 + 64;  // columns meet alternating halves of the banks
  const int sums = Shape::kDepthWarps * 16 * Shape::kRowTiles * (Shape::kColumns + 1) * 4;
  const int shared = std::max(stored * column_bytes, sums);
  const auto kernel = quantized_mm<BITS, Shape>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>((p.n + 16 * Shape::kRowTiles - 1) / (16 * Shape::kRowTiles)),
                  static_cast<unsigned>((p.m + Shape::kRowsOfX - 1) / Shape::kRowsOfX));
  return launch(kernel, grid, dim3(32 * Shape::kWarps), static_cast<size_t>(shared), stream,
                overlap && device.bulk_copies, input, weight, output, p, pass, column_bytes);
}

}  // namespace

template <int BITS>
cudaError_t launch_quantized_mm(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p,
                                bool overlap, cudaStream_t stream) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  constexpr int kChunkColumns = 8 * kChunkBytes / BITS, kMostGridRows = 65535;
  if ((p.groups > 1 && p.group % kChunkColumns != 0) || p.m > int64_t{kMostGridRows} * Prefill::kRowsOfX) {
    const dim3 grid(static_cast<unsigned>((p.n + kAnyWarps - 1) / kAnyWarps),
                    static_cast<unsigned>(std::min<int64_t>(p.m, kMostGridRows)));
    return launch(quantized_mm_any<BITS>, grid, dim3(32 * kAnyWarps), 0, stream, false, input, weight, output, p);
  }
  if (p.m <= Decode::kRowsOfX)
    return start<BITS, Decode>(input, weight, output, p, kSharedBytes, device, overlap, stream);
  if (p.m <= Batch::kRowsOfX)
    return start<BITS, Batch>(input, weight, output, p, kSharedBytes, device, overlap, stream);
  constexpr int kWideBytes = 208 << 10;
  if (p.m > Prefill::kRowsOfX && device.shared_bytes >= kWideBytes)
    return start<BITS, Wide>(input, weight, output, p, kWideBytes, device, overlap, stream);
  constexpr int kPrefillBytes = 104 << 10;  // one chunk of 1-bit weights is 512 columns of x
  if (BITS == 1 && device.shared_bytes < kPrefillBytes)
    return start<BITS, Batch>(input, weight, output, p, kSharedBytes, device, overlap, stream);
  return start<BITS, Prefill>(input, weight, output, p, kSharedBytes, device, overlap, stream);
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
