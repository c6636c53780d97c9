#include "quantize/trellis_feedback.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

/// One state a lane, as many as the machine's vectors have: wider ones are split through memory, and cannot be
/// shuffled.
template <int W>
struct Lanes {
  typedef float Floats __attribute__((vector_size(4 * W)));
  typedef int32_t Ints __attribute__((vector_size(4 * W)));
  typedef uint8_t Bytes __attribute__((vector_size(W)));
  static constexpr int kVectors = kTrellisStates / W;
};

template <class V>
[[gnu::always_inline]] inline V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
template <class V>
[[gnu::always_inline]] inline void store(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

/// Lane i is element at[i] of a.
template <class Floats, class Ints>
[[gnu::always_inline]] inline Floats picked(Floats a, Ints at) {
#if defined(__clang__)
  Floats v{};
  for (size_t i = 0; i < sizeof(Floats) / sizeof(float); ++i) v[i] = a[at[i]];
  return v;
#else
  return __builtin_shuffle(a, at);
#endif
}

/// The state of the search behind a column: each state's cost, the state before it, and the error of its newest code.
struct alignas(64) Column {
  float cost[kTrellisStates];
  int32_t before[kTrellisStates];
  float error[kTrellisStates];
};

/// The reals of a column's codes: `values` [2^B, kTrellisStates] by window, times `scale`. `added`: to the target of
/// every path; `gain`: of the column's error, whose square is lost.
struct Choices {
  float base, added, gain, scale;
  const float* values;
};

/// States before those of vector v that have p as the oldest code of their window: one vector of them, and where in it.
template <int B, int W>
struct Before {
  static constexpr int kOldest = kTrellisStates >> B;
  static constexpr int block(int v, int p) { return (p * kOldest + (v * W >> B)) / W; }
  static constexpr int offset(int v, int p) { return p * kOldest - block(v, p) * W; }
  template <class Ints>
  [[gnu::always_inline]] static Ints at(int v, int p) {
    Ints lane{};
    for (int i = 0; i < W; ++i) lane[i] = ((i + v * W) >> B) + offset(v, p);
    return lane;
  }
};

/// Finds, among the 2^B states before each state (one for each oldest code of a window), the one with the least cost.
/// `moved`: what the errors of the path to each state before add to its target.
template <int B, int W>
[[gnu::always_inline]] inline void choose_paths(const Choices& of, const float* moved, const Column& before,
                                                Column& after, uint8_t* oldest) {
  using L = Lanes<W>;
  using Floats = typename L::Floats;
  using Ints = typename L::Ints;
  Floats targets[L::kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < L::kVectors; ++v) targets[v] = of.gain * (of.added + load<Floats>(moved + v * W));
  const Floats step = -(of.gain * of.scale) - Floats{};
#pragma GCC unroll 16
  for (int v = 0; v < L::kVectors; ++v) {
    Floats best{}, value{};
    Ints path{};
#pragma GCC unroll 8
    for (int p = 0; p < 1 << B; ++p) {
      const int from = Before<B, W>::block(v, p);
      const Ints at = Before<B, W>::template at<Ints>(v, p);
      const Floats choice = load<Floats>(of.values + p * kTrellisStates + v * W);
      const Floats d = fused(step, choice, picked(targets[from], at));
      const Floats cost = fused(d, d, picked(load<Floats>(before.cost + from * W), at));
      const Ints less = p == 0 ? Ints{} - 1 : cost < best;
      best = less ? cost : best;
      value = less ? choice : value;
      path = less ? Ints{} + p : path;
    }
    Ints state{};
    for (int i = 0; i < W; ++i) state[i] = (i + v * W) >> B;
    store(after.cost + v * W, best);
    store(after.before + v * W, path * Before<B, W>::kOldest + state);
    store(after.error + v * W, of.base - of.scale * value);
    store(oldest + v * W, __builtin_convertvector(path, typename L::Bytes));
  }
}

/// Errors of some columns, by state, and what each adds to the target of a column behind them.
struct Errors {
  const float (*by_state)[kTrellisStates];
  const float* carry;  // kStripWidth further for each column
  int64_t columns;
};

/// Rows of one value for each state, which follow the paths from the states `before`.
template <int W>
class Follower {
  using Floats = typename Lanes<W>::Floats;
  using Ints = typename Lanes<W>::Ints;

 public:
  [[gnu::always_inline]] static Follower from(const int32_t* before) {
    Follower paths;
    paths.before_ = before;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) paths.at_[v] = load<Ints>(before + v * W);
    return paths;
  }

  /// to = the row `from` behind the paths, and the errors made on the way, in their order.
  [[gnu::always_inline]] void follow(const float* from, const Errors& errors, float* to) const {
    Floats now[kVectors];
    pick(from, now);
#pragma GCC unroll 8
    for (int64_t i = 0; i < errors.columns; ++i) {
      const Floats carry = errors.carry[i * kStripWidth] - Floats{};
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) now[v] = fused(load<Floats>(errors.by_state[i] + v * W), carry, now[v]);
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) store(to + v * W, now[v]);
  }
  [[gnu::always_inline]] void follow(float* row) const { follow(row, {}, row); }

 private:
  static constexpr int kVectors = Lanes<W>::kVectors;

  [[gnu::always_inline]] void pick(const float* from, Floats* now) const {
#if !defined(__clang__)
    if constexpr (W == 16) {  // two vectors hold the 32 states that one instruction picks from
      Floats was[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) was[v] = load<Floats>(from + v * W);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        now[v] = at_[v] < 32 ? __builtin_shuffle(was[0], was[1], at_[v]) : __builtin_shuffle(was[2], was[3], at_[v]);
      return;
    }
#endif
    alignas(64) float picked[kTrellisStates];
    for (int s = 0; s < kTrellisStates; ++s) picked[s] = from[before_[s]];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) now[v] = load<Floats>(picked + v * W);
  }

  const int32_t* before_;
  Ints at_[kVectors];
};

/// The search over columns `begin` to `end` of a strip. Errors of the block follow the paths until its end, when the
/// targets of the columns behind it take them all, in their order.
struct Block {
  const TrellisStrip& strip;
  const float* values;  // [2^B, kTrellisStates] by window
  int64_t begin, end;
  TrellisStripScratch& scratch;
};

/// Column i's target moved by the errors of `made` columns of the block, on the path to each state. `origins`: the
/// states of these paths before the block.
template <int W>
[[gnu::always_inline]] inline void add_errors(const Block& block, const int32_t* origins, int64_t i, int64_t made,
                                              float* moved) {
  const Errors errors{block.scratch.errors, block.strip.carry + block.begin * kStripWidth + i, made};
  Follower<W>::from(origins).follow(block.scratch.future[i], errors, moved);
}

template <int B, int W>
[[gnu::always_inline]] inline void run_block(const Block& block, Column*& before, Column*& after) {
  const TrellisStrip& strip = block.strip;
  auto& errors = block.scratch.errors;
  alignas(64) float origin[kTrellisStates];  // each path's state before the block: small integers, exact as floats
  for (int s = 0; s < kTrellisStates; ++s) origin[s] = static_cast<float>(s);
  alignas(64) int32_t origins[kTrellisStates];
  for (int64_t j = block.begin; j < block.end; ++j) {
    const int64_t made = j - block.begin;
    for (int s = 0; s < kTrellisStates; ++s) origins[s] = static_cast<int32_t>(origin[s]);
    alignas(64) float moved[kTrellisStates];
    add_errors<W>(block, origins, j, made, moved);
    const float base = strip.base[j], added = strip.added == nullptr ? 0.0f : strip.added[j];
    choose_paths<B, W>({base, base + added, strip.gain[j], strip.scales[j], block.values}, moved, *before, *after,
                       block.scratch.oldest[j]);
    std::swap(before, after);
    const auto paths = Follower<W>::from(before->before);
    for (int64_t i = 0; i < made; ++i) paths.follow(errors[i]);
    std::copy_n(before->error, kTrellisStates, errors[made]);
    paths.follow(origin);
  }
  for (int s = 0; s < kTrellisStates; ++s) origins[s] = static_cast<int32_t>(origin[s]);
  if (block.end < strip.columns)  // so the block is a whole one
    for (int64_t i = block.end; i < strip.columns; ++i)
      add_errors<W>(block, origins, i, kTrellisBlock, block.scratch.future[i]);
}
template <int W>
[[gnu::always_inline]] inline void run_block(const Block& block, Column*& before, Column*& after) {
  if (block.strip.trellis->stored_bits == 2)
    run_block<2, W>(block, before, after);
  else
    run_block<3, W>(block, before, after);
}

LOWBIT_FUSED_VERSION("default")
void search_block(const Block& block, Column*& before, Column*& after) { run_block<4>(block, before, after); }
#ifdef LOWBIT_HAS_FUSED_VERSIONS
LOWBIT_FUSED_VERSION("avx2,fma")
void search_block(const Block& block, Column*& before, Column*& after) { run_block<8>(block, before, after); }
LOWBIT_FUSED_VERSION("avx512f")
void search_block(const Block& block, Column*& before, Column*& after) { run_block<16>(block, before, after); }
#endif

}  // namespace

TrellisPath search_strip(const TrellisStrip& strip, TrellisStripScratch& scratch) {
  const int64_t n = strip.columns;
  const TrellisInfo& trellis = *strip.trellis;
  float values[kTrellisStates << 3];
  for (int window = 0; window < kTrellisStates << trellis.stored_bits; ++window)
    values[window] = strip.table[trellis.codes[window]];
  Column a, b;
  Column *before = &a, *after = &b;
  for (int s = 0; s < kTrellisStates; ++s)
    before->cost[s] = s == static_cast<int>(strip.start) ? 0.0f : std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < n; ++j) std::fill_n(scratch.future[j], kTrellisStates, 0.0f);
  for (int64_t j = 0; j < n; j += kTrellisBlock)
    search_block({strip, values, j, std::min(j + kTrellisBlock, n), scratch}, before, after);
  const float* const costs = before->cost;
  const unsigned end = strip.end >= 0 ? static_cast<unsigned>(strip.end)
                                      : static_cast<unsigned>(std::min_element(costs, costs + kTrellisStates) - costs);
  unsigned state = end;
  for (int64_t j = n - 1; j >= 0; --j) {
    const unsigned window = state + scratch.oldest[j][state] * unsigned{kTrellisStates};
    strip.codes[j] = strip.trellis->codes[window];
    state = window >> strip.trellis->stored_bits;
  }
  return {end, costs[end]};
}

void round_trellis_with_feedback(const FeedbackFactor& factor, std::span<RowCodes> rows) {
  const ColumnStrips& carry = factor.carry;
  const FitPlan& plan = rows[0].plan();
  std::vector<std::vector<float>> carried(rows.size(), std::vector<float>(static_cast<size_t>(carry.padded())));
  std::vector<float*> targets;
  for (auto& row : carried) targets.push_back(row.data());
  std::vector<SparseVector> errors(rows.size());
  std::vector<unsigned> states(rows.size());
  const auto scratch = std::make_unique<TrellisStripScratch>();
  float scales[kStripWidth];
  uint8_t codes[kStripWidth];
  for (int64_t strip = 0; strip < carry.strips(); ++strip) {
    const int64_t begin = strip * kStripWidth, columns = std::min(kStripWidth, carry.k() - begin);
    for (size_t r = 0; r < rows.size(); ++r) {
      RowCodes& row = rows[r];
      for (int64_t j = 0; j < columns; ++j) scales[j] = row.scale_at(begin + j);
      const TrellisStrip job{plan.trellis,
                             plan.options.codebook.data(),
                             columns,
                             row.weights() + begin,
                             targets[r] + begin,
                             scales,
                             factor.gain.data() + begin,
                             carry.row(strip, begin),
                             states[r],
                             -1,
                             codes};
      states[r] = search_strip(job, *scratch).end;
      errors[r].clear();
      for (int64_t j = 0; j < columns; ++j) {
        row.set(begin + j, codes[j]);
        if (const float error = row.weights()[begin + j] - row.real(begin + j); error != 0)
          errors[r].push(error, begin + j);
      }
    }
    add_products(carry, errors, strip + 1, carry.strips(), -1, targets);
  }
}

std::vector<TrellisBlock> trellis_blocks(const ColumnStrips& h, int64_t offset) {
  std::vector<TrellisBlock> blocks;
  for (int64_t begin = 0, end = offset > 0 ? offset : kStripWidth; begin < h.k(); begin = end, end += kStripWidth) {
    const int64_t n = std::min(end, h.k()) - begin;
    Eigen::MatrixXd backwards(n, n);  // R upper with H = R R^T is the lower Cholesky factor of H read backwards
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) backwards(i, j) = h.at(begin + n - 1 - i, begin + n - 1 - j);
    const Eigen::LLT<Eigen::MatrixXd> cholesky(backwards);
    const Eigen::MatrixXd lower = cholesky.matrixL(), inverse = cholesky.solve(Eigen::MatrixXd::Identity(n, n));
    TrellisBlock block{begin, n, {}, std::vector<float>(static_cast<size_t>(n * kStripWidth)), {}};
    for (int64_t i = 0; i < n; ++i) {
      block.gain.push_back(static_cast<float>(lower(n - 1 - i, n - 1 - i)));
      for (int64_t j = i + 1; j < n; ++j)
        block.carry[static_cast<size_t>(i * kStripWidth + j)] =
            static_cast<float>(lower(n - 1 - i, n - 1 - j) / lower(n - 1 - j, n - 1 - j));
      for (int64_t j = 0; j < n; ++j) block.inverse.push_back(static_cast<float>(inverse(n - 1 - i, n - 1 - j)));
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace lowbit
