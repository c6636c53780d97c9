#include "backend/cuda/workspace.h"

#include <algorithm>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_halves_api.h"
#include "kernels/cuda_logprob_api.h"
#include "kernels/cuda_sample_api.h"
#include "kernels/cuda_step_api.h"
#include "ops/rope.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr int64_t kMostLogitRows = 64, kLogitBytes = int64_t{64} << 20, kFewLogitBytes = int64_t{8} << 20;
constexpr int64_t kMostChoices = int64_t{1} << 23;  // as Sampler::sample()
constexpr int64_t kResultBytes = int64_t{64} << 20, kResultSequences = 16;

const CudaWeight& cuda_weight(const Weight* w) { return static_cast<const CudaWeight&>(*w); }

}  // namespace

Result<std::unique_ptr<CudaWorkspace>> CudaWorkspace::make(int gpu, std::span<const Step> steps, const Limits& limits,
                                                           ThreadPool& pool) {
  LOWBIT_TRY_ASSIGN(cuda::Stream stream, cuda::Stream::create());
  std::unique_ptr<CudaWorkspace> work(new CudaWorkspace(gpu, std::move(stream), pool));
  LOWBIT_TRY(work->allocate(steps, limits, pool));
  return work;
}

void CudaWorkspace::add_needs(const CudaWeight& w, Needs& needs) const {
  if (w.takes_fp8()) {
    needs.codes = std::max(needs.codes, CudaFp8Weight::row_bytes(w.k));
    needs.code_scales = std::max(needs.code_scales, w.fp8.blocks());
  }
  if (w.takes_halves()) needs.codes = std::max(needs.codes, int64_t{sizeof(uint16_t)} * round_up(w.k, 64));
  if (w.takes_rounded_floats()) needs.clipped = std::max(needs.clipped, w.k);
  if (!w.takes_codes()) return;
  const int64_t group = w.code_group();
  needs.codes = std::max(needs.codes, round_up(w.k, 64));
  needs.code_scales = std::max(needs.code_scales, group > 0 ? ceil_div(w.k, group) : 1);
  if (w.rounding.clipped > 0) needs.clipped = std::max(needs.clipped, w.k);
  for (int64_t m = 1; m <= rows_; ++m)
    needs.scratch = std::max(needs.scratch, w.plan.workspace_bytes(m, cuda::Element::kInt8));
}

Status CudaWorkspace::add_needs(const AttentionSpec& a, const Limits& limits, ThreadPool& pool, Needs& needs) {
  const int64_t share = a.heads / a.kv_heads;
  if (!std::ranges::count(needs.shares, share)) needs.shares.push_back(share);
  const int queries = cuda::attention_tile_queries(share);
  const int64_t one = cuda::attend_results_floats(ceil_div(share, int64_t{queries}), queries,
                                                  ceil_div(limits.context, kAttentionSpan), a.kv_heads, a.head_dim);
  const int64_t many = std::min(one * std::min(rows_, kResultSequences), kResultBytes / kFloat);
  const int64_t prompt_tiles = std::min(ceil_div(rows_ * share, int64_t{cuda::kPromptQueries}),
                                        ceil_div(int64_t{multiprocessors_}, a.kv_heads));  // more are not apart
  const int64_t prompt = cuda::attend_results_floats(prompt_tiles, cuda::kPromptQueries,
                                                     ceil_div(limits.context, kAttentionSpan), a.kv_heads, a.head_dim);
  needs.results = std::max({needs.results, one, many, std::min(prompt, kResultBytes / kFloat),
                            cuda::fast_packed_floats(multiprocessors_, a.kv_heads, a.head_dim)});
  needs.arrivals = std::max(needs.arrivals, a.kv_heads * ceil_div(share, int64_t{4}));
  if (rotation_of(a) != nullptr) return {};
  const int64_t positions = std::max<int64_t>(limits.context, 1), half = a.rope->dims / 2;
  std::vector<float> cos(size_t(positions * half)), sin(cos.size());
  rope_table(rope_frequencies(*a.rope), 0, positions, cos.data(), sin.data(), pool);
  Rotation rotation{*a.rope, {}, {}};
  LOWBIT_TRY_ASSIGN(rotation.cos, to_device(cos, "rotations"));
  LOWBIT_TRY_ASSIGN(rotation.sin, to_device(sin, "rotations"));
  rotations_.push_back(std::move(rotation));
  return {};
}

Status CudaWorkspace::allocate(std::span<const Step> steps, const Limits& limits, ThreadPool& pool) {
  rows_ = limits.rows;
  multiprocessors_ = cuda::devices()[size_t(gpu_)].multiprocessors;
  widths_.assign(limits.widths.begin(), limits.widths.end());
  Needs needs;
  const auto reads = [&](const StepInput& in) {
    if (in.norm != nullptr || in.hadamard > 0) needs.normed = std::max(needs.normed, widths_[in.from]);
  };
  for (const Step& step : steps) {
    if (const auto* linear = std::get_if<LinearStep>(&step)) {
      reads(linear->in);
      for (const Product& p : linear->out) {
        add_needs(cuda_weight(p.weight), needs);
        if (p.norm != nullptr) needs.own = std::max(needs.own, cuda_weight(p.weight).k);
        if (p.add) needs.sum = std::max(needs.sum, widths_[p.to]);
        if (p.to == kLogits) needs.vocab = std::max(needs.vocab, cuda_weight(p.weight).n);
      }
    } else if (const auto* glu = std::get_if<GluStep>(&step)) {
      reads(glu->in);
      add_needs(cuda_weight(glu->gate), needs);
      add_needs(cuda_weight(glu->up), needs);
      needs.up = std::max(needs.up, widths_[glu->to]);
      if (glu->gate_norm != nullptr || glu->up_norm != nullptr)
        needs.own = std::max(needs.own, cuda_weight(glu->gate).k);
    } else if (const auto* attention = std::get_if<AttentionStep>(&step)) {
      LOWBIT_TRY(add_needs(*attention->spec, limits, pool, needs));
    } else if (const auto* gather = std::get_if<GatherStep>(&step)) {
      needs.normed = std::max(needs.normed, widths_[gather->slot]);
    }
  }
  const auto take = [](Buffer& buffer, int64_t bytes) -> Status {
    LOWBIT_TRY_ASSIGN(buffer, cuda::allocate(bytes, "workspace"));
    return {};
  };
  slots_.resize(widths_.size());
  for (size_t s = 0; s < widths_.size(); ++s) LOWBIT_TRY(take(slots_[s], rows_ * widths_[s] * kFloat));
  LOWBIT_TRY(take(normed_, rows_ * needs.normed * kFloat));
  LOWBIT_TRY(take(sum_, std::max({rows_ * needs.sum, rows_ * needs.up, needs.results}) * kFloat));
  up_ = results_ = sum_;
  LOWBIT_TRY(take(clipped_, rows_ * needs.clipped * kFloat));
  LOWBIT_TRY(take(own_, rows_ * needs.own * kFloat));
  LOWBIT_TRY(take(codes_, rows_ * needs.codes));
  LOWBIT_TRY(take(code_scales_, CudaFp8Weight::scale_stride(rows_) * needs.code_scales * kFloat));
  LOWBIT_TRY(take(scratch_, needs.scratch));
  LOWBIT_TRY(take(arrived_, rows_ * needs.arrivals * int64_t{sizeof(uint32_t)}));
  LOWBIT_TRY(cuda::fill(arrived_, 0));
  if (needs.vocab > 0) logits_rows_ = std::clamp<int64_t>(kLogitBytes / (needs.vocab * kFloat), 1, kMostLogitRows);
  logits_rows_ = std::min(logits_rows_, rows_);
  LOWBIT_TRY(take(logits_, logits_rows_ * needs.vocab * kFloat));
  if (needs.vocab > 0) few_logits_ = std::clamp<int64_t>(kFewLogitBytes / (needs.vocab * kFloat), 1, logits_rows_);
  LOWBIT_TRY_ASSIGN(pinned_logits_, cuda::allocate_pinned(few_logits_ * needs.vocab * kFloat, "workspace"));
  if (needs.vocab > 0 && needs.vocab <= kMostChoices) LOWBIT_TRY(allocate_choices(needs.vocab));
  most_spans_ = ceil_div(std::max<int64_t>(limits.context, 1), kAttentionSpan);
  return batch_.reserve(rows_, limits.context, needs.shares);
}

Status CudaWorkspace::allocate_choices(int64_t vocab) {
  const int64_t bytes = rows_ * int64_t{sizeof(cuda::ChosenToken)};
  LOWBIT_TRY_ASSIGN(chosen_, cuda::allocate(bytes, "workspace"));
  LOWBIT_TRY(cuda::fill(chosen_, 0));  // read in front of the first pass, too
  LOWBIT_TRY_ASSIGN(pinned_chosen_, cuda::allocate_pinned(CudaBatch::kPasses * bytes, "workspace"));
  LOWBIT_TRY_ASSIGN(chosen_before_, cuda::allocate(CudaBatch::kPasses * bytes, "workspace"));
  const int64_t logprobs = rows_ * int64_t{sizeof(cuda::RowLogprobs)};
  LOWBIT_TRY_ASSIGN(logprobs_, cuda::allocate(logprobs, "workspace"));
  LOWBIT_TRY(cuda::fill(logprobs_, 0));  // copied whole
  LOWBIT_TRY_ASSIGN(pinned_logprobs_, cuda::allocate_pinned(CudaBatch::kPasses * logprobs, "workspace"));
  LOWBIT_TRY_ASSIGN(logprob_scratch_, cuda::allocate(cuda::logprob_scratch_bytes(logits_rows_, vocab), "workspace"));
  LOWBIT_TRY(cuda::fill(logprob_scratch_, 0));
  LOWBIT_TRY_ASSIGN(choose_scratch_, cuda::allocate(cuda::choose_scratch_bytes(logits_rows_), "workspace"));
  return cuda::fill(choose_scratch_, 0);
}

Result<std::unique_ptr<TokenLimits>> CudaWorkspace::place_limits(std::span<const std::pair<int32_t, float>> bias,
                                                                 std::span<const uint32_t> mask) const {
  LOWBIT_TRY(cuda::use_device(gpu_));
  return CudaTokenLimits::make(bias, mask);
}

Batch CudaWorkspace::later(const Batch& batch, int64_t pass) {
  sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  wanted_.assign(batch.wanted.begin(), batch.wanted.end());
  for (SequenceRows& s : sequences_) s.position += pass;
  for (WantedRows& w : wanted_) w.choice += pass;
  return {batch.tokens, sequences_, wanted_};
}

int64_t CudaWorkspace::bytes() const {
  int64_t total = batch_.bytes();
  for (const Buffer* b : {&normed_, &sum_, &clipped_, &own_, &codes_, &code_scales_, &scratch_, &logits_, &arrived_,
                          &chosen_, &chosen_before_, &logprobs_, &logprob_scratch_, &choose_scratch_})
    total += b->size();
  for (const Buffer& s : slots_) total += s.size();
  for (const Rotation& r : rotations_) total += r.cos.size() + r.sin.size();
  return total;
}

Status CudaWorkspace::read(Slot slot, int64_t first, int64_t rows, float* to) const {
  LOWBIT_TRY(cuda::use_device(gpu_));
  const int64_t width = widths_[slot];
  LOWBIT_TRY(cuda::download_on(stream(), to, slots_[slot].as<float>() + first * width, rows * width * kFloat));
  return wait();
}

Status CudaWorkspace::write(Slot slot, int64_t first, int64_t rows, const float* from) {
  LOWBIT_TRY(cuda::use_device(gpu_));
  const int64_t width = widths_[slot];
  LOWBIT_TRY(cuda::upload_on(stream(), slots_[slot].as<float>() + first * width, from, rows * width * kFloat));
  return wait();
}

Status CudaWorkspace::load(Slot slot, int64_t row, int64_t rows, const RowBuffer& from, int64_t at) {
  LOWBIT_TRY(cuda::use_device(gpu_));
  const int64_t width = widths_[slot];
  LOWBIT_TRY(cuda::copy_on(stream(), slots_[slot].as<float>() + row * width, from.bytes.as<float>() + at,
                           rows * width * kFloat));
  return wait();
}

Status CudaWorkspace::save(Slot slot, int64_t row, int64_t rows, RowBuffer& to, int64_t at) const {
  LOWBIT_TRY(cuda::use_device(gpu_));
  const int64_t count = rows * widths_[slot];
  const float* const from = slots_[slot].as<float>() + row * widths_[slot];
  float* const stored = to.bytes.as<float>() + at;
  LOWBIT_TRY(to.format == RowFormat::kBf16 ? cuda::round_to_halves(from, count, true, stored, stream())
                                           : cuda::copy_on(stream(), stored, from, count * kFloat));
  return wait();
}

const CudaWorkspace::Rotation* CudaWorkspace::rotation_of(const AttentionSpec& spec) const {
  const auto it = std::ranges::find_if(rotations_, [&](const Rotation& r) { return r.spec == *spec.rope; });
  return it == rotations_.end() ? nullptr : &*it;
}

}  // namespace lowbit
