// FP8 in blocks: rows to codes and scales, with what comes in front of it in the same pass, and back.

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/fp8/quantize_gated.cuh"
#include "kernels/cuda/fp8/quantize_halves.cuh"
#include "kernels/cuda/fp8/quantize_normed.cuh"
#include "kernels/cuda/fp8/quantize_normed_pipeline.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_fp8_api.h"

namespace lowbit::cuda {
namespace {

using namespace fp8;  // NOLINT

constexpr int kBlocksPerLane = 4;  // loads in flight
constexpr int kNormThreads = 128;
constexpr int64_t kMostBlocks = int64_t{1} << 28;  // 32 bits count their lanes

/// Rows one by one in blocks of 128 columns, kBlocksPerLane of them for half a warp; kGate: silu(x) * up.
template <Fp8Element E, bool kWide, bool kGate>
__global__ void __launch_bounds__(kThreads) quantize_rows(const __grid_constant__ Fp8Quant q) {
  const int64_t blocks = (q.columns + kFp8Block - 1) / kFp8Block, runs = (blocks + kBlocksPerLane - 1) / kBlocksPerLane;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes, row = at / runs;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool there = row < q.rows;  // the other half of the warp may be
  const int64_t first = at % runs * kBlocksPerLane;
  float v[kBlocksPerLane][kPerLane];
  int n[kBlocksPerLane];
#pragma unroll
  for (int b = 0; b < kBlocksPerLane; ++b) {
    const int64_t i = (first + b) * kFp8Block + lane * kPerLane;
    n[b] = there ? static_cast<int>(min(max(q.columns - i, int64_t{0}), int64_t{kPerLane})) : 0;
    load_lane<E, kWide>(q.x, row * q.ldx + i, n[b], v[b]);
  }
#pragma unroll
  for (int b = 0; b < kBlocksPerLane; ++b) {
    const int64_t i = (first + b) * kFp8Block + lane * kPerLane;
    if constexpr (kGate) {
      float up[kPerLane];
      load_lane<E, kWide>(q.up, row * q.ldup + i, n[b], up);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const float g = v[b][j];
        v[b][j] = j < n[b] ? __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, block::exp_f32(-g))), up[j]) : 0.0f;
      }
    }
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) most = max(most, magnitude(v[b][j]));
    const float scale = fp8_scale(__uint_as_float(fp8::largest_of_lanes(most)), q.power_of_two);
    if (!there || first + b >= blocks) continue;
    store_codes<kWide>(v[b], scale, n[b], q.codes + row * q.ldcodes + i);
    if (lane != 0) continue;
    *scale_at(q, row, first + b) = scale;
    clear_padding(q, q.rows, row, first + b);
  }
}

/// A thread block per row: its RMS norm, then blocks of any number of columns by half a warp each.
template <Fp8Element E>
__global__ void __launch_bounds__(kNormThreads) quantize_normed(const __grid_constant__ Fp8Quant q) {
  __shared__ float factor;
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, half_warp = static_cast<int>(threadIdx.x) / kLanes;
  if (threadIdx.x < 32) {
    const float found = warp_inverse_rms(static_cast<int>(q.columns), q.norm_eps, [&](int i) {
      const auto at = [&](int j) { return i + j < q.columns ? load_one<E>(q.x, row * q.ldx + i + j) : 0.0f; };
      return float4{at(0), at(1), at(2), at(3)};
    });
    if (threadIdx.x == 0) factor = found;
  }
  __syncthreads();
  const float r = factor;
  const int64_t blocks = (q.columns + q.column_block - 1) / q.column_block;
  const auto normed = [&](int64_t i) {
    return __fmul_rn(__fmul_rn(load_one<E>(q.x, row * q.ldx + i), r), q.norm_weight[i]);
  };
  constexpr int kHalfWarps = kNormThreads / kLanes;
  for (int64_t base = 0; base < blocks; base += kHalfWarps) {  // as often for all lanes of a warp
    const int64_t b = base + half_warp, begin = b * q.column_block;
    const int64_t end = b < blocks ? min(begin + q.column_block, q.columns) : begin;
    uint32_t most = 0;
    for (int64_t i = begin + lane; i < end; i += kLanes) most = max(most, magnitude(normed(i)));
    const float scale = fp8_scale(__uint_as_float(fp8::largest_of_lanes(most)), q.power_of_two);
    if (b >= blocks) continue;
    const bool has_codes = fp8_has_codes(scale);
    const Divisor by = divisor_of(has_codes ? scale : 1.0f);
    for (int64_t i = begin + lane; i < end; i += kLanes)
      q.codes[row * q.ldcodes + i] =
          has_codes ? static_cast<uint8_t>(codes_of(quotient(normed(i), by), 0.0f)) : uint8_t{0};
    if (lane != 0) continue;
    *scale_at(q, row, b) = scale;
    clear_padding(q, q.rows, row, b);
  }
}

/// A thread block per block of rows and columns, of any size.
template <Fp8Element E, bool kGate>
__global__ void __launch_bounds__(kThreads) quantize_blocks(const __grid_constant__ Fp8Quant q) {
  __shared__ uint32_t shared[kThreads];
  const int64_t across = (q.columns + q.column_block - 1) / q.column_block;
  const int64_t strip = blockIdx.x / across, b = blockIdx.x % across;
  const int64_t row0 = strip * q.row_block, rows = min(q.row_block, q.rows - row0);
  const int64_t col0 = b * q.column_block, columns = min(q.column_block, q.columns - col0);
  const int thread = static_cast<int>(threadIdx.x);
  const auto value = [&](int64_t at) {
    const int64_t row = row0 + at / columns, i = col0 + at % columns;
    const float v = load_one<E>(q.x, row * q.ldx + i);
    if constexpr (!kGate) return v;
    const float up = load_one<E>(q.up, row * q.ldup + i);
    return __fmul_rn(__fdiv_rn(v, __fadd_rn(1.0f, block::exp_f32(-v))), up);
  };
  uint32_t most = 0;
  for (int64_t at = thread; at < rows * columns; at += kThreads) most = max(most, magnitude(value(at)));
  shared[thread] = most;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] = max(shared[thread], shared[thread + half]);
  }
  __syncthreads();
  const float scale = fp8_scale(__uint_as_float(shared[0]), q.power_of_two);
  const bool has_codes = fp8_has_codes(scale);
  const Divisor by = divisor_of(has_codes ? scale : 1.0f);
  for (int64_t at = thread; at < rows * columns; at += kThreads)
    q.codes[(row0 + at / columns) * q.ldcodes + col0 + at % columns] =
        has_codes ? static_cast<uint8_t>(codes_of(quotient(value(at), by), 0.0f)) : uint8_t{0};
  if (thread != 0) return;
  *scale_at(q, strip, b) = scale;
  clear_padding(q, (q.rows + q.row_block - 1) / q.row_block, strip, b);
}

template <Fp8Element E>
__device__ __forceinline__ void store_one(void* y, int64_t i, float v) {
  if constexpr (E == Fp8Element::kF32) {
    static_cast<float*>(y)[i] = v;
  } else {
    static_cast<uint16_t*>(y)[i] = E == Fp8Element::kF16 ? f16_nearest(v) : f32_to_bf16(v);
  }
}

template <Fp8Element E>
__global__ void __launch_bounds__(kThreads) dequantize(const __grid_constant__ Fp8Dequant d) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, runs = (d.columns + kPerLane - 1) / kPerLane;
  const int64_t row = at / runs, first = at % runs * kPerLane;
  if (row >= d.rows) return;
  const float* const scales = d.scales + row / d.row_block * d.ldscales;
  for (int64_t i = first; i < min(first + kPerLane, d.columns); ++i)
    store_one<E>(d.y, row * d.ldy + i,
                 __fmul_rn(e4m3_to_f32(d.codes[row * d.ldcodes + i]), scales[i / d.column_block]));
}

bool aligned(const void* p, int64_t stride_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(to) == 0 && stride_bytes % to == 0;
}

Status enqueue(const char* where, auto kernel, int64_t blocks, int threads, void* stream, const auto& call,
               bool overlap = false) {
  constexpr int64_t kMostThreadBlocks = (int64_t{1} << 31) - 1;
  if (blocks > kMostThreadBlocks)
    return fail(ErrorCode::kUnsupported, where, std::to_string(blocks) + " blocks", "at most 2^31 - 1");
  return check_cuda(launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), 0,
                           static_cast<cudaStream_t>(stream), overlap, call),
                    where);
}

template <Fp8Element E>
Status quantize_aligned_halves(const Fp8Quant& q, int64_t blocks, void* stream) {
  const char* const where = "fp8 quantization";
  Device device;
  if (auto status = check_cuda(current_device(&device), where); !status) return status;
  const auto start = [&](auto* kernel, int threads, int64_t blocks_of) {
    return enqueue(where, kernel, (q.rows * blocks + blocks_of - 1) / blocks_of, threads, stream, q,
                   device.bulk_copies);
  };
  if (q.up != nullptr) return start(&quantize_gated_halves<E>, kThreads, kThreads / kLanes);
  constexpr int64_t kBlocks = kHalvesThreads / kBlockLanes, kFewBlocks = 384;  // of a thread block; of a multiprocessor
  if (q.columns % kFp8Block != 0 || !aligned(q.codes, q.ldcodes, 16))
    return start(&quantize_halves<E, false, 1>, kHalvesThreads, kBlocks);
  // With one block a lane memory has too little to do where there are many, and with two a few take longer.
  if (q.rows * blocks <= kFewBlocks * device.processors)
    return start(&quantize_halves<E, true, 1>, kHalvesThreads, kBlocks);
  return start(&quantize_halves<E, true, 2>, kHalvesThreads, 2 * kBlocks);
}

/// Who has a row of a norm: the warps of a pipeline, or a team of `team` warps, `teams` of them in a thread block and
/// as many rows at once, or, where `team` is 0, thread blocks that make codes of `part` columns each.
struct NormedShape {
  int team = 0;
  int64_t teams = 0, at_once = 0;  // thread blocks of a multiprocessor
  int64_t part = 0;
  NormedPipeline pipeline{};
};

/// Count blocks a warp.
template <int Count>
NormedPipeline pipeline_of(int64_t columns, const Device& device) {
  constexpr int64_t kAsked = 50 << 10;  // bytes on their way that keep a multiprocessor's share of memory busy
  constexpr int kSums = PipelineWarps<Count>::kSums, kCoded = 2;  // rows that are there beside them
  const auto blocks = static_cast<int>((columns + kFp8Block - 1) / kFp8Block), warps = (blocks + Count - 1) / Count;
  const int teams = PipelineWarps<Count>::kCodes / warps, step = std::lcm(teams, kSums);
  const auto asked = static_cast<int>((kAsked + columns) / (2 * columns)),
             stages = (asked + kCoded + step - 1) / step * step;
  if (stages > kMostStages || normed_pipeline_bytes(columns, stages) > device.shared_bytes) return {};
  return {.blocks = Count, .warps = warps, .teams = teams, .stages = stages, .asked = asked};
}
/// The fastest one of 2048, 3072, 4096, 7168 and 8192 columns, an H200's. With 1536 a warp a row is faster.
NormedPipeline pipeline_of(const Fp8Quant& q, const Device& device) {
  constexpr int64_t kNarrow = 14 * kFp8Block, kWide = 32 * kFp8Block, kWider = 56 * kFp8Block, kMost = 64 * kFp8Block;
  constexpr int64_t kRowsOfNarrow = 3;  // of a multiprocessor; wide ones are faster from one on
  if (!device.bulk_copies || q.columns <= kNarrow || q.columns > kMost) return {};
  if (q.rows < (q.columns <= kWide ? kRowsOfNarrow : 1) * device.processors) return {};
  if (q.columns <= kWide) return pipeline_of<8>(q.columns, device);
  return q.columns <= kWider ? pipeline_of<7>(q.columns, device) : pipeline_of<4>(q.columns, device);
}

/// As many teams as shared memory and kMostNormedWarps allow, in two thread blocks of a multiprocessor if not fewer.
template <int kTeam>
NormedShape shape_of_teams(int64_t columns, const Device& device) {
  constexpr int64_t kReserved = 1024, kMost = kMostNormedWarps / kTeam;  // bytes of a thread block, by the device
  const int64_t none = normed_bytes<kTeam>(columns, 0), row = normed_bytes<kTeam>(columns, 1) - none;
  const auto teams = [&](int64_t blocks) {
    return std::clamp<int64_t>(((device.shared_bytes + kReserved) / blocks - kReserved - none) / row, 0, kMost);
  };
  const int64_t blocks = 2 * teams(2) > teams(1) ? 2 : 1;
  return {.team = kTeam, .teams = teams(blocks), .at_once = blocks};
}
/// Each part's thread block adds up all squares of its row, so a row has no more parts than half of the multiprocessors
/// have room for.
NormedShape shape_of_parts(const Fp8Quant& q, const Device& device) {
  constexpr int64_t kStep = 4 * kNormSums;
  const int64_t most = (q.columns + kStep - 1) / kStep,
                parts = std::clamp<int64_t>(device.processors / (2 * q.rows), 1, most);
  return {.part = (most + parts - 1) / parts * kStep};
}
NormedShape normed_shape(const Fp8Quant& q, const Device& device) {
  constexpr int64_t kRowsForWarps = 4, kRowsForTeams = 8;  // of a multiprocessor
  if (const NormedPipeline pipeline = pipeline_of(q, device); pipeline.blocks > 0) return {.pipeline = pipeline};
  if (q.rows >= kRowsForWarps * device.processors) {
    const auto shape = shape_of_teams<1>(q.columns, device);
    if (shape.teams * shape.at_once >= kMostNormedWarps) return shape;
  }
  if (q.rows >= kRowsForTeams * device.processors)
    if (const auto shape = shape_of_teams<4>(q.columns, device); shape.teams > 1) return shape;
  return shape_of_parts(q, device);
}

template <Fp8Element E>
cudaError_t start_normed(const Fp8Quant& q, const NormedShape& shape, const Device& device, cudaStream_t stream) {
  const auto start = [&](auto* kernel, dim3 grid, int64_t threads, int64_t bytes, const auto&... last) {
    const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), device);
    if (error != cudaSuccess) return error;
    return launch(kernel, grid, dim3(static_cast<unsigned>(threads)), static_cast<size_t>(bytes), stream,
                  device.bulk_copies, q, last...);
  };
  if (const NormedPipeline& pipeline = shape.pipeline; pipeline.blocks > 0) {
    const auto start_pipeline = [&]<int Count>() {
      auto* const kernel = q.columns == int64_t{pipeline.warps} * Count * kFp8Block
                               ? &quantize_normed_pipeline<E, Count, true>
                               : &quantize_normed_pipeline<E, Count, false>;
      const int64_t warps = pipeline.warps * pipeline.teams + PipelineWarps<Count>::kSums + 1;
      return start(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(q.rows, device.processors))), 32 * warps,
                   normed_pipeline_bytes(q.columns, pipeline.stages), pipeline);
    };
    if (pipeline.blocks == 8) return start_pipeline.template operator()<8>();
    return pipeline.blocks == 4 ? start_pipeline.template operator()<4>() : start_pipeline.template operator()<7>();
  }
  if (shape.team == 0) {
    auto* const kernel =
        shape.part == 4 * kNormSums ? &quantize_normed_part<E, 1> : &quantize_normed_part<E, kNormedBlocks>;
    const int64_t parts = (q.columns + shape.part - 1) / shape.part;
    return start(kernel, dim3(static_cast<unsigned>(q.rows), static_cast<unsigned>(parts)), 128,
                 normed_part_bytes(q.columns), static_cast<int>(shape.part));
  }
  auto* const kernel = shape.team == 1 ? &quantize_normed_rows<E, 1> : &quantize_normed_rows<E, 4>;
  const int64_t bytes =
                    shape.team == 1 ? normed_bytes<1>(q.columns, shape.teams) : normed_bytes<4>(q.columns, shape.teams),
                blocks = std::min((q.rows + shape.teams - 1) / shape.teams, device.processors * shape.at_once);
  return start(kernel, dim3(static_cast<unsigned>(blocks)), 32 * shape.team * shape.teams, bytes,
               static_cast<int>(shape.teams));
}

template <Fp8Element E>
Status quantize_rows_normed(const Fp8Quant& q, void* stream) {
  const char* const where = "fp8 quantization";
  Device device;
  if (auto status = check_cuda(current_device(&device), where); !status) return status;
  constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;
  if constexpr (E != Fp8Element::kF32)
    if (q.column_block == kFp8Block && q.columns % kPerLane == 0 && aligned(q.x, q.ldx * 2, 16) &&
        aligned(q.codes, q.ldcodes, 8) && aligned(q.norm_weight, 0, 16) && q.rows <= kMostRows &&
        normed_part_bytes(q.columns) <= device.shared_bytes)
      return check_cuda(start_normed<E>(q, normed_shape(q, device), device, static_cast<cudaStream_t>(stream)), where);
  return enqueue(where, quantize_normed<E>, q.rows, kNormThreads, stream, q);
}

template <Fp8Element E>
Status quantize_of(const Fp8Quant& q, void* stream) {
  const char* const where = "fp8 quantization";
  if (q.norm_weight != nullptr) return quantize_rows_normed<E>(q, stream);
  const bool gate = q.up != nullptr;
  const int64_t blocks = (q.columns + q.column_block - 1) / q.column_block;
  if (q.row_block != 1 || q.column_block != kFp8Block) {
    const int64_t strips = (q.rows + q.row_block - 1) / q.row_block;
    if (gate) return enqueue(where, quantize_blocks<E, true>, strips * blocks, kThreads, stream, q);
    return enqueue(where, quantize_blocks<E, false>, strips * blocks, kThreads, stream, q);
  }
  const int64_t bytes = fp8_element_bytes(E);
  const bool wide =
      aligned(q.x, q.ldx * bytes, 16) && aligned(q.codes, q.ldcodes, 8) && (!gate || aligned(q.up, q.ldup * bytes, 16));
  if constexpr (E != Fp8Element::kF32)
    if (wide && q.rows * blocks <= kMostBlocks) return quantize_aligned_halves<E>(q, blocks, stream);
  const int64_t threads = q.rows * ((blocks + kBlocksPerLane - 1) / kBlocksPerLane) * kLanes;
  const int64_t grid = (threads + kThreads - 1) / kThreads;
  if (wide && gate) return enqueue(where, quantize_rows<E, true, true>, grid, kThreads, stream, q);
  if (wide) return enqueue(where, quantize_rows<E, true, false>, grid, kThreads, stream, q);
  if (gate) return enqueue(where, quantize_rows<E, false, true>, grid, kThreads, stream, q);
  return enqueue(where, quantize_rows<E, false, false>, grid, kThreads, stream, q);
}

}  // namespace

Status quantize_fp8(const Fp8Quant& q, void* stream) {
  if (q.rows == 0 || q.columns == 0) return {};
  switch (q.element) {
    case Fp8Element::kF32:
      return quantize_of<Fp8Element::kF32>(q, stream);
    case Fp8Element::kF16:
      return quantize_of<Fp8Element::kF16>(q, stream);
    case Fp8Element::kBf16:
      break;
  }
  return quantize_of<Fp8Element::kBf16>(q, stream);
}

Status dequantize_fp8(const Fp8Dequant& d, void* stream) {
  if (d.rows == 0 || d.columns == 0) return {};
  const int64_t threads = d.rows * ((d.columns + kPerLane - 1) / kPerLane), grid = (threads + kThreads - 1) / kThreads;
  const char* const where = "fp8 dequantization";
  if (d.element == Fp8Element::kF32) return enqueue(where, dequantize<Fp8Element::kF32>, grid, kThreads, stream, d);
  if (d.element == Fp8Element::kF16) return enqueue(where, dequantize<Fp8Element::kF16>, grid, kThreads, stream, d);
  return enqueue(where, dequantize<Fp8Element::kBf16>, grid, kThreads, stream, d);
}

}  // namespace lowbit::cuda
