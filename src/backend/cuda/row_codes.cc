// Codes of rows: of many, with what was left to be done to them, and of any.

#include "kernels/cuda_codes_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cuda/program.h"
#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_product_api.h"
#include "kernels/cuda_step_api.h"

namespace lowbit {

Status CudaWorkspace::finish_rows() {
  const Deferred todo = std::exchange(deferred_, {});
  switch (todo.start) {
    case cuda::RowStart::kX:
      return {};
    case cuda::RowStart::kSum:
      return cuda::add_rows(sum_.as<float>(), todo.count, slot(todo.slot), stream());
    case cuda::RowStart::kSilu:
      return cuda::gate_rows(slot(todo.slot), up_.as<float>(), todo.count, stream());
    case cuda::RowStart::kSquaredRelu:
      return cuda::squared_relu_rows(slot(todo.slot), up_.as<float>(), todo.count, stream());
  }
  return {};
}

Result<const float*> CudaProgram::coded(const Compiled& c, const StepInput& in, const CudaWeight& reader, int64_t m,
                                        CudaWorkspace& work) const {
  const CudaWorkspace::Deferred& todo = work.deferred_;
  cuda::RowCodes call;
  if (todo.slot == in.from) call.start = todo.start;
  const bool gated = call.start == cuda::RowStart::kSilu || call.start == cuda::RowStart::kSquaredRelu;
  call.x = work.slot(in.from);
  call.other = gated ? work.up_.as<float>() : work.sum_.as<float>();
  if (in.norm != nullptr) call.norm = c.norm.as<float>(), call.eps = in.norm->eps;
  call.m = m;
  call.k = reader.k;
  call.e4m3 = reader.takes_fp8();
  call.group = call.e4m3 ? kFp8Block : reader.code_group();
  call.codes = work.codes_.as<int8_t>();
  call.ldq = call.e4m3 ? CudaFp8Weight::row_bytes(reader.k) : round_up(reader.k, 64);
  call.ldscales = CudaFp8Weight::scale_stride(m);
  call.scales = work.code_scales_.as<float>();
  call.stream = work.stream();
  call.exact_scales = reader.rounding.exact_scales;
  // Rows of a tap are shown again later, as they are before their norm.
  if (m <= 1 || (gated && in.tap >= 0) || !cuda::takes_row_codes(call)) return nullptr;
  if (call.start == cuda::RowStart::kX || todo.count != m * call.k) {
    call.start = cuda::RowStart::kX;
    LOWBIT_TRY(work.finish_rows());
  }
  work.deferred_ = {};
  const float* const x = in.norm != nullptr ? work.normed_.as<float>() : call.x;  // nobody reads it
  work.codes_of_ = call.e4m3 ? CudaWorkspace::CodesOf{x, kFp8Block, {}, true}
                             : CudaWorkspace::CodesOf{x, reader.code_group(), reader.rounding};
  LOWBIT_TRY(cuda::row_codes(call));
  return x;
}

Status CudaProgram::quantize(const CudaWeight& w, const float* x, int64_t m, CudaWorkspace& work) const {
  const CudaWorkspace::CodesOf of{x, w.code_group(), w.rounding};
  if (of == work.codes_of_) return {};
  auto* const codes = work.codes_.as<int8_t>();
  auto* const scales = work.code_scales_.as<float>();
  const int64_t ldq = round_up(w.k, 64);
  work.codes_of_ = of;
  const CudaWorkspace::BeforeNorm& before = work.before_norm_;
  if (x == work.normed_.as<float>() && before.x != nullptr && of.group == 0 && of.rounding.is_default()) {
    if (!cuda::has_norm_codes(w.k))
      return fail(ErrorCode::kUnsupported, "cuda", fmt::format("one scale of x for {} normed columns", w.k),
                  "rows that a thread block has room for", "--device cpu");
    return cuda::norm_codes({before.x, before.norm, before.eps, m, w.k, 0, codes, ldq, scales, work.stream(), false});
  }
  if (of.rounding.is_default())
    return cuda::quantize_activations(x, cuda::Element::kF32, m, w.k, w.k, of.group, of.rounding.exact_scales, codes,
                                      ldq, scales, work.stream());
  if (of.rounding.clipped > 0 && w.k > 1) {
    const auto out = std::clamp<int64_t>(int64_t(std::ceil(double(of.rounding.clipped) * double(w.k))), 1, w.k - 1);
    LOWBIT_TRY(cuda::clip_rows(x, m, w.k, out, work.clipped_.as<float>(), work.stream()));
    x = work.clipped_.as<float>();
  }
  return cuda::round_rows({x, m, w.k, of.group, of.rounding.largest, codes, ldq, scales, work.stream()});
}

}  // namespace lowbit
