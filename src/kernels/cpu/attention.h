#pragma once
// VectorOps::attend_span and merge_span for any instruction set that has 16 lanes: what kernels/ref/vector_ops.cc does,
// in tiles of queries x some vectors of columns. A column is a position for scores and an element of the head for
// results, so nothing is reduced across lanes, and both products are one loop: sums[j][column] += a[j][k] *
// b[k][column], k ascending.

#include <cstdint>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/lane_loops.h"
#include "kernels/cpu/packed_attention.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct LaneAttention : LaneLoops<L> {
  using F = typename L::F;
  using LaneLoops<L>::each, LaneLoops<L>::load, LaneLoops<L>::store;

  /// exp() of scores less the largest.
  static F weight(F x) { return LaneLoops<L>::template exp<false>(x); }

  using V = typename L::V;
  static constexpr int kWidth = L::kWidth, kPageVectors = int(kKvPage) / kWidth;

  static constexpr int kMostQueries = 6;  // of a tile
  /// Vectors of columns in a tile of `queries`: their sums fill the registers, and a row of a page is read as whole as
  /// it can be.
  static constexpr int columns(int queries) {
    int most = 1;
    while (most < kPageVectors && 2 * most * queries <= L::kTileSums) most *= 2;
    return most;
  }
  /// Up to this many queries read f16 pages as they are; for more a page is converted to f32 once.
  static constexpr int64_t kDirectQueries = 2 * kMostQueries;

  /// A matrix by vectors: vector c of row k lies at `at + k * row + c * column`. While its rows are read, memory at
  /// `ahead` is fetched, as many bytes.
  template <class B>
  struct Columns {
    const B* at;
    int64_t row, column;
    const B* ahead;
    Columns from(int64_t k, int64_t c) const { return {at + k * row + c * column, row, column, ahead}; }
  };

  template <int Q, int R, class B>
  __attribute__((always_inline)) static void add_products(const float* a, int64_t lda, const Columns<B>& b, int64_t k,
                                                          V (&sums)[Q][R]) {
    const B *row = b.at, *ahead = b.ahead;
    for (const float* const end = a + k; a < end; ++a, row += b.row) {
      if constexpr (sizeof(B) == sizeof(uint16_t)) {
        constexpr int kLine = 64 / sizeof(B);
        fetch(ahead);
        if constexpr (R * kWidth > kLine) fetch(ahead + kLine);
        ahead += R * kWidth;
      }
      // The side with fewer vectors stays in registers, the other goes by.
      if constexpr (Q < R) {
        V x[Q];
#pragma GCC unroll 6
        for (int j = 0; j < Q; ++j) x[j] = L::set_v(a[j * lda]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const V v = L::load_v(row + r * b.column);
#pragma GCC unroll 6
          for (int j = 0; j < Q; ++j) sums[j][r] = L::fma_v(x[j], v, sums[j][r]);
        }
      } else {
        V v[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) v[r] = L::load_v(row + r * b.column);
#pragma GCC unroll 6
        for (int j = 0; j < Q; ++j) {
          const V x = L::set_v(a[j * lda]);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sums[j][r] = L::fma_v(x, v[r], sums[j][r]);
        }
      }
    }
  }

  /// s[j][R vectors of columns] = scale * (q[j] . keys)
  template <int Q, int R, class B>
  static void score_tile(const SpanArgs& a, const float* q, const Columns<B>& keys, float* s) {
    V sums[Q][R];
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[j][r] = L::set_v(0.0f);
    add_products<Q, R>(q, a.ldq, keys, a.d, sums);
    const V scale = L::set_v(a.scale);
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) L::store_v(s + j * kAttentionSpan + r * kWidth, L::mul_v(scale, sums[j][r]));
  }

  /// o[j][R vectors of columns] += e[j] . values
  template <int Q, int R, class B>
  static void weigh_tile(const float* e, const Columns<B>& values, int64_t count, float* o, int64_t ldo) {
    V sums[Q][R];
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[j][r] = L::load_v(o + j * ldo + r * kWidth);
    add_products<Q, R>(e, kAttentionSpan, values, count, sums);
#pragma GCC unroll 6
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) L::store_v(o + j * ldo + r * kWidth, sums[j][r]);
  }

  /// Positions of the span, or of a page of it.
  struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
  };
  /// The positions of the page that query j sees.
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
    if (any.empty()) return;
    float* const s = scores + j * kAttentionSpan + page * kKvPage;
    Columns<B> ahead = keys;
    for (int64_t c = any.begin / kWidth & -R, end = (any.end + kWidth - 1) / kWidth; c < end;) {
      c += score_columns<Q, R>(a, a.q + j * a.ldq, ahead.from(0, c), end - c, s + c * kWidth);
      ahead.ahead += a.d * R * kWidth;
    }
  }
  /// The narrowest tile that has `left` columns, R at most; returns how many it has.
  template <int Q, int R, class B>
  static int score_columns(const SpanArgs& a, const float* q, const Columns<B>& keys, int64_t left, float* s) {
    if constexpr (R > 1) {
      if (2 * left <= R) return score_columns<Q, R / 2>(a, q, keys, left, s);
    }
    score_tile<Q, R>(a, q, keys, s);
    return R;
  }

  /// Q queries over positions that all of them see.
  template <int Q, class B>
  static void weigh_range(const SpanArgs& a, int64_t page, int64_t j, const Columns<B>& values, Range r,
                          const float* scores) {
    if (r.empty()) return;
    const float* const e = scores + j * kAttentionSpan + page * kKvPage + r.begin;
    weigh_columns<Q, columns(Q)>(e, values.from(r.begin, 0), r.end - r.begin, (a.d + kWidth - 1) / kWidth,
                                 a.o + j * a.ldo, a.ldo);
  }
  /// The widest tiles first.
  template <int Q, int R, class B>
  static void weigh_columns(const float* e, Columns<B> values, int64_t count, int64_t left, float* o, int64_t ldo) {
    for (; left >= R; left -= R, o += R * kWidth) {
      weigh_tile<Q, R>(e, values, count, o, ldo);
      values.at += R * values.column;
      values.ahead += count * R * kWidth;
    }
    if constexpr (R > 1) {
      if (left > 0) weigh_columns<Q, R / 2>(e, values, count, left, o, ldo);
    }
  }

  /// Positions that all Q queries see go together, those before and behind them query by query.
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

  /// Only the first tile fetches what comes next; the others find the page in the nearest cache.
  template <class B>
  static Columns<B> of_tile(const Columns<B>& page, int64_t j) {
    return j == 0 ? page : Columns<B>{page.at, page.row, page.column, page.at};
  }
  template <class B>
  static void score_page(const SpanArgs& a, int64_t page, const Columns<B>& keys, float* scores) {
    for_tiles(a.queries,
              [&](auto count, int64_t j) { score_queries<count.kQueries>(a, page, j, of_tile(keys, j), scores); });
  }
  template <class B>
  static void weigh_page(const SpanArgs& a, int64_t page, const Columns<B>& values, const float* scores) {
    for_tiles(a.queries,
              [&](auto count, int64_t j) { weigh_queries<count.kQueries>(a, page, j, of_tile(values, j), scores); });
  }

  /// `rows` rows of f16 by vectors, from one behind each other: vector c of all rows lies at panels + c * rows *
  /// kWidth. Behind `width` come zeros. As much is fetched at `ahead`.
  static Columns<float> convert(const uint16_t* from, int64_t width, int64_t rows, const uint16_t* ahead,
                                float* panels) {
    constexpr int64_t kLine = 64 / sizeof(uint16_t);
    for (int64_t at = 0; at < rows * width; at += kLine) fetch(ahead + at);
    for (int64_t c = 0; c * kWidth < width; ++c) {
      const uint16_t* source = from + c * kWidth;
      float* to = panels + c * rows * kWidth;
      if (width - c * kWidth >= kWidth) {
        for (int64_t k = 0; k < rows; ++k) L::store_v(to + k * kWidth, L::load_v(source + k * width));
        continue;
      }
      for (int64_t k = 0; k < rows; ++k) {
        uint16_t last[kWidth] = {};
        __builtin_memcpy(last, source + k * width, sizeof(uint16_t) * size_t(width - c * kWidth));
        L::store_v(to + k * kWidth, L::load_v(last));
      }
    }
    return {panels, kWidth, rows * kWidth, panels};
  }

  /// Scores of query j become exponentials; whole vectors of them, hidden ones 0.
  static void exponentials(const SpanArgs& a, int64_t j, float* s) {
    const int64_t begin = a.begin[j] & -int64_t{kLanes}, end = (a.end[j] + kLanes - 1) & -int64_t{kLanes};
    for (int64_t t = begin; t < a.begin[j]; ++t) s[t] = -__builtin_inff();
    for (int64_t t = a.end[j]; t < end; ++t) s[t] = -__builtin_inff();
    F most = L::set(-__builtin_inff());
    for (int64_t t = begin; t < end; t += kLanes) most = L::max(L::load(s + t), most);  // s > most ? s : most
    a.m[j] = L::reduce_max(most);
    const F shift = L::set(span_shift(a.m[j]));
    F sum = L::zero();
    for (int64_t t = begin; t < end; t += kLanes) {
      const F e = weight(L::sub(L::load(s + t), shift));
      L::store(s + t, e);
      sum = L::add(sum, e);
    }
    a.l[j] = L::reduce(sum);
  }

  /// The first page behind `page` that is not packed.
  static int64_t end_of_packed(const uint16_t* const* pages, int64_t page, int64_t last) {
    while (page <= last && pages[page] == nullptr) ++page;
    return page;
  }

  static void attend_span(const SpanArgs& a) {
    Range any = {kAttentionSpan, 0};
    for (int64_t j = 0; j < a.queries; ++j) {
      if (a.begin[j] >= a.end[j]) continue;
      any = {a.begin[j] < any.begin ? a.begin[j] : any.begin, a.end[j] > any.end ? a.end[j] : any.end};
    }
    if (any.empty()) return;
    // The last vector of a row of values must not pass the page's end, so odd heads are converted, with zeros behind
    // them.
    const bool direct = a.queries <= kDirectQueries && a.d % kWidth == 0;
    float *const scores = a.scratch, *const panels = scores + a.queries * kAttentionSpan;
    const int64_t first = any.begin / kKvPage, last = (any.end - 1) / kKvPage;
    for (int64_t p = first; p <= last; ++p) {
      if (a.keys[p] == nullptr) {
        const int64_t end = end_of_packed(a.keys, p, last);
        PackedPages<L>::score(static_cast<const PackedSpan&>(a), p, end, scores);
        p = end - 1;
        continue;
      }
      const uint16_t *const next = p < last ? a.keys[p + 1] : a.values[first], *ahead = next ? next : a.keys[p];
      if (direct) {
        score_page<uint16_t>(a, p, {a.keys[p], kKvPage, kWidth, ahead}, scores);
      } else {
        score_page(a, p, convert(a.keys[p], kKvPage, a.d, ahead, panels), scores);
      }
    }
    for (int64_t j = 0; j < a.queries; ++j) {
      if (a.begin[j] >= a.end[j]) continue;
      exponentials(a, j, scores + j * kAttentionSpan);
      __builtin_memset(a.o + j * a.ldo, 0, sizeof(float) * size_t(a.ldo));
    }
    for (int64_t p = first; p <= last; ++p) {
      if (a.values[p] == nullptr) {
        const int64_t end = end_of_packed(a.values, p, last);
        PackedPages<L>::weigh(static_cast<const PackedSpan&>(a), p, end, scores);
        p = end - 1;
        continue;
      }
      const uint16_t *const next = p < last ? a.values[p + 1] : a.next, *ahead = next ? next : a.values[p];
      if (direct) {
        weigh_page<uint16_t>(a, p, {a.values[p], a.d, kWidth, ahead}, scores);
      } else {
        weigh_page(a, p, convert(a.values[p], a.d, kKvPage, ahead, panels), scores);
      }
    }
  }

  static void merge_span(float m, float l, const float* o, int64_t d, float* running, float* y) {
    const float most = m > running[0] ? m : running[0], shift = span_shift(most);
    alignas(64) float factors[kLanes];
    L::store(factors, weight(L::keep_first(L::set(running[0] - shift), L::set(m - shift), 1)));
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
