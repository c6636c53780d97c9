#pragma once
// Tables, gates and state of the integer GRU.

#include <cstdint>

#include "kernels/cpu/gru_rounding.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

inline int64_t segment_value(const GruTableView& t, const GruGrid& in, const GruGrid& out, int64_t i, int64_t q) {
  const int64_t product = int64_t{t.slope[i]} * (q - in.zp);
  const UniformShift<int64_t> shift(t.shift[i]);
  const int64_t y =
      t.kind == GruTableView::kSeed ? shift(product) + t.intercept[i] : shift(product + t.intercept[i]) + out.zp;
  return gru_clamp<int64_t>(y, out.lo, out.hi);
}

inline void pack_table(const PackedTable& p, const GruTableView& t, const GruGrid& in, const GruGrid& out,
                       uint8_t* base) {
  auto* data = reinterpret_cast<uint16_t*>(base + p.data);
  int64_t segment = 0;
  for (int64_t q = in.lo; q <= in.hi; ++q) {
    while (t.kind != GruTableView::kDirect && segment < t.segments - 1 && q >= t.threshold[segment]) ++segment;
    const int64_t u = q - in.lo;
    const auto value = [&] {
      return (t.kind == GruTableView::kDirect ? int64_t{t.direct[u]} : segment_value(t, in, out, segment, q)) - out.lo;
    };
    if (p.bytes)
      (base + p.data)[u] = uint8_t(value());
    else
      data[u] = uint16_t(value());
  }
}

/// y[j] = table(q[j]) - out.zp; q and y have room for kBlock.
template <class S, class T>
void look_up(const PackedTable& p, const uint8_t* base, const GruGrid& in, const GruGrid& out, const T* q, int64_t n,
             T* y) {
  const auto* data = reinterpret_cast<const uint16_t*>(base + p.data);
  const T centre = out.lo - out.zp;
  if constexpr (S::kByteTables && sizeof(T) == 4) {
    if (p.bytes) return S::look_up_bytes(base + p.data, q, in.lo, centre, y);
  }
  int32_t code[kBlock];
  for (int64_t j = 0; j < n; ++j) code[j] = int32_t(q[j]) - in.lo;
  if (p.bytes) {
    for (int64_t j = 0; j < n; ++j) y[j] = T((base + p.data)[code[j]]) + centre;
    return;
  }
  for (int64_t j = 0; j < n; ++j) y[j] = T(data[code[j]]) + centre;
}

template <class T>
void trace_block(int32_t* to, const T* q, int64_t n, T zp) {
  if (to == nullptr) return;
  for (int64_t j = 0; j < n; ++j) to[j] = int32_t(q[j] + zp);
}

/// Gates and state of one row: elements [0, H) in blocks.
template <class S, class T>
void elements(const GruSpec& s, const PackedCell& cell, const uint8_t* base, const int32_t* ih, const int32_t* hh,
              uint16_t* h, const GruTrace* trace, int64_t row) {
  const GruGrid* g = s.grid;
  const auto between = [&](int a, int b) { return UniformShift<T>(g[a].shift - g[b].shift); };
  const UniformShift<T> ih_u = between(kSlotIh, kSlotUi), hh_u = between(kSlotHh, kSlotUi),
                        ih_r = between(kSlotIh, kSlotRi), hh_r = between(kSlotHh, kSlotRi),
                        ih_n = between(kSlotIh, kSlotNi), rh_n(g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift),
                        n_h = between(kSlotN, kSlotH), to_h(g[kSlotU].shift);
  const T one = T(int64_t{1} << g[kSlotU].shift), old_zero = g[kSlotH].lo - g[kSlotH].zp;
  alignas(64) T ui[kBlock], u[kBlock], ri[kBlock], r[kBlock], ni[kBlock], n[kBlock];
  for (int64_t at = 0; at < s.h; at += kBlock) {
    const int64_t count = s.h - at < kBlock ? s.h - at : kBlock;
    const int32_t *iu = ih + at, *ir = iu + s.h, *in = ir + s.h, *hu = hh + at, *hr = hu + s.h, *hn = hr + s.h;
    for (int64_t j = 0; j < count; ++j) {
      ui[j] = gru_clamp<T>(ih_u(iu[j]) + hh_u(hu[j]) + g[kSlotUi].zp, g[kSlotUi].lo, g[kSlotUi].hi);
      ri[j] = gru_clamp<T>(ih_r(ir[j]) + hh_r(hr[j]) + g[kSlotRi].zp, g[kSlotRi].lo, g[kSlotRi].hi);
    }
    look_up<S>(cell.table[0], base, g[kSlotUi], g[kSlotU], ui, count, u);
    look_up<S>(cell.table[1], base, g[kSlotRi], g[kSlotR], ri, count, r);
    for (int64_t j = 0; j < count; ++j)
      ni[j] = gru_clamp<T>(ih_n(in[j]) + rh_n(T(r[j] * T(hn[j]))) + g[kSlotNi].zp, g[kSlotNi].lo, g[kSlotNi].hi);
    look_up<S>(cell.table[2], base, g[kSlotNi], g[kSlotN], ni, count, n);
    uint16_t* state = h + at;
    for (int64_t j = 0; j < count; ++j) {
      const T old = T(state[j]) + old_zero;
      const T sum = u[j] * old + (one - u[j]) * n_h(n[j]);
      state[j] = uint16_t(int32_t(gru_clamp<T>(to_h(sum) + g[kSlotH].zp, g[kSlotH].lo, g[kSlotH].hi) - g[kSlotH].lo));
    }
    if (trace == nullptr) continue;
    const auto row_of = [&](int32_t* p) { return p == nullptr ? p : p + row * s.h + at; };
    trace_block<T>(row_of(trace->ui), ui, count, 0);
    trace_block<T>(row_of(trace->ri), ri, count, 0);
    trace_block<T>(row_of(trace->ni), ni, count, 0);
    trace_block<T>(row_of(trace->u), u, count, g[kSlotU].zp);
    trace_block<T>(row_of(trace->r), r, count, g[kSlotR].zp);
    trace_block<T>(row_of(trace->n), n, count, g[kSlotN].zp);
  }
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
