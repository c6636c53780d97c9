#include "backend/cuda/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/hand_out_logits.h"
#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_step_api.h"
#include "kernels/vector_math.h"
#include "ops/glu.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};

const CudaWeight& cuda_weight(const Weight* w) { return static_cast<const CudaWeight&>(*w); }

const StepInput* input_of(const Step& step) {
  if (const auto* linear = std::get_if<LinearStep>(&step)) return &linear->in;
  if (const auto* glu = std::get_if<GluStep>(&step)) return &glu->in;
  return nullptr;
}

const CudaWeight& reader_of(const Step& step) {
  if (const auto* linear = std::get_if<LinearStep>(&step)) return cuda_weight(linear->out.front().weight);
  return cuda_weight(std::get<GluStep>(step).gate);
}

ModelStep label_of(const Step& step) {
  if (const auto* linear = std::get_if<LinearStep>(&step)) return linear->label;
  if (std::holds_alternative<GluStep>(step)) return ModelStep::kGateUp;
  if (std::holds_alternative<AttentionStep>(step)) return ModelStep::kAttention;
  return ModelStep::kEmbed;
}

Status check_step(const Step& step) {
  const auto refuse = [](const std::string& got, const char* wanted) {
    return fail(ErrorCode::kUnsupported, "cuda", got, wanted, "--device cpu");
  };
  if (const auto* glu = std::get_if<GluStep>(&step); glu != nullptr && glu->glu == Glu::kGeluTanh)
    return refuse(fmt::format("a gated product by {}", glu_name(glu->glu)), kGluNames);
  const auto* attention = std::get_if<AttentionStep>(&step);
  if (attention == nullptr) return {};
  const AttentionSpec& a = *attention->spec;
  if (!a.rope || a.rope->dims != a.head_dim || a.head_dim % 2 != 0)
    return refuse("heads that are not rotated whole", "a rotation of all elements");
  if (a.head_dim > cuda::kMostHeadDim)
    return refuse(fmt::format("heads of {} elements", a.head_dim), "at most 256 on a GPU");
  return {};
}

Status upload_norm(const Norm* norm, Buffer& to) {
  if (norm == nullptr) return {};
  LOWBIT_TRY_ASSIGN(to, to_device(norm->weight, "norm"));
  return {};
}

}  // namespace

Result<std::unique_ptr<Program>> CudaProgram::make(int gpu, std::span<const Step> steps,
                                                   const CompileOptions& options) {
  LOWBIT_TRY(cuda::use_device(gpu));
  auto program = std::make_unique<CudaProgram>();
  for (const Step& step : steps) {
    LOWBIT_TRY(check_step(step));
    Compiled c;
    c.step = step;
    if (auto* in = const_cast<StepInput*>(input_of(c.step))) {
      if (!options.taps) in->tap = -1;
      LOWBIT_TRY(upload_norm(in->norm, c.norm));
    }
    if (const auto* attention = std::get_if<AttentionStep>(&step)) {
      LOWBIT_TRY(upload_norm(attention->q_norm, c.q_norm));
      LOWBIT_TRY(upload_norm(attention->k_norm, c.k_norm));
    }
    program->steps_.push_back(std::move(c));
  }
  return std::unique_ptr<Program>(std::move(program));
}

Status CudaProgram::run(Workspace& workspace, const Batch& batch, int first, int last) const {
  auto& work = static_cast<CudaWorkspace&>(workspace);
  LOWBIT_TRY(cuda::use_device(work.gpu_));
  LOWBIT_TRY(work.batch_.set(batch, work.stream()));
  Run run{work, batch, batch.rows()};
  for (int i = first; i < last && run.m > 0; ++i) {
    const Compiled& c = steps_[size_t(i)];
    const StepTimer timer(work.profile_, label_of(c.step));
    LOWBIT_TRY(std::visit([&](const auto& step) { return run_step(c, step, run); }, c.step));
    if (work.profile_ != nullptr) LOWBIT_TRY(work.wait());
  }
  return work.wait();  // pages may be copied or change hands now
}

Status CudaProgram::show(Workspace& workspace, const Batch& batch, int index) const {
  auto& work = static_cast<CudaWorkspace&>(workspace);
  const Compiled& c = steps_[size_t(index)];
  const StepInput* in = input_of(c.step);
  if (in == nullptr || in->tap < 0)
    return fail(ErrorCode::kInvalidArgument, "show", fmt::format("step {}", index), "one with a tap");
  LOWBIT_TRY(cuda::use_device(work.gpu_));
  LOWBIT_TRY(input(c, *in, reader_of(c.step).k, 0, batch.rows(), work));
  return work.wait();
}

Status CudaProgram::run_step(const Compiled&, const EmbedStep& step, Run& run) const {
  const CudaWeight& table = cuda_weight(step.table);
  return cuda::gather_rows(table.table.as<float>(), run.work.batch_.tokens(), run.m, table.k, run.work.slot(step.to),
                           run.work.stream());
}

Result<const float*> CudaProgram::input(const Compiled& c, const StepInput& in, int64_t k, int64_t row, int64_t m,
                                        CudaWorkspace& work) const {
  work.codes_of_ = {};
  float* x = work.slot(in.from) + row * k;
  float* const normed = work.normed_.as<float>();
  if (in.norm != nullptr) {
    LOWBIT_TRY(cuda::norm_rows(x, c.norm.as<float>(), m, k, in.norm->eps, normed, work.stream()));
    x = normed;
  }
  if (in.hadamard > 0) {
    if (in.norm == nullptr && in.tap >= 0) {  // the step may be run again from its rows
      LOWBIT_TRY(cuda::copy_on(work.stream(), normed, x, m * k * kFloat));
      x = normed;
    }
    LOWBIT_TRY(cuda::hadamard_rows(x, m, k, in.hadamard, hadamard_scale(in.hadamard), work.stream()));
  }
  if (in.tap >= 0 && work.observer_) {
    LOWBIT_TRY(work.wait());
    LOWBIT_TRY(work.observer_(in.tap, x, m, k));
  }
  return x;
}

Status CudaProgram::quantize(const CudaWeight& w, const float* x, int64_t m, CudaWorkspace& work) const {
  const CudaWorkspace::CodesOf of{x, w.code_group(), w.rounding};
  if (of == work.codes_of_) return {};
  auto* const codes = work.codes_.as<int8_t>();
  auto* const scales = work.code_scales_.as<float>();
  const int64_t ldq = round_up(w.k, 64);
  work.codes_of_ = of;
  if (of.rounding.is_default())
    return cuda::quantize_activations(x, cuda::Element::kF32, m, w.k, w.k, of.group, codes, ldq, scales, work.stream());
  if (of.rounding.clipped > 0 && w.k > 1) {
    const auto out = std::clamp<int64_t>(int64_t(std::ceil(double(of.rounding.clipped) * double(w.k))), 1, w.k - 1);
    LOWBIT_TRY(cuda::clip_rows(x, m, w.k, out, work.clipped_.as<float>(), work.stream()));
    x = work.clipped_.as<float>();
  }
  return cuda::round_rows({x, m, w.k, of.group, of.rounding.largest, codes, ldq, scales, work.stream()});
}

Status CudaProgram::multiply(const CudaWeight& w, const float* x, int64_t m, float* y, CudaWorkspace& work) const {
  DeviceRows rows{x, cuda::Element::kF32, m, w.k, nullptr};
  if (w.takes_codes()) {
    LOWBIT_TRY(quantize(w, x, m, work));
    rows = {work.codes_.data(), cuda::Element::kInt8, m, round_up(w.k, 64), work.code_scales_.as<float>()};
  }
  return w.run(rows, y, work.scratch_.empty() ? nullptr : work.scratch_.as<uint8_t>(), work.stream());
}

Status CudaProgram::run_step(const Compiled& c, const LinearStep& step, Run& run) const {
  if (step.out.front().to == kLogits) return run_head(c, step, run);
  CudaWorkspace& work = run.work;
  LOWBIT_TRY_ASSIGN(const float* const x, input(c, step.in, reader_of(c.step).k, 0, run.m, work));
  for (const Product& p : step.out) {
    const CudaWeight& w = cuda_weight(p.weight);
    LOWBIT_TRY(multiply(w, x, run.m, p.add ? work.sum_.as<float>() : work.slot(p.to), work));
    if (p.add) LOWBIT_TRY(cuda::add_rows(work.sum_.as<float>(), run.m * w.n, work.slot(p.to), work.stream()));
  }
  return {};
}

Status CudaProgram::run_step(const Compiled& c, const GluStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  const CudaWeight &gate = cuda_weight(step.gate), &up = cuda_weight(step.up);
  LOWBIT_TRY_ASSIGN(const float* const x, input(c, step.in, gate.k, 0, run.m, work));
  LOWBIT_TRY(multiply(gate, x, run.m, work.slot(step.to), work));
  LOWBIT_TRY(multiply(up, x, run.m, work.up_.as<float>(), work));
  const auto multiply_gate = step.glu == Glu::kSquaredRelu ? cuda::squared_relu_rows : cuda::gate_rows;
  return multiply_gate(work.slot(step.to), work.up_.as<float>(), run.m * gate.n, work.stream());
}

Status CudaProgram::run_step(const Compiled& c, const AttentionStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  const AttentionSpec& a = *step.spec;
  float *const q = work.slot(step.q), *const k = work.slot(step.k);
  const auto norm = [&](const Norm* by, const Buffer& weight, float* x, int64_t heads) -> Status {
    if (by == nullptr) return {};
    return cuda::norm_rows(x, weight.as<float>(), run.m * heads, a.head_dim, by->eps, x, work.stream());
  };
  LOWBIT_TRY(norm(step.q_norm, c.q_norm, q, a.heads));
  LOWBIT_TRY(norm(step.k_norm, c.k_norm, k, a.kv_heads));
  const CudaWorkspace::Rotation& r = *work.rotation_of(a);
  LOWBIT_TRY(cuda::rotate_and_store({q, k, work.slot(step.v), r.cos.as<float>(), r.sin.as<float>(), work.batch_.rows(),
                                     work.batch_.pages(step.layer), run.m, a.heads, work.stream()}));
  return attend(step, work);
}

Status CudaProgram::attend(const AttentionStep& step, CudaWorkspace& work) const {
  constexpr int64_t kBlocksOfAProcessor = 2;
  const AttentionSpec& a = *step.spec;
  const CudaBatch::Tiles tiles = work.batch_.tiles(a.heads / a.kv_heads);
  cuda::AttendPages call;
  call.q = work.slot(step.q);
  call.out = work.slot(step.to);
  call.sequences = work.batch_.sequences();
  call.tiles = tiles.tiles;
  call.tile_count = tiles.count;
  call.tile_queries = tiles.queries;
  call.kv = work.batch_.pages(step.layer);
  call.heads = a.heads;
  call.scale = a.scale;
  call.window = a.window;
  call.stream = work.stream();
  // Few tiles would leave processors without work: then every span of a tile is a block's own.
  const int64_t spans = work.batch_.most_spans(a.window);
  const int64_t floats = cuda::attend_results_floats(tiles.count, tiles.queries, spans, a.kv_heads, a.head_dim);
  const bool few = tiles.count * a.kv_heads < kBlocksOfAProcessor * work.multiprocessors_;
  if (few && spans > 1 && floats * kFloat <= work.results_.size()) {
    call.results = work.results_.as<float>();
    call.spans = spans;
  }
  return cuda::attend_pages(call);
}

Status CudaProgram::run_step(const Compiled&, const GatherStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  run.m = work.batch_.wanted_rows();
  if (work.batch_.wanted_in_front()) return {};
  const int64_t width = work.widths_[step.slot];
  float *const x = work.slot(step.slot), *const gathered = work.normed_.as<float>();
  LOWBIT_TRY(cuda::gather_rows(x, work.batch_.wanted(), run.m, width, gathered, work.stream()));
  return cuda::copy_on(work.stream(), x, gathered, run.m * width * kFloat);
}

Status CudaProgram::run_head(const Compiled& c, const LinearStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  const CudaWeight& head = cuda_weight(step.out.front().weight);
  const auto wanted = run.batch.wanted;
  const bool direct = wanted.size() == 1 && wanted[0].sink == nullptr;
  for (int64_t first = 0; first < run.m; first += work.logits_rows_) {
    const int64_t count = std::min(work.logits_rows_, run.m - first);
    LOWBIT_TRY_ASSIGN(const float* const x, input(c, step.in, head.k, first, count, work));
    LOWBIT_TRY(multiply(head, x, count, work.logits_.as<float>(), work));
    if (!direct) work.host_logits_.resize(size_t(count * head.n));
    float* const to = direct ? wanted[0].logits + first * head.n : work.host_logits_.data();
    LOWBIT_TRY(cuda::download_on(work.stream(), to, work.logits_.as<float>(), count * head.n * kFloat));
    if (direct) continue;
    LOWBIT_TRY(work.wait());
    hand_out_logits(wanted, first, count, to, head.n, *work.pool_);
  }
  return {};
}

}  // namespace lowbit
