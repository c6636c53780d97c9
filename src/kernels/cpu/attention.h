#pragma once
// VectorOps::attend_span and merge_span for any instruction set that has 16 lanes: what kernels/ref/vector_ops.cc does, in tiles of
// queries x 16 R columns. A column is a position for scores and an element of the head for results, so nothing is folded across
// lanes, and both products are one loop: sums[j][column] += a[j][k] * b[k][column], k ascending.

#include <cstdint>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/cpu/lane_loops.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct LaneAttention : LaneLoops<L> {
  using F = typename L::F;
  using LaneLoops<L>::each, LaneLoops<L>::exp, LaneLoops<L>::load, LaneLoops<L>::store;

  static constexpr int kMostQueries = 6;  // of a tile
  /// Vectors of columns in a tile of `queries`: their sums fill the registers.
  static constexpr int columns(int queries) {
    return 4 * queries <= L::kTileSums ? 4 : 2 * queries <= L::kTileSums ? 2 : 1;
  }
  /// Up to this many queries read f16 pages as they are; for more a page is converted to f32 once.
  static constexpr int64_t kDirectQueries = 2 * kMostQueries;

  /// A matrix in columns of 16: those of vector c of row k lie at `at + k * row + c * column`.
  template <class B>
  struct Columns {
    const B* at;
    int64_t row, column;
    Columns from(int64_t k, int64_t c) const { return {at + k * row + c * column, row, column}; }
  };

  template <int Q, int R, class B>
  __attribute__((always_inline)) static void add_products(const float* a, int64_t lda, const Columns<B>& b, int64_t k,
                                                          F (&sums)[Q][R]) {
    const B* row = b.at;
    for (const float* const end = a + k; a < end; ++a, row += b.row) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const F v = L::load(row + r * b.column);
#pragma GCC unroll 6
        for (int j = 0; j < Q; ++j) sums[j][r] = L::fma(L::set(a[j * lda]), v, sums[j][r]);
      }
    }
  }

  /// s[j][16 R columns] = scale * (q[j] . keys)
  template <int Q, int R, class B>
  static void score_tile(const SpanArgs& a, const float* q, const Columns<B>& keys, float* s) {
    F sums[Q][R];
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[j][r] = L::zero();
    add_products<Q, R>(q, a.ldq, keys, a.d, sums);
    const F scale = L::set(a.scale);
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) L::store(s + j * kAttentionSpan + r * kLanes, L::mul(scale, sums[j][r]));
  }

  /// o[j][16 R columns] += e[j] . values
  template <int Q, int R, class B>
  static void weigh_tile(const float* e, const Columns<B>& values, int64_t count, float* o, int64_t ldo) {
    F sums[Q][R];
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[j][r] = L::load(o + j * ldo + r * kLanes);
    add_products<Q, R>(e, kAttentionSpan, values, count, sums);
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) L::store(o + j * ldo + r * kLanes, sums[j][r]);
  }

  /// Positions of the span, or of a page of it.
  struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
  };
  /// What query j sees of the page.
  static Range seen(const SpanArgs& a, int64_t page, int64_t j) {
    const int64_t first = page * kKvPage, begin = a.begin[j] - first, end = a.end[j] - first;
    return {begin < 0 ? 0 : begin, end > kKvPage ? kKvPage : end};
  }

  template <int Q, class B>
  static void score_queries(const SpanArgs& a, int64_t page, int64_t j, const Columns<B>& keys, float* scores) {
    constexpr int R = columns(Q);
    Range any = {kKvPage, 0};
    for (int i = 0; i < Q; ++i) {
      const Range r = seen(a, page, j + i);
      if (r.empty()) continue;
      any = {r.begin < any.begin ? r.begin : any.begin, r.end > any.end ? r.end : any.end};
    }
    float* const s = scores + j * kAttentionSpan + page * kKvPage;
    for (int64_t c = any.begin / kLanes & -R; c * kLanes < any.end; c += R)
      score_tile<Q, R>(a, a.q + j * a.ldq, keys.from(0, c), s + c * kLanes);
  }

  /// Q queries over positions that all of them see.
  template <int Q, class B>
  static void weigh_range(const SpanArgs& a, int64_t page, int64_t j, const Columns<B>& values, Range r,
                          const float* scores) {
    if (r.empty()) return;
    constexpr int R = columns(Q);
    const float* const e = scores + j * kAttentionSpan + page * kKvPage + r.begin;
    const int64_t count = r.end - r.begin, all = (a.d + kLanes - 1) / kLanes;
    float* const o = a.o + j * a.ldo;
    int64_t c = 0;
    for (; c + R <= all; c += R) weigh_tile<Q, R>(e, values.from(r.begin, c), count, o + c * kLanes, a.ldo);
    if constexpr (R > 1) {
      for (; c < all; ++c) weigh_tile<Q, 1>(e, values.from(r.begin, c), count, o + c * kLanes, a.ldo);
    }
  }

  /// What all of Q queries see goes together, what comes before it and behind it query by query.
  template <int Q, class B>
  static void weigh_queries(const SpanArgs& a, int64_t page, int64_t j, const Columns<B>& values, const float* scores) {
    Range all = {0, kKvPage};
    for (int i = 0; i < Q; ++i) {
      const Range r = seen(a, page, j + i);
      all = {r.begin > all.begin ? r.begin : all.begin, r.end < all.end ? r.end : all.end};
    }
    if (all.empty()) {
      for (int i = 0; i < Q; ++i) weigh_range<1>(a, page, j + i, values, seen(a, page, j + i), scores);
      return;
    }
    for (int i = 0; i < Q; ++i) weigh_range<1>(a, page, j + i, values, {seen(a, page, j + i).begin, all.begin}, scores);
    weigh_range<Q>(a, page, j, values, all, scores);
    for (int i = 0; i < Q; ++i) weigh_range<1>(a, page, j + i, values, {all.end, seen(a, page, j + i).end}, scores);
  }

  template <int Q>
  struct Count {
    static constexpr int kQueries = Q;
  };
  /// body(Count<Q>, first query) for tiles of about the same size.
  template <class Body>
  static void for_tiles(int64_t queries, const Body& body) {
    int64_t tiles = (queries + kMostQueries - 1) / kMostQueries;
    for (int64_t j = 0, n = 0; j < queries; j += n, --tiles) {
      n = (queries - j + tiles - 1) / tiles;
      switch (n) {
        case 1:
          body(Count<1>(), j);
          break;
        case 2:
          body(Count<2>(), j);
          break;
        case 3:
          body(Count<3>(), j);
          break;
        case 4:
          body(Count<4>(), j);
          break;
        case 5:
          body(Count<5>(), j);
          break;
        default:
          body(Count<kMostQueries>(), j);
      }
    }
  }

  template <class B>
  static void score_page(const SpanArgs& a, int64_t page, const Columns<B>& keys, float* scores) {
    for_tiles(a.queries, [&](auto count, int64_t j) { score_queries<count.kQueries>(a, page, j, keys, scores); });
  }
  template <class B>
  static void weigh_page(const SpanArgs& a, int64_t page, const Columns<B>& values, const float* scores) {
    for_tiles(a.queries, [&](auto count, int64_t j) { weigh_queries<count.kQueries>(a, page, j, values, scores); });
  }

  /// `rows` rows of f16 in columns of 16, from vector `begin` up to `end`: column c lies at panels + c * rows * 16.
  static Columns<float> convert(const uint16_t* from, int64_t width, int64_t rows, Range vectors, float* panels) {
    for (int64_t c = vectors.begin; c < vectors.end; ++c) {
      const int64_t left = width - c * kLanes;
      const int count = left < kLanes ? int(left) : kLanes;
      for (int64_t k = 0; k < rows; ++k)
        L::store(panels + (c * rows + k) * kLanes, count == kLanes
                                                       ? L::load(from + k * width + c * kLanes)
                                                       : L::load_first(from + k * width + c * kLanes, count));
    }
    return {panels, kLanes, rows * kLanes};
  }

  /// Scores of query j become exponentials; whole vectors of them, hidden ones 0.
  static void exponentials(const SpanArgs& a, int64_t j, float* s) {
    const int64_t begin = a.begin[j] & -int64_t{kLanes}, end = (a.end[j] + kLanes - 1) & -int64_t{kLanes};
    for (int64_t t = begin; t < a.begin[j]; ++t) s[t] = -__builtin_inff();
    for (int64_t t = a.end[j]; t < end; ++t) s[t] = -__builtin_inff();
    F most = L::set(-__builtin_inff());
    for (int64_t t = begin; t < end; t += kLanes) most = L::max(L::load(s + t), most);  // s > most ? s : most
    a.m[j] = L::fold_max(most);
    const F shift = L::set(span_shift(a.m[j]));
    F sum = L::zero();
    for (int64_t t = begin; t < end; t += kLanes) {
      const F e = exp(L::sub(L::load(s + t), shift));
      L::store(s + t, e);
      sum = L::add(sum, e);
    }
    a.l[j] = L::fold(sum);
  }

  static void attend_span(const SpanArgs& a) {
    Range any = {kAttentionSpan, 0};
    for (int64_t j = 0; j < a.queries; ++j) {
      if (a.begin[j] >= a.end[j]) continue;
      any = {a.begin[j] < any.begin ? a.begin[j] : any.begin, a.end[j] > any.end ? a.end[j] : any.end};
    }
    if (any.empty()) return;
    // The last vector of a row of values must not pass the page's end, so odd heads are converted, with zeros behind them.
    const bool direct = a.queries <= kDirectQueries && a.d % kLanes == 0;
    float *const scores = a.scratch, *const panels = scores + a.queries * kAttentionSpan;
    const int64_t first = any.begin / kKvPage, vectors = (a.d + kLanes - 1) / kLanes;
    for (int64_t p = first; p * kKvPage < any.end; ++p) {
      if (direct) {
        score_page<uint16_t>(a, p, {a.keys[p], kKvPage, kLanes}, scores);
      } else {
        score_page(a, p, convert(a.keys[p], kKvPage, a.d, {0, kKvPage / kLanes}, panels), scores);
      }
    }
    for (int64_t j = 0; j < a.queries; ++j) {
      if (a.begin[j] >= a.end[j]) continue;
      exponentials(a, j, scores + j * kAttentionSpan);
      __builtin_memset(a.o + j * a.ldo, 0, sizeof(float) * size_t(vectors * kLanes));
    }
    for (int64_t p = first; p * kKvPage < any.end; ++p) {
      if (direct) {
        weigh_page<uint16_t>(a, p, {a.values[p], a.d, kLanes}, scores);
      } else {
        weigh_page(a, p, convert(a.values[p], a.d, kKvPage, {0, vectors}, panels), scores);
      }
    }
  }

  static void merge_span(float m, float l, const float* o, int64_t d, float* running, float* y) {
    const float most = m > running[0] ? m : running[0], shift = span_shift(most);
    float factors[kLanes] = {running[0] - shift, m - shift};
    L::store(factors, exp(L::load(factors)));
    const F a = L::set(factors[0]), b = L::set(factors[1]);
    each(
        d, [&](int64_t i, int count) __attribute__((always_inline)) {
          store(y + i, L::fma(load(o + i, count), b, L::mul(load(y + i, count), a)), count);
        });
    running[0] = most;
    running[1] = __builtin_fmaf(l, factors[1], running[1] * factors[0]);
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
