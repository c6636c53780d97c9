// One step at a time, the state kept between calls.

#include <algorithm>

#include "base/try.h"
#include "gru/model.h"

namespace lowbit {

struct GruStream::Impl {
  GruModel model;
  std::shared_ptr<const GruPacked> packed;
  int64_t batch = 1;
  std::vector<uint16_t> x;                   // [N, C] of the first layer
  std::vector<std::vector<uint16_t>> state;  // per cell [N, H]
  std::vector<int32_t> ih;
  Buffer scratch;

  const GruModel::Impl& net() const { return model.impl(); }
  const GruCell& cell(size_t i) const { return net().cells[i]->cell(); }
  /// The first layer's x is in `x`; runs all layers.
  void advance() {
    const uint16_t* below = x.data();
    for (size_t i = 0; i < state.size(); ++i) {
      const GruSpec& spec = net().cells[i]->spec();
      const uint8_t* weights = packed->cells[i].as<uint8_t>();
      packed->kernel->input(spec, weights, below, batch, ih.data(), scratch.as<uint8_t>());
      packed->kernel->step(spec, weights, ih.data(), batch, state[i].data(), nullptr, scratch.as<uint8_t>());
      below = state[i].data();
    }
  }
};

GruStream::GruStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GruStream::~GruStream() = default;
GruStream::GruStream(GruStream&&) noexcept = default;
GruStream& GruStream::operator=(GruStream&&) noexcept = default;

Result<GruStream> GruModel::stream(int64_t batch, const std::string& isa) const {
  if (impl_->bidirectional)
    return fail(ErrorCode::kUnsupported, "gru stream", "a bidirectional network", "one that runs forward only",
                "the reverse direction starts at the end of the sequence: use run");
  if (batch < 1 || batch > kMaxGruSize)
    return fail(ErrorCode::kInvalidArgument, "gru stream", std::to_string(batch) + " sequences", "1 to 2^20");
  LOWBIT_TRY_ASSIGN(const Isa chosen, choose_isa(isa));
  const GruKernel& kernel = gru_kernel(chosen);
  auto s = std::make_unique<GruStream::Impl>(GruStream::Impl{*this, {}, batch, {}, {}, {}, {}});
  LOWBIT_TRY_ASSIGN(s->packed, impl_->packed_for(kernel));
  int64_t scratch = 0, widest = 0;
  for (const auto& cell : impl_->cells) {
    scratch = std::max(scratch, kernel.scratch_bytes(cell->spec(), batch));
    widest = std::max(widest, cell->spec().h);
    s->state.emplace_back(static_cast<size_t>(batch * cell->spec().h));
  }
  LOWBIT_TRY_ASSIGN(s->scratch, Buffer::allocate(scratch, "gru scratch"));
  s->x.resize(static_cast<size_t>(batch * input()));
  s->ih.resize(static_cast<size_t>(batch * 3 * widest));
  GruStream stream(std::move(s));
  stream.reset();
  return stream;
}

Status GruStream::step(std::span<const float> x, std::span<float> y) {
  Impl& s = *impl_;
  if (x.size() != s.x.size() || y.size() != s.state.back().size())
    return fail(ErrorCode::kShapeMismatch, "gru step",
                std::to_string(x.size()) + " inputs, " + std::to_string(y.size()) + " outputs",
                std::to_string(s.x.size()) + " and " + std::to_string(s.state.back().size()));
  const GruParam &in = s.cell(0)[GruTensor::kX], &out = s.cell(s.state.size() - 1)[GruTensor::kH];
  quantize_codes(x, in, s.x.data());
  s.advance();
  dequantize_codes(s.state.back(), out, y.data());
  return {};
}

Status GruStream::step_codes(std::span<const int32_t> x, std::span<int32_t> y) {
  Impl& s = *impl_;
  if (x.size() != s.x.size() || y.size() != s.state.back().size())
    return fail(ErrorCode::kShapeMismatch, "gru step",
                std::to_string(x.size()) + " inputs, " + std::to_string(y.size()) + " outputs",
                std::to_string(s.x.size()) + " and " + std::to_string(s.state.back().size()));
  const GruParam &in = s.cell(0)[GruTensor::kX], &out = s.cell(s.state.size() - 1)[GruTensor::kH];
  for (const int32_t q : x)
    if (q < in.lo() || q > in.hi())
      return fail(ErrorCode::kInvalidArgument, "gru step", "the input code " + std::to_string(q),
                  std::to_string(in.lo()) + " to " + std::to_string(in.hi()));
  for (size_t i = 0; i < x.size(); ++i) s.x[i] = static_cast<uint16_t>(x[i] - in.lo());
  s.advance();
  for (size_t i = 0; i < y.size(); ++i) y[i] = int32_t{s.state.back()[i]} + out.lo();
  return {};
}

void GruStream::reset() {
  for (size_t i = 0; i < impl_->state.size(); ++i) {
    const GruParam& h = impl_->cell(i)[GruTensor::kH];
    std::fill(impl_->state[i].begin(), impl_->state[i].end(), static_cast<uint16_t>(h.scale.zp - h.lo()));
  }
}

std::vector<float> GruStream::state() const {
  std::vector<float> out;
  for (size_t i = 0; i < impl_->state.size(); ++i) {
    const GruParam& h = impl_->cell(i)[GruTensor::kH];
    for (const uint16_t q : impl_->state[i])
      out.push_back(static_cast<float>(dequantize_value(int64_t{q} + h.lo(), h.scale)));
  }
  return out;
}

Status GruStream::set_state(std::span<const float> state) {
  const int64_t wanted = impl_->batch * impl_->net().state_size();
  if (static_cast<int64_t>(state.size()) != wanted)
    return fail(ErrorCode::kShapeMismatch, "gru state", std::to_string(state.size()) + " numbers",
                std::to_string(wanted));
  size_t at = 0;
  for (size_t i = 0; i < impl_->state.size(); ++i) {
    const GruParam& h = impl_->cell(i)[GruTensor::kH];
    for (uint16_t& q : impl_->state[i]) q = static_cast<uint16_t>(quantize_value(state[at++], h) - h.lo());
  }
  return {};
}

std::vector<int32_t> GruStream::state_codes() const {
  std::vector<int32_t> out;
  for (size_t i = 0; i < impl_->state.size(); ++i)
    for (const uint16_t q : impl_->state[i]) out.push_back(int32_t{q} + impl_->cell(i)[GruTensor::kH].lo());
  return out;
}

Status GruStream::set_state_codes(std::span<const int32_t> state) {
  const int64_t wanted = impl_->batch * impl_->net().state_size();
  if (static_cast<int64_t>(state.size()) != wanted)
    return fail(ErrorCode::kShapeMismatch, "gru state", std::to_string(state.size()) + " codes",
                std::to_string(wanted));
  auto codes = impl_->state;  // all of them are right before one takes effect
  size_t at = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const GruParam& h = impl_->cell(i)[GruTensor::kH];
    for (uint16_t& code : codes[i]) {
      const int32_t q = state[at++];
      if (q < h.lo() || q > h.hi())
        return fail(ErrorCode::kInvalidArgument, "gru state", "the code " + std::to_string(q),
                    std::to_string(h.lo()) + " to " + std::to_string(h.hi()));
      code = static_cast<uint16_t>(q - h.lo());
    }
  }
  impl_->state = std::move(codes);
  return {};
}

}  // namespace lowbit
