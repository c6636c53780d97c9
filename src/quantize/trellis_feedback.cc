#include "quantize/trellis_feedback.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

constexpr int kLanes = 16, kVectors = kTrellisStates / kLanes;
// One state a lane: wider than most machines' vectors; the compiler splits it.
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Bytes = uint8_t __attribute__((vector_size(kLanes)));

template <class V>
V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

/// Lane i is element at[i] modulo their number of a, or of a and behind it b.
__attribute__((always_inline)) inline Floats picked(Floats a, Ints at) {
#if defined(__clang__)
  Floats v{};
  for (int i = 0; i < kLanes; ++i) v[i] = a[at[i] % kLanes];
  return v;
#else
  return __builtin_shuffle(a, at);
#endif
}
__attribute__((always_inline)) inline Floats picked(Floats a, Floats b, Ints at) {
#if defined(__clang__)
  const Ints second = (at & kLanes) != 0;
  return second ? picked(b, at) : picked(a, at);
#else
  return __builtin_shuffle(a, b, at);
#endif
}

/// What a column leaves behind: each state's cost, the state it came from and the error of its code.
struct Column {
  Floats cost[kVectors];
  Ints from[kVectors];
  Floats error[kVectors];
};

/// What a column's codes stand for, and a trellis's codes by window as they are looked up.
struct Choices {
  Floats base, added, weight, reals;
  const int32_t* codes;
};

/// Of the 2^B states before each state, one for each oldest code of a window, the one with the least cost. `added`: to the targets of
/// the states before.
template <int B>
__attribute__((always_inline)) inline void choose_ways(const Choices& of, const float* added, const Column& before,
                                                       Column& after, uint8_t* oldest) {
  constexpr int kOldest = kTrellisStates >> B;
  Ints lane{};
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  Floats targets[kVectors];
  for (int v = 0; v < kVectors; ++v) targets[v] = of.added + load<Floats>(added + v * kLanes);
  for (int v = 0; v < kVectors; ++v) {
    const Ints same = (lane + v * kLanes) >> B;  // of the state before, but for its oldest code
    Floats best{}, real{};
    Ints way{};
    for (int p = 0; p < 1 << B; ++p) {
      const int source = p * kOldest / kLanes;
      const Ints at = same + p * kOldest % kLanes;
      const Floats q = picked(of.reals, load<Ints>(of.codes + p * kTrellisStates + v * kLanes));
      const Floats d = picked(targets[source], at) - q;
      const Floats cost = picked(before.cost[source], at) + of.weight * (d * d);
      const Ints less = p == 0 ? Ints{} - 1 : cost < best;
      best = less ? cost : best;
      real = less ? q : real;
      way = less ? Ints{} + p : way;
    }
    after.cost[v] = best;
    after.from[v] = same + way * kOldest;
    after.error[v] = of.base - real;
    const Bytes narrow = __builtin_convertvector(way, Bytes);
    std::memcpy(oldest + v * kLanes, &narrow, sizeof narrow);
  }
}

LOWBIT_VECTOR_CLONES
void choose_ways2(const Choices& of, const float* added, const Column& before, Column& after, uint8_t* oldest) {
  choose_ways<2>(of, added, before, after, oldest);
}
LOWBIT_VECTOR_CLONES
void choose_ways3(const Choices& of, const float* added, const Column& before, Column& after, uint8_t* oldest) {
  choose_ways<3>(of, added, before, after, oldest);
}

/// Targets of the columns behind follow each way to its new state, and its newest error.
LOWBIT_VECTOR_CLONES
void follow_ways(const Column& column, const float* carry, int64_t columns, const float (*from)[kTrellisStates],
                 float (*to)[kTrellisStates]) {
  for (int64_t j = 0; j < columns; ++j) {
    Floats old[kVectors];
    std::memcpy(old, from[j], sizeof old);
    for (int v = 0; v < kVectors; ++v) {
      const Ints at = column.from[v];
      const Floats low = picked(old[0], old[1], at), high = picked(old[2], old[3], at);
      const Floats followed = (at < 2 * kLanes ? low : high) + column.error[v] * carry[j];
      std::memcpy(to[j] + v * kLanes, &followed, sizeof followed);
    }
  }
}

}  // namespace

TrellisWay search_strip(const TrellisStrip& strip, TrellisStripScratch& scratch) {
  const int64_t n = strip.columns;
  const TrellisInfo& trellis = *strip.trellis;
  const auto choose = trellis.stored_bits == 2 ? choose_ways2 : choose_ways3;
  int32_t codes[kTrellisStates << 3];
  std::copy_n(trellis.codes, kTrellisStates << trellis.stored_bits, codes);
  const Floats table = load<Floats>(strip.table);
  Column a, b;
  Column *before = &a, *after = &b;
  for (int s = 0; s < kTrellisStates; ++s)
    before->cost[s / kLanes][s % kLanes] =
        s == static_cast<int>(strip.start) ? 0.0f : std::numeric_limits<float>::infinity();
  auto *now = scratch.future[0], *next = scratch.future[1];
  for (int64_t j = 0; j < n; ++j) std::fill_n(now[j], kTrellisStates, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    const float base = strip.base[j], added = strip.added == nullptr ? 0.0f : strip.added[j];
    const Choices choices{Floats{} + base, Floats{} + (base + added), Floats{} + strip.gain[j] * strip.gain[j],
                          table * strip.scales[j], codes};
    choose(choices, now[j], *before, *after, scratch.oldest[j]);
    follow_ways(*after, strip.carry + j * kStripWidth + j + 1, n - j - 1, now + j + 1, next + j + 1);
    std::swap(before, after);
    std::swap(now, next);
  }
  float costs[kTrellisStates];
  std::memcpy(costs, before->cost, sizeof costs);
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
