// The end of a pass: logits of the rows that are wanted.

#include <algorithm>

#include "backend/cuda/program.h"
#include "backend/hand_out_logits.h"
#include "base/try.h"
#include "kernels/cuda_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};

const CudaWeight& cuda_weight(const Weight* w) { return static_cast<const CudaWeight&>(*w); }

}  // namespace

Status CudaProgram::run_head(const Compiled& c, const LinearStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  const CudaWeight& head = cuda_weight(step.out.front().weight);
  if (run.m <= work.rows_at_once()) {  // fetch()
    const StepPart part{&head, work.logits_.as<float>()};
    LOWBIT_TRY_ASSIGN(const bool done,
                      multiply_together(c, step.in, {&part, 1}, cuda::ProductEnd::kStore, run.m, work));
    if (!done) {
      LOWBIT_TRY_ASSIGN(const float* const x, operand(c, step.in, head, true, 0, run.m, work));
      LOWBIT_TRY(multiply(head, x, run.m, work.logits_.as<float>(), work));
    }
    return choose(head.n, 0, run.m, work);
  }
  const auto wanted = run.batch.wanted;
  const bool direct = wanted.size() == 1 && wanted[0].logits != nullptr && wanted[0].sink == nullptr;
  for (int64_t first = 0; first < run.m; first += work.logits_rows_) {
    const int64_t count = std::min(work.logits_rows_, run.m - first);
    LOWBIT_TRY_ASSIGN(const float* const x, operand(c, step.in, head, true, first, count, work));
    LOWBIT_TRY(multiply(head, x, count, work.logits_.as<float>(), work));
    LOWBIT_TRY(choose(head.n, first, count, work));
    if (!work.batch_.wants_logits()) continue;
    if (!direct) work.host_logits_.resize(size_t(count * head.n));
    float* const to = direct ? wanted[0].logits + first * head.n : work.host_logits_.data();
    LOWBIT_TRY(cuda::download_on(work.stream(), to, work.logits_.as<float>(), count * head.n * kFloat));
    if (direct) continue;
    LOWBIT_TRY(work.wait());
    hand_out_logits(wanted, first, count, to, head.n, *work.pool_);
  }
  return {};
}

Status CudaProgram::fetch(CudaWorkspace& work, const Batch& batch) const {
  const auto* step = std::get_if<LinearStep>(&steps_.back().step);
  const int64_t rows = work.batch_.wanted_rows();
  if (step == nullptr || step->out.front().to != kLogits || rows == 0) return {};
  const int64_t vocab = cuda_weight(step->out.front().weight).n;
  if (work.batch_.chooses()) LOWBIT_TRY(fetch_choices(work, batch, vocab));
  if (!work.batch_.wants_logits() || rows > work.few_logits_) return {};
  auto* const logits = work.pinned_logits_.as<float>();
  LOWBIT_TRY(cuda::download_on(work.stream(), logits, work.logits_.as<float>(), rows * vocab * kFloat));
  LOWBIT_TRY(work.wait());
  hand_out_logits(batch.wanted, 0, rows, logits, vocab, *work.pool_);
  return {};
}

}  // namespace lowbit
