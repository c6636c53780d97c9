#include "gru/schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/try.h"

namespace lowbit {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 40;

Status check_finite(std::span<const float> values, int64_t columns, const char* what) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return fail(ErrorCode::kInvalidArgument,
                  std::string(what) + " row " + std::to_string(static_cast<int64_t>(i) / columns) + " column " +
                      std::to_string(static_cast<int64_t>(i) % columns),
                  std::isnan(values[i]) ? "NaN" : "an infinity", "finite numbers");
  return {};
}

Status check_size(std::span<const float> values, int64_t rows, int64_t columns, const char* what) {
  if (static_cast<int64_t>(values.size()) == rows * columns) return {};
  return fail(ErrorCode::kShapeMismatch, what, std::to_string(values.size()) + " numbers",
              std::to_string(rows) + " rows of " + std::to_string(columns));
}

}  // namespace

Result<GruSchedule> GruSchedule::make(const GruInput& in, int64_t input, int64_t state_size, bool finite) {
  if (in.steps < 0 || in.batch < 1 || in.steps > kMaxRows / in.batch / std::max<int64_t>(input, 1))
    return fail(ErrorCode::kInvalidArgument, "gru input",
                std::to_string(in.steps) + " steps of " + std::to_string(in.batch) + " sequences",
                "at least one sequence, fewer than 2^40 numbers");
  LOWBIT_TRY(check_size(in.x, in.steps * in.batch, input, "gru x"));
  if (!in.h0.empty()) LOWBIT_TRY(check_size(in.h0, in.batch, state_size, "gru h0"));
  if (finite) {
    LOWBIT_TRY(check_finite(in.x, input, "gru x"));
    LOWBIT_TRY(check_finite(in.h0, state_size, "gru h0"));
  }
  const auto n = static_cast<size_t>(in.batch);
  if (!in.lengths.empty() && in.lengths.size() != n)
    return fail(ErrorCode::kShapeMismatch, "gru lengths", std::to_string(in.lengths.size()) + " lengths",
                std::to_string(n) + ", one per sequence");
  for (const int64_t length : in.lengths)
    if (length < 0 || length > in.steps)
      return fail(ErrorCode::kInvalidArgument, "gru lengths", std::to_string(length),
                  "0 to " + std::to_string(in.steps));
  GruSchedule s;
  s.steps_ = in.steps;
  s.batch_first_ = in.batch_first;
  s.order_.resize(n);
  std::iota(s.order_.begin(), s.order_.end(), int64_t{0});
  const auto length_of = [&](int64_t i) { return in.lengths.empty() ? in.steps : in.lengths[static_cast<size_t>(i)]; };
  std::stable_sort(s.order_.begin(), s.order_.end(), [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });
  for (const int64_t i : s.order_) s.length_.push_back(length_of(i));
  s.active_.assign(static_cast<size_t>(in.steps), 0);
  for (const int64_t length : s.length_)
    for (int64_t t = 0; t < length; ++t) ++s.active_[static_cast<size_t>(t)];
  return s;
}

}  // namespace lowbit
