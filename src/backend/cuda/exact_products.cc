// Products of a few tokens whose sums have the CPU's order, in one launch with their norm and their rounding.

#include <algorithm>

#include "backend/cuda/program.h"
#include "base/try.h"

namespace lowbit {

/// Beyond so many weights others take fp8 sooner: tensor cores with scales per 128 rows, else the tiles of many rows.
constexpr int64_t kMostWeightsOfFp8Tokens = int64_t{8} << 20;

Result<bool> CudaProgram::multiply_exact_products(const Compiled& c, const StepInput& in,
                                                  std::span<const StepPart> parts, cuda::ProductEnd end, int64_t m,
                                                  CudaWorkspace& work) const {
  const CudaWeight& front = *parts.front().weight;
  if (m > cuda::kMostStepRows || parts.size() > size_t{cuda::kMostStepProducts} || in.hadamard > 0 ||
      (in.tap >= 0 && work.observer_))
    return false;
  int64_t weights = 0;
  cuda::ExactProducts call = front.exact_products();
  for (const StepPart& part : parts) {
    const CudaWeight& w = *part.weight;
    if (!w.has_exact_products() || w.takes_fp8() != front.takes_fp8() || w.type != front.type || w.k != front.k ||
        w.group != front.group || w.rounding != front.rounding || w.fp8.scale_rows != front.fp8.scale_rows)
      return false;
    call.parts[size_t(call.count++)] = w.exact_product_part(part.to);
    weights += w.n * w.k;
  }
  const int64_t most_fp8 = front.fp8.scale_rows > 1 ? 2 : 4;
  if (front.takes_fp8() && m > most_fp8 && weights > kMostWeightsOfFp8Tokens) return false;
  call.m = m;
  call.rows = work.slot(in.from);
  call.norm = in.norm == nullptr ? nullptr : c.norm.as<float>();
  call.eps = in.norm == nullptr ? 0.0f : in.norm->eps;
  call.end = end;
  call.stream = work.stream();
  if (!cuda::takes_exact_products(call)) return false;
  LOWBIT_TRY(work.finish_rows());
  LOWBIT_TRY(cuda::exact_products(call));
  return true;
}

}  // namespace lowbit
