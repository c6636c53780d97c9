#include "backend/cuda/marks.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/weight.h"
#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};
constexpr int64_t kAligned = 32;  // floats

/// Slots that the step writes.
std::vector<Slot> written_by(const Step& step) {
  std::vector<Slot> slots;
  if (const auto* embed = std::get_if<EmbedStep>(&step)) slots.push_back(embed->to);
  if (const auto* glu = std::get_if<GluStep>(&step)) slots.push_back(glu->to);
  if (const auto* attention = std::get_if<AttentionStep>(&step))
    slots.insert(slots.end(), {attention->q, attention->k, attention->to});
  if (const auto* linear = std::get_if<LinearStep>(&step))
    for (const Product& p : linear->out)
      if (p.to != kLogits) slots.push_back(p.to);
  return slots;
}

/// Products that take a scale of x per some columns have kernels that read and write marks.
bool reads_groups(const Step& step) {
  const auto of = [](const Weight* w) { return static_cast<const CudaWeight&>(*w).code_group() > 0; };
  if (const auto* glu = std::get_if<GluStep>(&step)) return of(glu->gate);
  const auto* linear = std::get_if<LinearStep>(&step);
  return linear != nullptr && linear->out.front().to != kLogits && of(linear->out.front().weight);
}

}  // namespace

Status Marks::reserve(std::span<const Step> steps, std::span<const int64_t> widths) {
  widths_.assign(widths.begin(), widths.end());
  places_.assign(widths_.size(), nullptr);
  next_ = places_;
  int64_t floats = 0;
  for (const Step& step : steps)
    for (const Slot slot : written_by(step)) floats += round_up(widths_[slot], kAligned);
  if (std::ranges::none_of(steps, reads_groups)) floats = 0;
  LOWBIT_TRY_ASSIGN(floats_, cuda::allocate(floats * kFloat, "workspace"));
  return {};
}

Status Marks::begin(int64_t rows, void* stream) {
  active_ = rows == 1;
  used_ = 0;
  std::fill(places_.begin(), places_.end(), nullptr);
  return active_ ? cuda::fill_on(stream, floats_.data(), 0xff, floats_.size()) : Status{};
}

float* Marks::add(Slot slot) {
  const int64_t end = used_ + round_up(widths_[slot], kAligned);
  if (!active_ || end * kFloat > floats_.size()) return nullptr;
  return next_[slot] = floats_.as<float>() + std::exchange(used_, end);
}

void Marks::end_step(const Step& step) {
  for (const Slot slot : written_by(step)) places_[slot] = std::exchange(next_[slot], nullptr);
}

}  // namespace lowbit
