#include "backend/cpu/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "backend/hand_out_logits.h"
#include "base/try.h"
#include "io/lost_pages.h"
#include "ops/glu.h"
#include "ops/hadamard.h"
#include "ops/norm.h"
#include "ops/rope_append.h"

namespace lowbit {
namespace {

/// Rows of logits in memory at once, of several sequences or for a sink: so few that they are still in a core's cache
/// when they are handed out.
int64_t rows_of_logits(int64_t vocab) {
  constexpr int64_t kBytes = int64_t{2} << 20, kLeast = 8, kMost = 64;
  return std::clamp(kBytes / (vocab * int64_t(sizeof(float))), kLeast, kMost);
}

const CpuWeight* cpu_weight(const Weight* w) { return static_cast<const CpuWeight*>(w); }

const StepInput* input_of(const Step& step) {
  if (const auto* linear = std::get_if<LinearStep>(&step)) return &linear->in;
  if (const auto* glu = std::get_if<GluStep>(&step)) return &glu->in;
  return nullptr;
}

std::vector<const CpuWeight*> readers_of(const Step& step) {
  std::vector<const CpuWeight*> readers;
  if (const auto* linear = std::get_if<LinearStep>(&step))
    for (const Product& p : linear->out) readers.push_back(cpu_weight(p.weight));
  if (const auto* glu = std::get_if<GluStep>(&step)) readers = {cpu_weight(glu->gate), cpu_weight(glu->up)};
  return readers;
}

/// Whether some of a step's products norm its input's rows for themselves.
bool has_own_norms(const Step& step) {
  if (const auto* glu = std::get_if<GluStep>(&step)) return glu->gate_norm != nullptr || glu->up_norm != nullptr;
  const auto* linear = std::get_if<LinearStep>(&step);
  return linear != nullptr && std::ranges::any_of(linear->out, [](const Product& p) { return p.norm != nullptr; });
}

/// Times products of m rows with some weights.
StepTimer time_products(Profile* profile, ModelStep label, int64_t m, Linears linears) {
  double bytes = 0, operations = 0;
  if (profile != nullptr)
    for (const CpuWeight* l : linears) {
      bytes += double(l->plan.resident_bytes());
      operations += 2.0 * double(m) * double(l->plan.n()) * double(l->plan.k());
    }
  return {profile, label, bytes, operations};
}

}  // namespace

Result<std::unique_ptr<Program>> CpuProgram::make(std::span<const Step> steps, const CompileOptions& options) {
  auto program = std::make_unique<CpuProgram>();
  for (const Step& step : steps) {
    Compiled c;
    c.step = step;
    c.readers = readers_of(step);
    if (!options.taps)
      if (auto* in = const_cast<StepInput*>(input_of(c.step))) in->tap = -1;
    const auto* glu = std::get_if<GluStep>(&step);
    if (glu != nullptr && glu_function(vector_ops(Isa::kScalar), glu->glu) == nullptr)
      return fail(ErrorCode::kUnsupported, "cpu", fmt::format("a gated product by {}", glu_name(glu->glu)), kGluNames);
    program->steps_.push_back(std::move(c));
  }
  program->fuse();
  return std::unique_ptr<Program>(std::move(program));
}

void CpuProgram::fuse() {
  const size_t count = steps_.size();
  for (size_t i = 0; i < count; ++i) {
    Compiled& c = steps_[i];
    // The weights behind the last step are those of the next token's first.
    for (size_t j = 1; j <= count && c.next.empty(); ++j) c.next = steps_[(i + j) % count].readers;
    const auto* glu = std::get_if<GluStep>(&c.step);
    if (glu == nullptr || i + 1 == count) continue;
    Compiled& behind = steps_[i + 1];
    const auto* reader = std::get_if<LinearStep>(&behind.step);
    if (reader == nullptr || reader->in.from != glu->to || reader->in.norm != nullptr || reader->in.hadamard > 0 ||
        reader->in.tap >= 0 || reader->out.size() != 1 || has_own_norms(c.step) || has_own_norms(behind.step))
      continue;
    c.codes_for = behind.readers.front();
    behind.is_set = true;
  }
}

Status CpuProgram::run(Workspace& workspace, const Batch& batch, int first, int last) const {
  auto& work = static_cast<CpuWorkspace&>(workspace);
  Run run{work, batch, batch.rows()};
  work.rotate_to(batch.sequences);
  for (int i = first; i < last && run.m > 0; ++i) {
    const Compiled& c = steps_[size_t(i)];
    LOWBIT_TRY(std::visit([&](const auto& step) { return run_step(c, step, run); }, c.step));
  }
  return {};
}

Status CpuProgram::show(Workspace& workspace, const Batch& batch, int index) const {
  const Compiled& c = steps_[size_t(index)];
  const StepInput* in = input_of(c.step);
  if (in == nullptr || in->tap < 0)
    return fail(ErrorCode::kInvalidArgument, "show", fmt::format("step {}", index), "one with a tap");
  return set_input(c, *in, 0, batch.rows(), static_cast<CpuWorkspace&>(workspace));
}

Status CpuProgram::run_step(const Compiled&, const EmbedStep& step, Run& run) const {
  const StepTimer timer(run.work.profile_, ModelStep::kEmbed);
  const QTensor& table = cpu_weight(step.table)->table;
  float* const x = run.work.slot(step.to);
  run.work.pool_->parallel_for(run.m, 32, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) dequantize_rows(table, run.batch.tokens[size_t(r)], 1, x + r * table.k);
  });
  return check_pages(table.codes.data(), cpu_weight(step.table)->name.c_str());
}

Status CpuProgram::set_input(const Compiled& c, const StepInput& in, int64_t row, int64_t m, CpuWorkspace& work) const {
  if (c.is_set) return {};
  const int64_t width = c.readers.front()->plan.k();
  float* rows = work.slot(in.from) + row * width;
  const bool shown = in.tap >= 0 && work.observer_;
  const bool wants_rows = in.hadamard > 0 || has_own_norms(c.step);
  work.input_.set_rounding(c.readers.front()->rounding);
  if (in.norm != nullptr) {
    const StepTimer timer(work.profile_, ModelStep::kNorm);
    const NormedRows normed{rows, in.norm->weight.data(), in.norm->eps, m, width};
    rows = work.normed_.as<float>();
    if (!wants_rows) LOWBIT_TRY(work.input_.set_normed(normed, c.readers, rows));
    if (!wants_rows && !shown) return {};
    rms_norm_rows(*work.ops_, normed.x, width, normed.weight, m, width, normed.eps, rows, width, *work.pool_);
  }
  if (in.hadamard > 0) {
    if (in.norm == nullptr && in.tap >= 0) {  // the step may be run again from its rows
      std::copy_n(rows, m * width, work.normed_.as<float>());
      rows = work.normed_.as<float>();
    }
    hadamard_rows(*work.ops_, rows, m, width, in.hadamard, *work.pool_);
  }
  if (wants_rows || in.norm == nullptr) work.input_.set(rows, m, width);
  work.rows_of_input_ = rows;
  return shown ? work.observer_(in.tap, rows, m, width) : Status{};
}

Status CpuProgram::run_normed(const LinearCall& call, const Norm* norm, Linears next, Run& run) const {
  CpuWorkspace& work = run.work;
  const int64_t width = call.linear->plan.k();
  const float* rows = work.rows_of_input_;
  if (norm != nullptr) {
    auto* const own = work.own_.as<float>();
    rms_norm_rows(*work.ops_, rows, width, norm->weight.data(), run.m, width, norm->eps, own, width, *work.pool_);
    rows = own;
  }
  work.input_.set(rows, run.m, width);
  return work.input_.run({&call, 1}, next);
}

Status CpuProgram::run_step(const Compiled& c, const LinearStep& step, Run& run) const {
  if (step.out.front().to == kLogits) return run_head(c, step, run);
  CpuWorkspace& work = run.work;
  LOWBIT_TRY(set_input(c, step.in, 0, run.m, work));
  std::array<LinearCall, 4> calls;
  {
    const StepTimer timer = time_products(work.profile_, step.label, run.m, c.readers);
    for (size_t i = 0; i < step.out.size(); ++i) {
      const Product& p = step.out[i];
      calls[i] = {c.readers[i], p.add ? work.sum_.as<float>() : work.slot(p.to), c.readers[i]->plan.n()};
    }
    if (has_own_norms(c.step)) {
      for (size_t i = 0; i < step.out.size(); ++i) LOWBIT_TRY(run_normed(calls[i], step.out[i].norm, c.next, run));
    } else {
      LOWBIT_TRY(work.input_.run(std::span(calls).first(step.out.size()), c.next));
    }
  }
  const Product& p = step.out.front();
  if (!p.add) return {};
  const StepTimer timer(work.profile_, ModelStep::kAdd);
  const int64_t width = c.readers.front()->plan.n();
  const float* const sum = work.sum_.as<float>();
  float* const x = work.slot(p.to);
  work.pool_->parallel_for(run.m, std::max<int64_t>(1, 32768 / width), [&](int64_t begin, int64_t end, int) {
    work.ops_->add(sum + begin * width, (end - begin) * width, x + begin * width);
  });
  return {};
}

Status CpuProgram::run_step(const Compiled& c, const GluStep& step, Run& run) const {
  CpuWorkspace& work = run.work;
  LOWBIT_TRY(set_input(c, step.in, 0, run.m, work));
  const StepTimer timer = time_products(work.profile_, ModelStep::kGateUp, run.m, c.readers);
  const int64_t width = c.readers[0]->plan.n();
  const LinearCall gate{c.readers[0], work.slot(step.to), width}, up{c.readers[1], work.up_.as<float>(), width};
  if (!has_own_norms(c.step)) return work.input_.run_gated(gate, up, step.glu, c.codes_for, c.next);
  LOWBIT_TRY(run_normed(gate, step.gate_norm, c.next, run));
  LOWBIT_TRY(run_normed(up, step.up_norm, c.next, run));
  const GluFunction multiply = glu_function(*work.ops_, step.glu);
  work.pool_->parallel_for(run.m, 1, [&](int64_t begin, int64_t end, int) {
    multiply(gate.y + begin * width, up.y + begin * width, (end - begin) * width, gate.y + begin * width);
  });
  return {};
}

Status CpuProgram::run_step(const Compiled& c, const AttentionStep& step, Run& run) const {
  CpuWorkspace& work = run.work;
  const AttentionSpec& a = *step.spec;
  const auto sequences = run.batch.sequences;
  float *q = work.slot(step.q), *k = work.slot(step.k), *v = work.slot(step.v), *out = work.slot(step.to);
  {
    const StepTimer timer(work.profile_, ModelStep::kRotate);
    const auto norm = [&](const Norm* by, float* x, int64_t heads) {
      if (by != nullptr)
        rms_norm_rows(*work.ops_, x, a.head_dim, by->weight.data(), run.m * heads, a.head_dim, by->eps, x, a.head_dim,
                      *work.pool_);
    };
    norm(step.q_norm, q, a.heads);
    norm(step.k_norm, k, a.kv_heads);
    const CpuWorkspace::Rotation& r = *work.rotation_of(a);
    rotate_and_store(*work.ops_, {step.layer, a.heads, q, k, v, r.cos.as<float>(), r.sin.as<float>()}, sequences,
                     *work.pool_);
    for (const SequenceRows& s : sequences) s.cache->pack(step.layer, s.rows, *work.pool_);
  }
  double keys = 0, seen = 0;  // positions that are read, and pairs of query and position
  for (const SequenceRows& s : sequences) {
    keys += double(s.position + s.rows);
    seen += double(s.rows) * (double(s.position) + 0.5 * double(s.rows + 1));
  }
  const StepTimer timer(work.profile_, ModelStep::kAttention, 4.0 * double(a.kv_size()) * keys,
                        4.0 * seen * double(a.q_size()));
  Attention& attention = work.attention_of(a);
  for (const SequenceRows& s : sequences) LOWBIT_TRY(attention.reserve(s.position + s.rows));
  attention.run({step.layer, sequences, q, out, a.window}, work.input_.read_ahead(c.next));
  transform_back(*work.ops_, sequences.front().cache->group_of(step.layer), run.m, a.q_size(), out, *work.pool_);
  return {};
}

Status CpuProgram::run_step(const Compiled&, const GatherStep& step, Run& run) const {
  const int64_t width = run.work.widths_[step.slot];
  float* const x = run.work.slot(step.slot);
  run.m = 0;
  for (const WantedRows& w : run.batch.wanted) {
    if (w.row != run.m) std::copy_n(x + w.row * width, w.rows * width, x + run.m * width);  // to rows before
    run.m += w.rows;
  }
  return {};
}

Status CpuProgram::run_head(const Compiled& c, const LinearStep& step, Run& run) const {
  CpuWorkspace& work = run.work;
  const int64_t vocab = c.readers.front()->plan.n();
  const auto logits_of = [&](int64_t first, int64_t count, float* to) -> Status {
    LOWBIT_TRY(set_input(c, step.in, first, count, work));
    const StepTimer timer = time_products(work.profile_, step.label, count, c.readers);
    const LinearCall call{c.readers.front(), to, vocab};
    return work.input_.run({&call, 1}, c.next);
  };
  const auto wanted = run.batch.wanted;
  if (wanted.size() == 1 && wanted[0].sink == nullptr) return logits_of(0, run.m, wanted[0].logits);
  const int64_t at_once = rows_of_logits(vocab), bytes = std::min(at_once, run.m) * vocab * int64_t(sizeof(float));
  if (work.logits_.size() < bytes) {
    LOWBIT_TRY_ASSIGN(work.logits_, Buffer::allocate(bytes, "logits"));
  }
  auto* const logits = work.logits_.as<float>();
  for (int64_t first = 0; first < run.m; first += at_once) {
    const int64_t count = std::min(at_once, run.m - first);
    LOWBIT_TRY(logits_of(first, count, logits));
    hand_out_logits(wanted, first, count, logits, vocab, *work.pool_);
  }
  return {};
}

}  // namespace lowbit
