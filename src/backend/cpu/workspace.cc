#include <algorithm>

#include "backend/cpu/program.h"
#include "base/try.h"
#include "ops/rope.h"

namespace lowbit {
namespace {

bool same_shape(const AttentionShape& shape, const AttentionSpec& spec) {
  return shape.heads == spec.heads && shape.kv_heads == spec.kv_heads && shape.head_dim == spec.head_dim &&
         shape.scale == spec.scale;
}

/// Hidden states of a text are far more than the caches hold, so threads share the copying of them.
constexpr int64_t kCopiedAtOnce = 1 << 16;

}  // namespace

Result<std::unique_ptr<CpuWorkspace>> CpuWorkspace::make(std::span<const Step> steps, const Limits& limits, Isa isa,
                                                         ThreadPool& pool, bool tune) {
  std::unique_ptr<CpuWorkspace> work(new CpuWorkspace(isa, pool));
  if (tune) work->input_.tune();
  LOWBIT_TRY(work->allocate(steps, limits));
  return work;
}

Status CpuWorkspace::allocate(std::span<const Step> steps, const Limits& limits) {
  rows_ = limits.rows;
  widths_.assign(limits.widths.begin(), limits.widths.end());
  const auto rows = [&](Buffer& buffer, int64_t width) -> Status {
    LOWBIT_TRY_ASSIGN(buffer, Buffer::allocate(rows_ * width * int64_t(sizeof(float)), "workspace", Pages::kLarge));
    return {};
  };
  slots_.resize(widths_.size());
  for (size_t s = 0; s < widths_.size(); ++s) LOWBIT_TRY(rows(slots_[s], widths_[s]));
  int64_t normed = 0, sum = 0, gated = 0, own = 0;
  for (const Step& step : steps) {
    if (const auto* linear = std::get_if<LinearStep>(&step)) {
      if (linear->in.norm != nullptr || linear->in.hadamard > 0) normed = std::max(normed, widths_[linear->in.from]);
      for (const Product& p : linear->out)
        if (p.add) sum = std::max(sum, widths_[p.to]);
      for (const Product& p : linear->out)
        if (p.norm != nullptr) own = std::max(own, widths_[linear->in.from]);
    }
    if (const auto* glu = std::get_if<GluStep>(&step)) {
      if (glu->in.norm != nullptr) normed = std::max(normed, widths_[glu->in.from]);
      gated = std::max(gated, widths_[glu->to]);
      if (glu->gate_norm != nullptr || glu->up_norm != nullptr) own = std::max(own, widths_[glu->in.from]);
    }
    const auto* attention = std::get_if<AttentionStep>(&step);
    if (attention == nullptr) continue;
    const AttentionSpec& spec = *attention->spec;
    if (spec.rope && rotation_of(spec) == nullptr) {
      Rotation r{*spec.rope, rope_frequencies(*spec.rope), {}, {}};
      LOWBIT_TRY(rows(r.cos, spec.rope->dims / 2));
      LOWBIT_TRY(rows(r.sin, spec.rope->dims / 2));
      rotations_.push_back(std::move(r));
    }
    if (std::ranges::any_of(attentions_, [&](const auto& a) { return same_shape(a.first, spec); })) continue;
    const AttentionShape shape{spec.heads, spec.kv_heads, spec.head_dim, spec.scale};
    LOWBIT_TRY_ASSIGN(Attention made, Attention::make(*ops_, shape, *pool_));
    LOWBIT_TRY(made.reserve(limits.context));
    attentions_.emplace_back(shape, std::move(made));
  }
  LOWBIT_TRY(rows(normed_, normed));
  LOWBIT_TRY(rows(sum_, sum));
  LOWBIT_TRY(rows(own_, own));
  return rows(up_, gated);
}

int64_t CpuWorkspace::bytes() const {
  int64_t total = normed_.size() + sum_.size() + up_.size() + own_.size() + logits_.size();
  for (const Buffer& s : slots_) total += s.size();
  for (const Rotation& r : rotations_) total += r.cos.size() + r.sin.size();
  for (const auto& [shape, attention] : attentions_) total += attention.bytes();
  return total;
}

Status CpuWorkspace::read(Slot slot, int64_t first, int64_t rows, float* to) const {
  std::copy_n(slots_[slot].as<float>() + first * widths_[slot], rows * widths_[slot], to);
  return {};
}

Status CpuWorkspace::write(Slot slot, int64_t first, int64_t rows, const float* from) {
  std::copy_n(from, rows * widths_[slot], slots_[slot].as<float>() + first * widths_[slot]);
  return {};
}

Status CpuWorkspace::load(Slot slot, int64_t row, int64_t rows, const RowBuffer& from, int64_t at) {
  const int64_t width = widths_[slot];
  float* const to = slots_[slot].as<float>() + row * width;
  pool_->parallel_for(rows * width, kCopiedAtOnce,
                      [&](int64_t begin, int64_t end, int) { get_rows(from, at + begin, end - begin, to + begin); });
  return {};
}

Status CpuWorkspace::save(Slot slot, int64_t row, int64_t rows, RowBuffer& to, int64_t at) const {
  const int64_t width = widths_[slot];
  const float* const from = slots_[slot].as<float>() + row * width;
  pool_->parallel_for(rows * width, kCopiedAtOnce,
                      [&](int64_t begin, int64_t end, int) { put_rows(from + begin, end - begin, to, at + begin); });
  return {};
}

void CpuWorkspace::rotate_to(std::span<const SequenceRows> sequences) {
  const auto same = [](const SequenceRows& a, const SequenceRows& b) {
    return a.position == b.position && a.row == b.row && a.rows == b.rows;
  };
  if (std::ranges::equal(sequences, rotated_, same)) return;
  rotated_.assign(sequences.begin(), sequences.end());
  for (Rotation& r : rotations_)
    for (const SequenceRows& s : sequences) {
      const int64_t at = s.row * (r.spec.dims / 2);
      rope_table(r.frequencies, s.position, s.rows, r.cos.as<float>() + at, r.sin.as<float>() + at, *pool_);
    }
}

const CpuWorkspace::Rotation* CpuWorkspace::rotation_of(const AttentionSpec& spec) const {
  const auto it = std::ranges::find_if(rotations_, [&](const Rotation& r) { return r.spec == *spec.rope; });
  return it == rotations_.end() ? nullptr : &*it;
}

Attention& CpuWorkspace::attention_of(const AttentionSpec& spec) {
  return std::ranges::find_if(attentions_, [&](const auto& a) { return same_shape(a.first, spec); })->second;
}

}  // namespace lowbit
