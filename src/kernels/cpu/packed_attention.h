#pragma once
// Attention of packed pages of the KV cache, as kernels/ref/vector_ops.cc has it: which queries, which matrices.

#include <cstdint>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/cpu/packed_products.h"
#include "kernels/packed_span.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct PackedPages {
  using Products = PackedProducts<L>;
  using Product = typename Products::Product;

  /// s = scale * (q . keys) of pages [first, end). Also of queries that do not see a page: nobody looks at those.
  static void score(const PackedSpan& a, int64_t first, int64_t end, float* scores) {
    Products products;
    for (int64_t page = first; page < end; ++page)
      for_tiles(a.queries, [&](int64_t from, int queries) {
        Product& p = products.next();
        p.shape = {a.key_bits[page], a.d, kKvPage};
        p.matrix = a.packed_keys[page];
        p.ahead = from == 0 ? ahead(a.packed_keys, page, a.packed_values) : PackedMatrix{};
        p.scale = a.scale;
        p.queries = queries;
        for (int i = 0; i < queries; ++i) {
          p.x[i] = a.q + (from + i) * a.ldq;
          p.to[i] = scores + (from + i) * kAttentionSpan + page * kKvPage;
        }
        products.run();
      });
    products.finish();
  }

  /// o += e . values of pages [first, end), of the queries that see some of a page.
  static void weigh(const PackedSpan& a, int64_t first, int64_t end, const float* scores) {
    Products products;
    for (int64_t page = first; page < end; ++page) {
      int64_t seeing = 0, j = 0;
      for (int64_t i = 0; i < a.queries; ++i) seeing += sees(a, page, i);
      for_tiles(seeing, [&](int64_t from, int queries) {
        alignas(64) float copies[Products::kMostQueries][kKvPage];
        const float* x[Products::kMostQueries];
        float* o[Products::kMostQueries];
        for (int i = 0; i < queries; ++j) {
          if (!sees(a, page, j)) continue;
          x[i] = weights(a, page, j, scores, copies[i]);
          o[i++] = a.o + j * a.ldo;
        }
        PackedMatrix matrix = a.packed_values[page];
        PackedMatrix next = from == 0 ? ahead(a.packed_values, page, a.next_keys) : PackedMatrix{};
        const int64_t width = value_columns(a.value_bits[page]);
        for (int64_t column = 0; column < a.d; column += width) {
          Product& p = products.next();
          p.shape = {a.value_bits[page], kKvPage, width < a.d - column ? width : a.d - column};
          p.matrix = matrix;
          p.ahead = next;
          p.adds = true;
          p.queries = queries;
          for (int i = 0; i < queries; ++i) {
            p.x[i] = x[i];
            p.to[i] = o[i] + column;
          }
          products.run();
          matrix = behind(matrix, p.shape);
          next = behind(next, p.shape);
        }
      });
    }
    products.finish();
  }

 private:
  /// The matrix kPagesAhead pages on; `next` follows on those of the span.
  static PackedMatrix ahead(const PackedMatrix* span, int64_t page, const PackedMatrix* next) {
    return page + kPagesAhead < kSpanPages ? span[page + kPagesAhead] : next[page + kPagesAhead - kSpanPages];
  }
  static PackedMatrix behind(const PackedMatrix& m, const PackedShape& shape) {
    return m.codes == nullptr ? m : PackedMatrix{m.codes + shape.code_bytes(), m.side + shape.side_bytes()};
  }
  static bool sees(const PackedSpan& a, int64_t page, int64_t query) {
    const int64_t first = page * kKvPage;
    return a.begin[query] < a.end[query] && a.begin[query] < first + kKvPage && a.end[query] > first;
  }
  /// e of the page's positions, 0 for those that the query does not see.
  static const float* weights(const PackedSpan& a, int64_t page, int64_t query, const float* scores, float* copy) {
    const int64_t first = page * kKvPage, begin = a.begin[query] - first, end = a.end[query] - first;
    const float* const e = scores + query * kAttentionSpan + first;
    if (begin <= 0 && end >= kKvPage) return e;
    for (int64_t t = 0; t < kKvPage; ++t) copy[t] = t >= begin && t < end ? e[t] : 0.0f;
    return copy;
  }

  /// body(first, count) for tiles of about the same size.
  template <class Body>
  static void for_tiles(int64_t queries, const Body& body) {
    int64_t tiles = (queries + Products::kMostQueries - 1) / Products::kMostQueries;
    for (int64_t from = 0, n = 0; from < queries; from += n, --tiles) {
      n = (queries - from + tiles - 1) / tiles;
      body(from, int(n));
    }
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
