// Rows of an embedding as it is stored: a thread per element.

#include "format/formats.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_table_api.h"

namespace lowbit::cuda {
namespace {

constexpr int kTableThreads = 256;

/// The element of a row as f32, scaled.
__device__ __forceinline__ float scaled_value(const TableRows& call, int64_t row, int64_t k, float value) {
  if (call.scales == nullptr) return value;
  const int64_t at = row * ((call.n + call.group - 1) / call.group) + k / call.group;
  const float scaled = __fmul_rn(value, call.scales[at]);
  return call.offsets == nullptr ? scaled : __fadd_rn(scaled, call.offsets[at]);
}

__global__ void __launch_bounds__(kTableThreads) dense_rows(const TableRows call) {
  let_successor_start();
  const int64_t at = int64_t{blockIdx.x} * kTableThreads + threadIdx.x;
  if (at >= call.rows * call.n) return;
  const int64_t row = call.index[at / call.n], k = at % call.n;
  const uint8_t* const codes = call.codes + row * call.row_bytes;
  if (call.format == FormatId::kF32) {
    call.y[at] = reinterpret_cast<const float*>(codes)[k];
  } else {
    const uint16_t half = reinterpret_cast<const uint16_t*>(codes)[k];
    call.y[at] = call.format == FormatId::kBf16 ? bf16_to_f32(half) : f16_value(half);
  }
}

template <class F>
__global__ void __launch_bounds__(kTableThreads) packed_rows(const TableRows call) {
  let_successor_start();
  const int64_t at = int64_t{blockIdx.x} * kTableThreads + threadIdx.x;
  if (at >= call.rows * call.n) return;
  const int64_t row = call.index[at / call.n], k = at % call.n;
  const uint8_t* const pack = call.codes + row * call.row_bytes + k / F::kElems * F::kPackBytes;
  const int e = static_cast<int>(k % F::kElems);
  if constexpr (F::Codec::kKind == CodecKind::kTable) {
    call.y[at] = scaled_value(call, row, k, call.values[F::code_at(pack, e)]);
  } else {
    call.y[at] = scaled_value(call, row, k, static_cast<float>(F::decode(pack, e)));
  }
}

template <class F>
void start_format(const TableRows& call, dim3 grid, cudaError_t& error) {
  if (F::kId == call.format)
    error = launch(packed_rows<F>, grid, dim3(kTableThreads), 0, static_cast<cudaStream_t>(call.stream), false, call);
}
template <class... F>
cudaError_t start_formats(const TableRows& call, dim3 grid, TypeList<F...>) {
  cudaError_t error = cudaErrorInvalidValue;
  (start_format<F>(call, grid, error), ...);
  return error;
}

}  // namespace

Status table_rows(const TableRows& call) {
  const int64_t count = call.rows * call.n;
  if (count == 0) return {};
  const dim3 grid(static_cast<unsigned>((count + kTableThreads - 1) / kTableThreads));
  const bool dense = call.format == FormatId::kF32 || call.format == FormatId::kF16 || call.format == FormatId::kBf16;
  return check_cuda(
      dense ? launch(dense_rows, grid, dim3(kTableThreads), 0, static_cast<cudaStream_t>(call.stream), false, call)
            : start_formats(call, grid, RandomAccessFormatList{}),
      "rows");
}

}  // namespace lowbit::cuda
