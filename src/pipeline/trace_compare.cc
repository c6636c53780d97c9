// Statistics of a trace, and the first difference of two.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/try.h"
#include "pipeline/trace_file.h"

namespace lowbit {
namespace {

constexpr int64_t kRowsBytes = int64_t{1} << 18;

/// The rows of one tap in run order, a few of them in memory.
class TapRows {
 public:
  TapRows(const TraceFileReader& file, size_t tap)
      : file_(file), tap_(tap), spec_(file.header().taps[tap]), offset_(file.begin()) {}

  /// On to the next row; false behind the last.
  Result<bool> next() {
    for (++row_; row_ >= rows_; row_ = 0) {
      tokens_before_ += int64_t(pass_.tokens.size());
      LOWBIT_TRY_ASSIGN(const bool more, file_.next(offset_, pass_));
      if (!more) return false;
      ++passes_;
      rows_ = pass_.rows_of(spec_);
      chunk_end_ = 0;
    }
    if (row_ < chunk_end_) return true;
    const int64_t most = std::max<int64_t>(1, kRowsBytes / (spec_.width * int64_t(sizeof(float))));
    chunk_begin_ = row_;
    chunk_end_ = std::min(rows_, row_ + most);
    values_.resize(size_t((chunk_end_ - chunk_begin_) * spec_.width));
    LOWBIT_TRY(file_.rows(offset_, pass_, tap_, chunk_begin_, chunk_end_ - chunk_begin_, values_.data()));
    return true;
  }

  std::span<const float> row() const {
    return std::span(values_).subspan(size_t((row_ - chunk_begin_) * spec_.width), size_t(spec_.width));
  }
  int64_t token() const { return tokens_before_ + in_pass(); }  // counted from the first of the trace
  int64_t pass() const { return passes_ - 1; }
  TracePlace place(size_t column) const { return {spec_.name, pass_.position + in_pass(), int64_t(column)}; }

 private:
  int64_t in_pass() const { return spec_.wanted ? pass_.first + row_ : row_; }
  const TraceFileReader& file_;
  size_t tap_;
  const TraceTap& spec_;
  int64_t offset_, passes_ = 0, tokens_before_ = 0;
  TracePass pass_;
  int64_t row_ = -1, rows_ = 0, chunk_begin_ = 0, chunk_end_ = 0;
  std::vector<float> values_;
};

/// The tokens of a trace, one after the other.
class TracedTokens {
 public:
  explicit TracedTokens(const TraceFileReader& file) : file_(file), offset_(file.begin()) {}
  Result<bool> next() {
    if (++at_ < int64_t(pass_.tokens.size())) return true;
    at_ = 0;
    return file_.next(offset_, pass_);
  }
  int64_t position() const { return pass_.position + at_; }
  TokenId token() const { return pass_.tokens[size_t(at_)]; }

 private:
  const TraceFileReader& file_;
  int64_t offset_, at_ = -1;
  TracePass pass_;
};

/// Something in run order: the first pass that has it, there the first tap.
template <class T>
struct Earliest {
  std::optional<T> value;
  int64_t pass = std::numeric_limits<int64_t>::max();
  /// Taps come in their order.
  bool precedes(int64_t other) const { return pass <= other; }
  void set(T to, int64_t at) {
    pass = at;
    value = std::move(to);
  }
};

/// Equality as in docs/numerics.md: equal bits, or NaN on both sides.
bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

/// Checks that both traces have the same taps.
Status check_same_taps(const TraceHeader& got, const TraceHeader& wanted) {
  const auto text = [](const TraceHeader& header, size_t tap) {
    return tap < header.taps.size() ? fmt::format("{} of {} columns", header.taps[tap].name, header.taps[tap].width)
                                    : std::string("no tap");
  };
  for (size_t i = 0; i < std::max(got.taps.size(), wanted.taps.size()); ++i) {
    const bool both = i < got.taps.size() && i < wanted.taps.size();
    if (both && got.taps[i].name == wanted.taps[i].name && got.taps[i].width == wanted.taps[i].width &&
        got.taps[i].wanted == wanted.taps[i].wanted)
      continue;
    return fail(ErrorCode::kShapeMismatch, fmt::format("{}, tap {}", got.info.path, i), text(got, i),
                fmt::format("{} as in {}", text(wanted, i), wanted.info.path), "these are runs of different networks");
  }
  return {};
}

Status compare_tokens(const TraceFileReader& a, const TraceFileReader& b, TraceComparison& out) {
  TracedTokens got(a), wanted(b);
  for (;; ++out.tokens) {
    LOWBIT_TRY_ASSIGN(const bool more_got, got.next());
    LOWBIT_TRY_ASSIGN(const bool more_wanted, wanted.next());
    if (!more_got && !more_wanted) return {};
    if (more_got && more_wanted && got.position() != wanted.position())
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}, token {}", out.got.path, out.tokens),
                  fmt::format("position {}", got.position()),
                  fmt::format("{} as in {}", wanted.position(), out.wanted.path));
    TokenDifference parted{more_got ? got.position() : wanted.position(), {}, {}};
    if (more_got) parted.got = got.token();
    if (more_wanted) parted.wanted = wanted.token();
    if (parted.got == parted.wanted) continue;
    out.parted = parted;
    return {};
  }
}

/// One tap, up to the token where the sequences part.
class TapDifferences {
 public:
  explicit TapDifferences(std::string tap) { out_.tap = std::move(tap); }

  void add(const TapRows& got, const TapRows& wanted, Earliest<TraceDifference>& first) {
    const auto a = got.row(), b = wanted.row();
    ++out_.rows;
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isfinite(b[i])) squares_ += double(b[i]) * double(b[i]);
      if (same_bits(a[i], b[i])) continue;
      if (!out_.first) {
        out_.first = TraceDifference{got.place(i), a[i], b[i]};
        if (!first.precedes(got.pass())) first.set(*out_.first, got.pass());
      }
      double difference = std::abs(double(a[i]) - double(b[i]));
      if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
      out_.largest = std::max(out_.largest, difference);
      squares_of_differences_ += difference * difference;
    }
  }
  TapComparison result() {
    if (squares_of_differences_ > 0) out_.relative_rms = std::sqrt(squares_of_differences_ / squares_);
    return std::move(out_);
  }

 private:
  TapComparison out_;
  double squares_ = 0, squares_of_differences_ = 0;
};

Result<TapComparison> compare_tap(const TraceFileReader& a, const TraceFileReader& b, size_t tap, int64_t tokens,
                                  Earliest<TraceDifference>& first) {
  TapRows got(a, tap), wanted(b, tap);
  TapDifferences differences(a.header().taps[tap].name);
  bool step_got = true, step_wanted = true;
  while (true) {
    if (step_got) {
      LOWBIT_TRY_ASSIGN(const bool more, got.next());
      if (!more || got.token() >= tokens) return differences.result();
    }
    if (step_wanted) {
      LOWBIT_TRY_ASSIGN(const bool more, wanted.next());
      if (!more || wanted.token() >= tokens) return differences.result();
    }
    step_got = got.token() <= wanted.token();  // logits need not be wanted of the same tokens
    step_wanted = wanted.token() <= got.token();
    if (step_got && step_wanted) differences.add(got, wanted, first);
  }
}

Result<TapSummary> summarize_tap(const TraceFileReader& file, size_t tap, Earliest<TracePlace>& not_finite) {
  const TraceTap& spec = file.header().taps[tap];
  TapSummary out{.tap = spec.name, .width = spec.width};
  double low = std::numeric_limits<double>::infinity(), high = -low, squares = 0;
  int64_t finite = 0;
  TapRows rows(file, tap);
  while (true) {
    LOWBIT_TRY_ASSIGN(const bool more, rows.next());
    if (!more) break;
    ++out.rows;
    const auto row = rows.row();
    for (size_t i = 0; i < row.size(); ++i) {
      const double x = double(row[i]);
      if (!std::isfinite(x)) {
        ++(std::isnan(x) ? out.nans : out.infinities);
        if (!not_finite.precedes(rows.pass())) not_finite.set(rows.place(i), rows.pass());
        continue;
      }
      ++finite;
      low = std::min(low, x);
      high = std::max(high, x);
      squares += x * x;
    }
  }
  if (finite == 0) return out;
  out.min = low;
  out.max = high;
  out.rms = std::sqrt(squares / double(finite));
  return out;
}

}  // namespace

Result<TraceSummary> summarize_trace(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const TraceFileReader file, TraceFileReader::open(path));
  TraceSummary out;
  out.info = file.header().info;
  int64_t offset = file.begin();
  for (TracePass pass;; ++out.passes, out.tokens += int64_t(pass.tokens.size())) {
    LOWBIT_TRY_ASSIGN(const bool more, file.next(offset, pass));
    if (!more) break;
  }
  Earliest<TracePlace> not_finite;
  for (size_t tap = 0; tap < file.header().taps.size(); ++tap) {
    LOWBIT_TRY_ASSIGN(TapSummary summary, summarize_tap(file, tap, not_finite));
    out.taps.push_back(std::move(summary));
  }
  out.not_finite = not_finite.value;
  return out;
}

Result<TraceComparison> compare_traces(const std::string& got, const std::string& wanted) {
  LOWBIT_TRY_ASSIGN(const TraceFileReader a, TraceFileReader::open(got));
  LOWBIT_TRY_ASSIGN(const TraceFileReader b, TraceFileReader::open(wanted));
  LOWBIT_TRY(check_same_taps(a.header(), b.header()));
  TraceComparison out;
  out.got = a.header().info;
  out.wanted = b.header().info;
  LOWBIT_TRY(compare_tokens(a, b, out));
  if (out.parted && out.tokens == 0) {
    const auto text = [](const std::optional<TokenId>& id) { return id ? fmt::format("{}", *id) : "an empty trace"; };
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}, token 0", got), text(out.parted->got),
                fmt::format("{} as in {}", text(out.parted->wanted), wanted), "trace both runs with the same prompt");
  }
  Earliest<TraceDifference> first;
  for (size_t tap = 0; tap < a.header().taps.size(); ++tap) {
    LOWBIT_TRY_ASSIGN(TapComparison comparison, compare_tap(a, b, tap, out.tokens, first));
    out.taps.push_back(std::move(comparison));
  }
  out.first = first.value;
  return out;
}

}  // namespace lowbit
