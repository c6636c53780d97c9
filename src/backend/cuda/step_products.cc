// Products of a few tokens, in one launch with their norm, their quantization and what becomes of them.

#include <utility>

#include "kernels/cuda_product_api.h"
#include "kernels/cuda_row_products_api.h"

#include "backend/cuda/program.h"
#include "base/try.h"

namespace lowbit {
namespace {

/// Every thread block makes x's codes for itself. Beyond so many blocks of a multiprocessor, and columns of all blocks,
/// one launch that makes them for all is faster.
constexpr int64_t kBlocksOfAProcessor = 2, kMostColumns = int64_t{4} << 20;
/// Three tokens and more with a scale of x per some columns, and fewer where streams_rows(): beyond so many weights the
/// kernels of many tokens are faster, which read each weight once for all tokens.
constexpr int64_t kMostWeightsOfTokens = int64_t{8} << 20;
constexpr int64_t kCodeGroup = 32;  // columns that share a scale where a gated product leaves codes

bool has_room(const Buffer& codes, const Buffer& scales, int64_t columns) {
  return codes.size() >= columns && scales.size() >= columns / kCodeGroup * int64_t{sizeof(float)};
}

}  // namespace

Result<bool> CudaProgram::multiply_together(const Compiled& c, const StepInput& in, std::span<const StepPart> parts,
                                            cuda::ProductEnd end, int64_t m, CudaWorkspace& work) const {
  const CudaWeight& front = *parts.front().weight;
  const CudaWorkspace::CodesOf left = std::exchange(work.codes_of_, {});  // of what may be written from here on
  if (front.has_exact_products()) return multiply_exact_products(c, in, parts, end, m, work);
  if (m < 1 || m > cuda::kMostStepRows || parts.size() > size_t{cuda::kMostStepProducts} || in.hadamard > 0 ||
      (in.tap >= 0 && work.observer_))
    return false;
  int64_t weights = 0;
  for (const StepPart& part : parts) weights += part.weight->n * part.weight->k;
  const bool halves = front.takes_halves();
  if (front.code_group() > 0 && weights > kMostWeightsOfTokens &&
      (m > 2 ||
       cuda::streams_rows(front.plan.kernel(m), front.plan.call(rounded_rows(front, m, work), nullptr, nullptr,
                                                                cuda::Element::kF32, front.n, nullptr, nullptr))))
    return false;
  LOWBIT_TRY(work.finish_rows());
  cuda::StepProducts call;
  call.end = end;
  for (const StepPart& part : parts) {
    const CudaWeight& w = *part.weight;
    if (!(halves ? w.takes_halves() : w.takes_codes() && w.rounding.is_default()) || w.rounding != front.rounding ||
        w.format != front.format || w.k != front.k || &w.plan.kernel(m) != &front.plan.kernel(m))
      return false;
    call.parts[size_t(call.count++)] = w.plan.call(rounded_rows(w, m, work), floats_or_null(w.bias), part.to,
                                                   cuda::Element::kF32, w.n, nullptr, work.stream());
  }
  call.kernel = &front.plan.kernel(m);
  call.rows = work.slot(in.from);
  call.norm = in.norm == nullptr ? nullptr : c.norm.as<float>();
  call.eps = in.norm == nullptr ? 0.0f : in.norm->eps;
  const bool has_codes =
      in.norm == nullptr && !halves && left == CudaWorkspace::CodesOf{call.rows, front.code_group(), front.rounding};
  if (has_codes) call.rows = nullptr;
  const int64_t blocks = cuda::step_product_blocks(call);
  const int64_t columns = blocks * front.k * (halves ? m : 1);
  if (has_codes) {
    if (!cuda::takes_step_products(call)) return false;
  } else if (blocks > kBlocksOfAProcessor * work.multiprocessors_ || columns > kMostColumns ||
             !cuda::takes_step_products(call)) {
    call.rows = call.norm = nullptr;
    if (!cuda::takes_step_products(call)) return false;
    LOWBIT_TRY_ASSIGN(const float* const x, operand(c, in, front, true, 0, m, work));
    LOWBIT_TRY(halves ? halve(front, x, m, work) : quantize(front, x, m, work));
  }
  if (has_room(work.codes_, work.code_scales_, front.n) && cuda::leaves_codes(call)) {
    call.y_codes = work.codes_.as<int8_t>(), call.y_scales = work.code_scales_.as<float>();
    work.codes_of_ = {parts.front().to, kCodeGroup, {}};
  }
  LOWBIT_TRY(cuda::step_products(call));
  return true;
}

}  // namespace lowbit
