#pragma once
// Sums of groups of x (columns that share a scale) on a matrix unit of 16 x 16 x 64 tiles, and their multiplication by
// scales: what no weight format changes. A block is 16 tokens by the 32 rows of a panel, two tiles of products per
// group; while the matrix unit works on one group, vectors scale and accumulate a part of the four before it, so that
// products stay in the first-level cache and neither waits long (docs/kernels.md#tiles).

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/panel.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S, class Tiles>
struct TileGroups {
  using Int = typename S::Int;
  using Float = typename S::Float;
  static constexpr int kTurn = 4;                         // groups of x that are scaled together, at most
  static constexpr int64_t kBlockRows = 16;               // tokens
  static constexpr int64_t kGroupProducts = 2 * 16 * 16;  // [panel half][16][16]
  static constexpr int64_t kProducts = kTurn * kGroupProducts;

  /// Columns of a group that a tile takes: all up to 64, else an equal part; 0 where there is none of whole fours.
  static constexpr int64_t depth_of(int64_t group) {
    const int64_t parts = (group + 63) / 64;
    return group % (4 * parts) == 0 ? group / parts : 0;
  }

  struct Block;
  struct Turn;
  using WholeTurns = void (*)(const MatmulArgs&, const Turn* turns, int64_t turn_count, const int8_t* bytes,
                              int64_t half_bytes, int32_t* products, float* acc);
  /// Groups of x j .. j + count, and their scales in a panel.
  struct Turn {
    void (*accumulate)(const Block&, int64_t begin, int64_t end) = nullptr;
    WholeTurns whole = nullptr;  // where all turns of a chunk are four whole groups: instead of accumulate
    int64_t j = 0;
    int count = 0;
    bool last_of_group[kTurn];  // of the weights
    int64_t group[kTurn];
    Float scale[kTurn][2], offset[kTurn][2];  // of the group, halves of the panel
  };
  /// A turn's products with `rows` tokens from m0 on; `part` [.][32] of the group so far and `acc` of the groups
  /// behind are those of m0.
  struct Block {
    const MatmulArgs* args = nullptr;
    const Turn* turn = nullptr;
    const int32_t* products = nullptr;  // [group][panel half][16][16]
    int64_t m0 = 0, rows = 0;
    float *part = nullptr, *acc = nullptr;
  };

  /// A group of weights is kGroup groups of x and a turn is whole groups of weights; kGroup 0: one group a row, whose
  /// scale comes in write(). Without scales of x they are the same groups. No offsets.
  template <int kCount, int kGroup, bool kScales>
  static void accumulate_groups(const Block& b, int64_t begin, int64_t end) {
    const Turn& turn = *b.turn;
    Float scale[kCount][2];
    for (int q = 0; q < kCount; ++q)
      for (int v = 0; v < 2; ++v) scale[q][v] = kGroup > 0 ? turn.scale[q][v] : S::zero_f();
    const int64_t stride = kScales ? b.args->shape.x_groups : 0;
    const float* x_scales = kScales ? b.args->x_group_scale + (b.m0 + begin) * stride + turn.j : nullptr;
    float* acc_of = b.acc + 32 * begin;
    for (int64_t r = begin; r < end; ++r, x_scales += stride, acc_of += 32) {
      const int32_t* products = b.products + 16 * r;
      Float acc[2] = {S::load_f(acc_of), S::load_f(acc_of + 16)}, t[2] = {S::zero_f(), S::zero_f()};
#pragma GCC unroll 4
      for (int q = 0; q < kCount; ++q) {
        const Float x = kScales ? S::set_f(x_scales[q]) : S::zero_f();
        for (int v = 0; v < 2; ++v) {
          const Float sum =
              S::to_float(S::load(reinterpret_cast<const uint8_t*>(products + q * kGroupProducts + v * 256)));
          if constexpr (kGroup == 0) {
            acc[v] = S::fma(sum, x, acc[v]);
            continue;
          }
          t[v] = kScales ? S::fma(sum, x, t[v]) : sum;
          if ((q + 1) % (kGroup > 0 ? kGroup : 1) != 0) continue;
          acc[v] = S::fma(t[v], scale[q][v], acc[v]);
          t[v] = S::zero_f();
        }
      }
      S::store_f(acc_of, acc[0]);
      S::store_f(acc_of + 16, acc[1]);
    }
  }

  /// Any groups, with or without offsets and scales of x.
  static void accumulate_any(const Block& b, int64_t begin, int64_t end) {
    const MatmulArgs& a = *b.args;
    const Turn& turn = *b.turn;
    for (int64_t r = begin; r < end; ++r)
      for (int v = 0; v < 2; ++v) {
        const int32_t* products = b.products + v * 256 + 16 * r;
        const float* x_scales =
            a.x_group_scale == nullptr ? nullptr : a.x_group_scale + (b.m0 + r) * a.shape.x_groups + turn.j;
        float *part_of = b.part + 32 * r + 16 * v, *acc_of = b.acc + 32 * r + 16 * v;
        Float acc = S::load_f(acc_of), part = S::load_f(part_of);
        for (int q = 0; q < turn.count; ++q) {
          const Float sum = S::to_float(S::load(reinterpret_cast<const uint8_t*>(products + q * kGroupProducts)));
          part = x_scales == nullptr ? sum : S::fma(sum, S::set_f(x_scales[q]), part);
          if (!turn.last_of_group[q]) continue;
          acc = S::fma(part, turn.scale[q][v], acc);
          part = S::zero_f();
          if (a.shape.offsets)
            acc = S::fma(S::set_f(a.x_sums[(b.m0 + r) * a.shape.groups + turn.group[q]]), turn.offset[q][v], acc);
        }
        S::store_f(acc_of, acc);
        S::store_f(part_of, part);
      }
  }

  /// The scale of a row comes behind all its groups of x.
  static bool scaled_last(const MatmulArgs& a) { return a.x_group_scale != nullptr && a.shape.groups == 1; }

  static void (*accumulate_for(const MatmulArgs& a, const Turn& turn, int64_t per_group))(const Block&, int64_t,
                                                                                          int64_t) {
    if (scaled_last(a)) {
      if (turn.count == 4) return &accumulate_groups<4, 0, true>;
      if (turn.count == 2) return &accumulate_groups<2, 0, true>;
      return turn.count == 3 ? &accumulate_groups<3, 0, true> : &accumulate_groups<1, 0, true>;
    }
    if (a.shape.offsets || turn.j % per_group != 0 || turn.count % per_group != 0) return &accumulate_any;
    if (a.x_group_scale == nullptr) {
      if (turn.count == 4) return &accumulate_groups<4, 1, false>;
      if (turn.count == 2) return &accumulate_groups<2, 1, false>;
      return turn.count == 3 ? &accumulate_groups<3, 1, false> : &accumulate_groups<1, 1, false>;
    }
    if (turn.count == 4)
      return per_group == 1   ? &accumulate_groups<4, 1, true>
             : per_group == 2 ? &accumulate_groups<4, 2, true>
                              : &accumulate_groups<4, 4, true>;
    if (turn.count == 2) return per_group == 1 ? &accumulate_groups<2, 1, true> : &accumulate_groups<2, 2, true>;
    return turn.count == 1 ? &accumulate_groups<1, 1, true> : &accumulate_any;
  }

  static Turn turn_of(const MatmulArgs& a, const Factors<S>& factors, int64_t j, int count) {
    const PanelShape& s = a.shape;
    const int64_t per_group = s.groups == 1 ? s.x_groups : s.group / s.x_group;
    Turn turn;
    turn.j = j;
    turn.count = count;
    for (int q = 0; q < count; ++q) {
      turn.group[q] = (j + q) / per_group;
      turn.last_of_group[q] = (j + q + 1) % per_group == 0 || j + q + 1 == s.x_groups;
      for (int v = 0; v < 2; ++v) {
        turn.scale[q][v] = factors.scale(turn.group[q], v);
        turn.offset[q][v] = s.offsets ? factors.offset(turn.group[q], v) : S::zero_f();
      }
    }
    turn.accumulate = accumulate_for(a, turn, per_group);
    if (count == kTurn && (j + count) * s.x_group <= s.k) turn.whole = whole_turns_for(a, turn, per_group);
    return turn;
  }

  /// Products of one group, `steps` tiles deep, of both halves of a panel; odd groups use other tiles than even
  /// ones.
  template <int kOdd>
  LOWBIT_INLINE void group_products(const int8_t* x, int64_t ldx, const int8_t* bytes, int64_t half_bytes,
                                    int64_t steps, int64_t depth, int32_t* products) {
    Tiles::template zero<2 * kOdd>();
    Tiles::template zero<2 * kOdd + 1>();
    for (int64_t i = 0; i < steps; ++i, x += depth, bytes += 16 * depth) {
      Tiles::template load<4 + kOdd>(x, ldx);
      Tiles::template load<6>(bytes, 64);
      Tiles::template dot<2 * kOdd, 4 + kOdd, 6>();
      Tiles::template load<7>(bytes + half_bytes, 64);
      Tiles::template dot<2 * kOdd + 1, 4 + kOdd, 7>();
    }
    Tiles::template store<2 * kOdd>(products, 64);
    Tiles::template store<2 * kOdd + 1>(products + 256, 64);
  }

  // ---- Four whole groups a turn: 16 float sums of 16 lanes stay in registers while products pass ----

  /// Products of a turn's groups with 16 tokens, half a panel.
  struct HalfBlock {
    const Turn* turn = nullptr;
    const int8_t *x = nullptr, *bytes = nullptr;  // of the first group
    int32_t* products = nullptr;                  // [group][16][16]
    const float* x_scales = nullptr;              // of row r and group q at r * x_stride + q
    int64_t x_stride = 0;
    float* acc = nullptr;  // rows are 32 apart
    int half = 0;
  };

  /// kColumns of a group: 32, 64, or 0 for any; then depth_of() these `columns`.
  template <int kIndex, int kColumns>
  LOWBIT_INLINE void multiply_group(const HalfBlock& u, int64_t ldx, int64_t columns, int64_t depth) {
    constexpr int kA = 4 + kIndex % 2, kB = 6 + kIndex % 2;
    const int64_t group = kColumns > 0 ? kColumns : columns, step = kColumns > 0 ? kColumns : depth;
    const int8_t *x = u.x + kIndex * group, *bytes = u.bytes + kIndex * group * 16;
    Tiles::template zero<kIndex>();
    for (int64_t k = 0; k < group; k += step) {
      Tiles::template load<kA>(x + k, ldx);
      Tiles::template load<kB>(bytes + 16 * k, 64);
      Tiles::template dot<kIndex, kA, kB>();
    }
  }
  template <int kIndex>
  LOWBIT_INLINE void store_group(const HalfBlock& u) {
    Tiles::template store<kIndex>(u.products + kIndex * 256, 64);
  }
  /// accumulate_groups() behind group kIndex.
  template <int kIndex, int kGroup, bool kScales>
  LOWBIT_INLINE void accumulate_group(const HalfBlock& u, Float (&acc)[16]) {
    if constexpr (kGroup > 0 && (kIndex + 1) % kGroup != 0) return;
    constexpr int kFirst = kGroup > 0 ? kIndex + 1 - kGroup : kIndex;
    const Float scale = kGroup > 0 ? u.turn->scale[kIndex][u.half] : S::zero_f();
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      const float* x_scales = u.x_scales + (kScales ? r * u.x_stride : 0);
      Float t = kGroup == 0 ? acc[r] : S::zero_f();
#pragma GCC unroll 4
      for (int q = kFirst; q <= kIndex; ++q) {
        const Float sum = S::to_float(S::load(reinterpret_cast<const uint8_t*>(u.products + q * 256 + r * 16)));
        t = kScales ? S::fma(sum, S::set_f(x_scales[q]), t) : sum;
      }
      acc[r] = kGroup == 0 ? t : S::fma(t, scale, acc[r]);
    }
  }

  /// Goes through a chunk's half blocks: halves of the panel, then turns, then tokens.
  struct HalfBlockOrder {
    const MatmulArgs& a;
    const Turn* turns;
    int64_t turn_count;
    const int8_t* bytes;
    int64_t half_bytes;
    int32_t* products;
    float* acc;
    int64_t m = 0, turn = 0, half = 0;
    float edge[2][16 * kTurn] = {};  // scales of x where fewer than 16 rows are left, of this half block and the next
    /// Behind the last one its own products once more, in the other half's place: nobody reads them.
    HalfBlock after_last(HalfBlock u) const {
      u.products = products + half * kTurn * 256;
      return u;
    }
    HalfBlock next() {
      const Turn& t = turns[turn];
      const int64_t at = (t.j - turns[0].j) * a.shape.x_group, x_groups = a.shape.x_groups;
      HalfBlock u;
      u.turn = &t;
      u.x = a.xq + m * a.ldxq + t.j * a.shape.x_group;
      u.bytes = bytes + half * half_bytes + at * 16;
      u.products = products + half * kTurn * 256;
      u.acc = acc + 32 * m + 16 * half;
      u.half = int(half);
      if (a.x_group_scale != nullptr) {
        u.x_scales = a.x_group_scale + m * x_groups + t.j;
        u.x_stride = x_groups;
        if (a.m - m < 16) {
          for (int64_t r = 0; r < a.m - m; ++r)
            for (int q = 0; q < kTurn; ++q) edge[half][r * kTurn + q] = u.x_scales[r * x_groups + q];
          u.x_scales = edge[half];
          u.x_stride = kTurn;
        }
      }
      half ^= 1;
      if (half == 0 && ++turn == turn_count) {
        turn = 0;
        m += kBlockRows;
      }
      return u;
    }
  };

  /// Products run three groups ahead of their scales and are stored one behind: what a half block begins with, the one
  /// before it does.
  template <int kGroup, bool kScales, int kColumns>
  static void accumulate_whole_turns(const MatmulArgs& a, const Turn* turns, int64_t turn_count, const int8_t* bytes,
                                     int64_t half_bytes, int32_t* products, float* acc_of) {
    const int64_t ldx = a.ldxq, columns = a.shape.x_group, depth = depth_of(columns);
    HalfBlockOrder order = {a, turns, turn_count, bytes, half_bytes, products, acc_of};
    HalfBlock u = order.next();
    multiply_group<0, kColumns>(u, ldx, columns, depth);
    multiply_group<1, kColumns>(u, ldx, columns, depth);
    store_group<0>(u);
    multiply_group<2, kColumns>(u, ldx, columns, depth);
    store_group<1>(u);
    for (bool last = false; !last;) {
      last = order.m >= a.m;
      const HalfBlock next = last ? order.after_last(u) : order.next();
      Float acc[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) acc[r] = S::load_f(u.acc + 32 * r);
      multiply_group<3, kColumns>(u, ldx, columns, depth);
      store_group<2>(u);
      accumulate_group<0, kGroup, kScales>(u, acc);
      multiply_group<0, kColumns>(next, ldx, columns, depth);
      store_group<3>(u);
      accumulate_group<1, kGroup, kScales>(u, acc);
      multiply_group<1, kColumns>(next, ldx, columns, depth);
      store_group<0>(next);
      accumulate_group<2, kGroup, kScales>(u, acc);
      multiply_group<2, kColumns>(next, ldx, columns, depth);
      store_group<1>(next);
      accumulate_group<3, kGroup, kScales>(u, acc);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) S::store_f(u.acc + 32 * r, acc[r]);
      u = next;
    }
  }

  /// One scale per 32 columns of x and groups of weights of one or four of those take accumulate_groups(): it is
  /// faster.
  static WholeTurns whole_turns_for(const MatmulArgs& a, const Turn& turn, int64_t per_group) {
    const int64_t columns = a.shape.x_group;
    if (scaled_last(a))
      return columns == 32 ? &accumulate_whole_turns<0, true, 32> : &accumulate_whole_turns<0, true, 0>;
    if (a.shape.offsets || turn.j % per_group != 0 || per_group > 2) return nullptr;
    if (a.x_group_scale == nullptr)
      return columns == 64 ? &accumulate_whole_turns<1, false, 64> : &accumulate_whole_turns<1, false, 0>;
    return columns == 32 && per_group == 2 ? &accumulate_whole_turns<2, true, 32> : nullptr;
  }

  /// All tokens times the groups of `turns`, whose bytes lie at `bytes` (of the first turn's first group) and
  /// `half_bytes` behind. products: room for 2 * kProducts; part, acc: [m][32].
  static void multiply(const MatmulArgs& a, const Turn* turns, int64_t turn_count, const int8_t* bytes,
                       int64_t half_bytes, int32_t* products, float* part, float* acc) {
    const int64_t group = a.shape.x_group, depth = depth_of(group), first = turns[0].j;
    bool whole = true;
    for (int64_t i = 0; i < turn_count; ++i) whole = whole && turns[i].whole != nullptr;
    if (whole) return turns[0].whole(a, turns, turn_count, bytes, half_bytes, products, acc);
    Block before;
    int64_t slot = 0;
    for (int64_t m = 0; m < a.m; m += kBlockRows) {
      const int8_t* x = a.xq + m * a.ldxq;
      for (int64_t i = 0; i < turn_count; ++i, slot ^= 1) {
        const Turn& turn = turns[i];
        int32_t* to = products + slot * kProducts;
        for (int64_t q = 0; q < turn.count; ++q) {
          const int64_t k = (turn.j + q) * group, steps = (smaller(group, a.shape.k - k) + depth - 1) / depth;
          const int8_t* b = bytes + (turn.j + q - first) * group * 16;
          int32_t* group_to = to + q * kGroupProducts;
          if (q % 2 == 0) group_products<0>(x + k, a.ldxq, b, half_bytes, steps, depth, group_to);
          if (q % 2 == 1) group_products<1>(x + k, a.ldxq, b, half_bytes, steps, depth, group_to);
          if (before.turn != nullptr)
            before.turn->accumulate(before, before.rows * q / turn.count, before.rows * (q + 1) / turn.count);
        }
        before = {&a, &turn, to, m, smaller(kBlockRows, a.m - m), part + 32 * m, acc + 32 * m};
      }
    }
    before.turn->accumulate(before, 0, before.rows);
  }

  /// Results of all rows, after the last chunk.
  static void write(const MatmulArgs& a, const Factors<S>& factors, int64_t n, const float* acc_of) {
    for (int v = 0; v < 2; ++v) {
      const Float scale = factors.scale(0, v), offset = a.shape.offsets ? factors.offset(0, v) : S::zero_f();
      for (int64_t m = 0; m < a.m; ++m) {
        Float acc = S::load_f(acc_of + 32 * m + 16 * v);
        if (scaled_last(a)) {
          acc = S::fma(acc, scale, S::zero_f());
          if (a.shape.offsets) acc = S::fma(S::set_f(a.x_sums[m]), offset, acc);
        }
        write_rows<S, Activation::kInt8>(a, m, n + 16 * v, acc);
      }
    }
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
