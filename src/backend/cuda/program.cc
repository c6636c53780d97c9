#include "backend/cuda/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_halves_api.h"
#include "kernels/cuda_step_api.h"
#include "kernels/cuda_table_api.h"
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

/// Both read the same codes of the same rows.
bool takes_same_codes(const CudaWeight& a, const CudaWeight& b) {
  if (a.takes_fp8() && b.takes_fp8()) return true;
  return a.takes_codes() && b.takes_codes() && a.code_group() == b.code_group() && a.rounding == b.rounding;
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

/// The norms that a step's products apply to their own inputs; null: none.
std::vector<const Norm*> own_norms_of(const Step& step) {
  std::vector<const Norm*> norms;
  if (const auto* glu = std::get_if<GluStep>(&step)) norms = {glu->gate_norm, glu->up_norm};
  if (const auto* linear = std::get_if<LinearStep>(&step))
    for (const Product& p : linear->out) norms.push_back(p.norm);
  return norms;
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
  static std::atomic<int64_t> programs = 0;
  auto program = std::make_unique<CudaProgram>();
  program->id_ = ++programs;
  program->exact_ = options.exact;
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
    for (const Norm* norm : own_norms_of(step)) LOWBIT_TRY(upload_norm(norm, c.own_norms.emplace_back()));
    program->steps_.push_back(std::move(c));
  }
  return std::unique_ptr<Program>(std::move(program));
}

Status CudaProgram::run(Workspace& workspace, const Batch& batch, int first, int last) const {
  auto& work = static_cast<CudaWorkspace&>(workspace);
  LOWBIT_TRY(cuda::use_device(work.gpu_));
  for (int64_t pass = 0; pass < batch.passes; ++pass) {
    LOWBIT_TRY(run_pass(work, pass == 0 ? batch : work.later(batch, pass), pass, first, last));
    if (work.batch_.chooses() && last == steps()) LOWBIT_TRY(download_choices(work, pass, batch.passes));
  }
  if (last == steps()) LOWBIT_TRY(fetch(work, batch));
  return work.wait();  // pages may be copied or change hands now
}

Status CudaProgram::run_pass(CudaWorkspace& work, const Batch& batch, int64_t pass, int first, int last) const {
  LOWBIT_TRY(work.batch_.set(batch, pass, exact_, work.stream()));
  const auto enqueue = [&]() -> Status {
    Run run{work, batch, batch.rows()};
    work.deferred_ = {};  // of a pass that failed
    work.codes_of_ = {};  // slots may have been written
    if (work.batch_.chooses() && work.batch_.single_rows()) LOWBIT_TRY(feed_tokens(work, batch.rows()));
    for (int i = first; i < last && run.m > 0; ++i) {
      const Compiled& c = steps_[size_t(i)];
      if (input_of(c.step) == nullptr) work.codes_of_ = {};  // it may write what they stand for
      const StepTimer timer(work.profile_, label_of(c.step));
      LOWBIT_TRY(std::visit([&](const auto& step) { return run_step(c, step, run); }, c.step));
      if (work.profile_ != nullptr) LOWBIT_TRY(work.wait());
    }
    return work.finish_rows();
  };
  if (!repeats(work, batch)) return enqueue();
  return work.recordings_.run(shape_of(work, batch, first, last), work.stream(), enqueue);
}

/// Batches that decode come again with other tokens; what is observed or timed step by step is no recording.
bool CudaProgram::repeats(const CudaWorkspace& work, const Batch& batch) const {
  return work.batch_.single_rows() && batch.rows() > 0 && batch.rows() <= CudaBatch::kFewRows && !work.observer_ &&
         work.profile_ == nullptr && work.batch_.wanted_rows() <= work.rows_at_once() &&
         work.batch_.pack_count() + work.batch_.demote_count() == 0;
}

LaunchShape CudaProgram::shape_of(CudaWorkspace& work, const Batch& batch, int first, int last) const {
  LaunchShape shape = {id_,
                       first,
                       last,
                       batch.rows(),
                       work.batch_.wanted_rows(),
                       work.batch_.wanted_in_front(),
                       work.batch_.chooses(),
                       work.batch_.draws(),
                       work.batch_.wants_logits(),
                       work.batch_.changes().any(),
                       work.batch_.wants_logprobs(),
                       int64_t(reinterpret_cast<intptr_t>(work.batch_.changes().recent()))};
  for (int i = first; i < last; ++i) {
    const auto* step = std::get_if<AttentionStep>(&steps_[size_t(i)].step);
    if (step == nullptr) continue;
    const cuda::AttendPages call = attention_of(*step, work);
    for (const int64_t number :
         {call.tile_count, int64_t{call.tile_queries}, call.spans, call.kv.index, call.kv.kv_heads, call.kv.head_dim,
          int64_t(reinterpret_cast<intptr_t>(call.kv.tables))})
      shape.push_back(number);
  }
  return shape;
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
  const CudaWeight& w = cuda_weight(step.table);
  const DeviceTable& table = w.table;
  return cuda::table_rows({table.format, table.codes.as<uint8_t>(), table.row_bytes, w.k, floats_or_null(table.scales),
                           floats_or_null(table.offsets), floats_or_null(table.values), table.group,
                           run.work.batch_.tokens(), run.m, run.work.slot(step.to), run.work.stream()});
}

Result<const float*> CudaProgram::input(const Compiled& c, const StepInput& in, int64_t k, int64_t row, int64_t m,
                                        CudaWorkspace& work) const {
  LOWBIT_TRY(work.finish_rows());
  work.codes_of_ = {};
  float* x = work.slot(in.from) + row * k;
  float* const normed = work.normed_.as<float>();
  work.before_norm_ = {};
  if (in.norm != nullptr) {
    if (in.hadamard == 0) work.before_norm_ = {x, c.norm.as<float>(), in.norm->eps};
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

Result<const float*> CudaProgram::operand(const Compiled& c, const StepInput& in, const CudaWeight& reader, bool alike,
                                          int64_t row, int64_t m, CudaWorkspace& work) const {
  const bool seen = in.tap >= 0 && work.observer_;
  const bool coded_here = reader.takes_fp8() || (reader.takes_codes() && reader.rounding.is_default());
  if (!alike || !coded_here || in.hadamard > 0 || seen) return input(c, in, reader.k, row, m, work);
  if (row == 0) {
    LOWBIT_TRY_ASSIGN(const float* const x, coded(c, in, reader, m, work));
    if (x != nullptr) return x;
  }
  if (in.norm == nullptr || reader.takes_fp8() || !cuda::has_norm_codes(reader.k))
    return input(c, in, reader.k, row, m, work);
  LOWBIT_TRY(work.finish_rows());
  const auto* const x = work.normed_.as<float>();  // what the codes stand for; nobody reads it
  work.codes_of_ = {x, reader.code_group(), reader.rounding};
  LOWBIT_TRY(cuda::norm_codes({work.slot(in.from) + row * reader.k, c.norm.as<float>(), in.norm->eps, m, reader.k,
                               reader.code_group(), work.codes_.as<int8_t>(), round_up(reader.k, 64),
                               work.code_scales_.as<float>(), work.stream(), reader.rounding.exact_scales}));
  return x;
}

Status CudaProgram::halve(const CudaWeight& w, const float* x, int64_t m, CudaWorkspace& work) const {
  const CudaWorkspace::CodesOf of{x, 0, w.rounding};
  if (of == work.codes_of_) return {};
  work.codes_of_ = of;
  return cuda::halve_rows(
      {x, m, w.k, w.half() == cuda::Element::kBf16, work.codes_.as<uint16_t>(), round_up(w.k, 64), work.stream()});
}

DeviceRows CudaProgram::rounded_rows(const CudaWeight& w, int64_t m, CudaWorkspace& work) {
  const int64_t ldx = round_up(w.k, 64);
  if (w.takes_halves()) return {work.codes_.data(), w.half(), m, ldx, nullptr};
  return {work.codes_.data(), cuda::Element::kInt8, m, ldx, work.code_scales_.as<float>()};
}

Status CudaProgram::multiply_fp8(const CudaWeight& w, const float* x, int64_t m, float* y, CudaWorkspace& work) const {
  const CudaWorkspace::CodesOf of{x, kFp8Block, {}, true};
  auto* const codes = work.codes_.as<uint8_t>();
  auto* const scales = work.code_scales_.as<float>();
  if (!(of == work.codes_of_)) LOWBIT_TRY(w.fp8.quantize(x, m, codes, scales, work.stream()));
  work.codes_of_ = of;
  return w.fp8.multiply(codes, scales, floats_or_null(w.bias), m, y, exact_, work.stream());
}

Status CudaProgram::multiply(const CudaWeight& w, const float* x, int64_t m, float* y, CudaWorkspace& work) const {
  if (w.takes_fp8()) return multiply_fp8(w, x, m, y, work);
  DeviceRows rows{x, cuda::Element::kF32, m, w.k, nullptr};
  if (w.takes_codes() || w.takes_halves()) {
    LOWBIT_TRY(w.takes_codes() ? quantize(w, x, m, work) : halve(w, x, m, work));
    rows = rounded_rows(w, m, work);
  } else if (w.takes_rounded_floats()) {
    rows.x = work.clipped_.data();
    LOWBIT_TRY(
        cuda::round_to_halves(x, m * w.k, w.half() == cuda::Element::kBf16, work.clipped_.as<float>(), work.stream()));
  }
  return w.run(rows, y, work.scratch_.empty() ? nullptr : work.scratch_.as<uint8_t>(), work.stream());
}

Status CudaProgram::multiply_normed(const StepPart& part, const Buffer& weight, const Norm* norm, const float* x,
                                    int64_t m, CudaWorkspace& work) const {
  if (norm == nullptr) return multiply(*part.weight, x, m, part.to, work);
  work.codes_of_ = {};
  LOWBIT_TRY(
      cuda::norm_rows(x, weight.as<float>(), m, part.weight->k, norm->eps, work.own_.as<float>(), work.stream()));
  return multiply(*part.weight, work.own_.as<float>(), m, part.to, work);
}

Status CudaProgram::run_normed(const Compiled& c, const LinearStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  LOWBIT_TRY_ASSIGN(const float* const x, input(c, step.in, reader_of(c.step).k, 0, run.m, work));
  work.before_norm_ = {};
  for (size_t i = 0; i < step.out.size(); ++i) {
    const Product& p = step.out[i];
    const CudaWeight& w = cuda_weight(p.weight);
    float* const to = work.slot(p.to);
    LOWBIT_TRY(multiply_normed({&w, p.add ? work.sum_.as<float>() : to}, c.own_norms[i], p.norm, x, run.m, work));
    if (p.add) LOWBIT_TRY(cuda::add_rows(work.sum_.as<float>(), run.m * w.n, to, work.stream()));
  }
  return {};
}

Status CudaProgram::run_step(const Compiled& c, const LinearStep& step, Run& run) const {
  if (step.out.front().to == kLogits) return run_head(c, step, run);
  CudaWorkspace& work = run.work;
  const bool adds = step.out.front().add;
  if (std::ranges::any_of(c.own_norms, [](const Buffer& norm) { return !norm.empty(); }))
    return run_normed(c, step, run);
  std::vector<StepPart> parts;
  for (const Product& p : step.out) parts.push_back({&cuda_weight(p.weight), work.slot(p.to)});
  if (std::ranges::all_of(step.out, [&](const Product& p) { return p.add == adds; })) {
    const auto end = adds ? cuda::ProductEnd::kAdd : cuda::ProductEnd::kStore;
    LOWBIT_TRY_ASSIGN(const bool done, multiply_together(c, step.in, parts, end, run.m, work));
    if (done) return {};
  }
  const CudaWeight& front = reader_of(c.step);
  const bool alike =
      std::ranges::all_of(step.out, [&](const Product& p) { return takes_same_codes(front, cuda_weight(p.weight)); });
  LOWBIT_TRY_ASSIGN(const float* const x, operand(c, step.in, front, alike, 0, run.m, work));
  if (std::ranges::none_of(step.out, [](const Product& p) { return p.add; })) {
    LOWBIT_TRY(work.finish_rows());
    LOWBIT_TRY_ASSIGN(const bool done, multiply_side_by_side(parts, x, run.m, work));
    if (done) return {};
  }
  for (const Product& p : step.out) {
    const CudaWeight& w = cuda_weight(p.weight);
    LOWBIT_TRY(work.finish_rows());  // of a product before
    LOWBIT_TRY(multiply(w, x, run.m, p.add ? work.sum_.as<float>() : work.slot(p.to), work));
    if (p.add) work.deferred_ = {cuda::RowStart::kSum, p.to, run.m * w.n};
  }
  return {};
}

Status CudaProgram::run_step(const Compiled& c, const GluStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  const CudaWeight &gate = cuda_weight(step.gate), &up = cuda_weight(step.up);
  const StepPart parts[] = {{&gate, work.slot(step.to)}, {&up, work.up_.as<float>()}};
  const auto end = step.glu == Glu::kSquaredRelu ? cuda::ProductEnd::kSquaredRelu : cuda::ProductEnd::kSilu;
  if (step.gate_norm != nullptr || step.up_norm != nullptr) {
    LOWBIT_TRY_ASSIGN(const float* const x, input(c, step.in, gate.k, 0, run.m, work));
    work.before_norm_ = {};
    for (size_t i = 0; i < std::size(parts); ++i)
      LOWBIT_TRY(multiply_normed(parts[i], c.own_norms[i], i == 0 ? step.gate_norm : step.up_norm, x, run.m, work));
  } else {
    LOWBIT_TRY_ASSIGN(const bool done, multiply_together(c, step.in, parts, end, run.m, work));
    if (done) return {};
    LOWBIT_TRY_ASSIGN(const float* const x, operand(c, step.in, gate, takes_same_codes(gate, up), 0, run.m, work));
    LOWBIT_TRY_ASSIGN(const bool together, multiply_side_by_side(parts, x, run.m, work));
    for (const StepPart& part : parts)
      if (!together) LOWBIT_TRY(multiply(*part.weight, x, run.m, part.to, work));
  }
  const bool squares = step.glu == Glu::kSquaredRelu;
  work.deferred_ = {squares ? cuda::RowStart::kSquaredRelu : cuda::RowStart::kSilu, step.to, run.m * gate.n};
  return {};
}

Status CudaProgram::run_step(const Compiled& c, const AttentionStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  LOWBIT_TRY(work.finish_rows());
  const AttentionSpec& a = *step.spec;
  float *const q = work.slot(step.q), *const k = work.slot(step.k);
  const auto norm = [&](const Norm* by, const Buffer& weight, float* x, int64_t heads) -> Status {
    if (by == nullptr) return {};
    return cuda::norm_rows(x, weight.as<float>(), run.m * heads, a.head_dim, by->eps, x, work.stream());
  };
  LOWBIT_TRY(norm(step.q_norm, c.q_norm, q, a.heads));
  LOWBIT_TRY(norm(step.k_norm, c.k_norm, k, a.kv_heads));
  if (work.batch_.is_packed(step.layer)) return run_packed(step, run);
  const CudaWorkspace::Rotation& r = *work.rotation_of(a);
  const cuda::AttendPages attend = attention_of(step, work);
  if (takes_step(attend, work))
    return cuda::attend_step(
        {attend, k, work.slot(step.v), r.cos.as<float>(), r.sin.as<float>(), true, work.arrived_.as<uint32_t>()});
  LOWBIT_TRY(cuda::rotate_and_store({q, k, work.slot(step.v), r.cos.as<float>(), r.sin.as<float>(), work.batch_.rows(),
                                     work.batch_.pages(step.layer), run.m, a.heads, work.stream()}));
  LOWBIT_TRY(cuda::attend_pages(prompt_attention_of(step, work)));
  return cuda::attend_pages(attend);
}

/// Sequences that decode: rotation, new rows and all spans in one launch, if a thread block has room for a span.
bool CudaProgram::takes_step(const cuda::AttendPages& call, const CudaWorkspace& work) {
  return work.batch_.single_rows() && call.heads / call.kv.kv_heads <= call.tile_queries &&
         (call.spans == 1 || call.results != nullptr) && cuda::has_attend_step(call);
}

cuda::AttendPages CudaProgram::attention_of(const AttentionStep& step, CudaWorkspace& work) const {
  const CudaBatch::Tiles tiles =
      work.batch_.tiles(step.spec->heads / step.spec->kv_heads, work.batch_.is_packed(step.layer));
  return attention_on(tiles, 2 * work.multiprocessors_, step, work);
}

cuda::AttendPages CudaProgram::prompt_attention_of(const AttentionStep& step, CudaWorkspace& work) const {
  const CudaBatch::Tiles tiles =
      work.batch_.prompt_tiles(step.spec->heads / step.spec->kv_heads, work.batch_.is_packed(step.layer));
  return attention_on(tiles, work.multiprocessors_, step, work);
}

cuda::AttendPages CudaProgram::attention_on(const CudaBatch::Tiles& tiles, int64_t blocks, const AttentionStep& step,
                                            CudaWorkspace& work) const {
  const AttentionSpec& a = *step.spec;
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
  call.exact = exact_;
  // Few tiles would leave processors without work: then every span of a tile is a block's own.
  // Rounded up to a power of two: a recorded launch has room for some more.
  const int64_t spans = std::min(int64_t(std::bit_ceil(uint64_t(work.batch_.most_spans(a.window)))), work.most_spans_);
  const int64_t floats = cuda::attend_results_floats(tiles.count, tiles.queries, spans, a.kv_heads, a.head_dim);
  const bool few = tiles.count * a.kv_heads < blocks;
  // One span alone needs no results, but packed pages are read by a kernel that writes them (attention_packed_span.cu).
  const bool apart = spans > 1 || work.batch_.is_packed(step.layer);
  if ((few || work.batch_.single_rows()) && apart && floats * kFloat <= work.results_.size())
    call.results = work.results_.as<float>();
  call.spans = spans;
  return call;
}

Status CudaProgram::run_step(const Compiled&, const GatherStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  LOWBIT_TRY(work.finish_rows());
  run.m = work.batch_.wanted_rows();
  if (work.batch_.wanted_in_front()) return {};
  const int64_t width = work.widths_[step.slot];
  float *const x = work.slot(step.slot), *const gathered = work.normed_.as<float>();
  LOWBIT_TRY(cuda::gather_rows(x, work.batch_.wanted(), run.m, width, gathered, work.stream()));
  return cuda::copy_on(work.stream(), x, gathered, run.m * width * kFloat);
}

}  // namespace lowbit
