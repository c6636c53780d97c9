// The meaning of the GRU cell: docs/gru.md in plain loops over 64-bit integers. Never tuned.

#include "base/rounding.h"
#include "kernels/gru_api.h"

namespace lowbit {
namespace {

int64_t clamp(int64_t v, const GruGrid& g) { return v < g.lo ? g.lo : v > g.hi ? g.hi : v; }

/// out[m, c] = clamp(rs(sum_k w[c,k] q[m,k] + bias[c], shift[c]) + zp) - zp
void linear(const int32_t* w, const int64_t* bias, const int32_t* shift, const GruGrid& in, const GruGrid& out,
            int64_t outputs, int64_t k, const uint16_t* codes, int64_t rows, int32_t* centered) {
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t c = 0; c < outputs; ++c) {
      int64_t sum = bias[c];
      for (int64_t i = 0; i < k; ++i) sum += int64_t{w[c * k + i]} * (int64_t{codes[m * k + i]} + in.lo);
      const int64_t q = clamp(rounding_shift(sum, shift[c]) + out.zp, out);
      centered[m * outputs + c] = static_cast<int32_t>(q - out.zp);
    }
}

int64_t look_up(const GruTableView& t, const GruGrid& in, const GruGrid& out, int64_t q) {
  if (t.kind == GruTableView::kDirect) return t.direct[q - in.lo];
  int i = 0;
  while (i < t.segments - 1 && q >= t.threshold[i]) ++i;
  const int64_t product = int64_t{t.slope[i]} * (q - in.zp);
  if (t.kind == GruTableView::kSeed) return clamp(rounding_shift(product, t.shift[i]) + t.intercept[i], out);
  return clamp(rounding_shift(product + t.intercept[i], t.shift[i]) + out.zp, out);
}

/// One element of a row: the gates and the state. ih and hh point to the element's u; r and n lie H and 2 H further.
struct Element {
  int64_t ui, u, ri, r, ni, n, h;
};

Element element(const GruSpec& s, const int32_t* ih, const int32_t* hh, int64_t h_code) {
  const GruGrid* g = s.grid;
  const int64_t stride = s.h;
  Element e;
  const auto gate = [&](int slot, int64_t at) {
    return clamp(rounding_shift(ih[at], g[kSlotIh].shift - g[slot].shift) +
                     rounding_shift(hh[at], g[kSlotHh].shift - g[slot].shift) + g[slot].zp,
                 g[slot]);
  };
  e.ui = gate(kSlotUi, 0);
  e.u = look_up(s.table[0], g[kSlotUi], g[kSlotU], e.ui);
  e.ri = gate(kSlotRi, stride);
  e.r = look_up(s.table[1], g[kSlotRi], g[kSlotR], e.ri);
  const int64_t product = (e.r - g[kSlotR].zp) * hh[2 * stride];
  e.ni = clamp(rounding_shift(ih[2 * stride], g[kSlotIh].shift - g[kSlotNi].shift) +
                   rounding_shift(product, g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift) + g[kSlotNi].zp,
               g[kSlotNi]);
  e.n = look_up(s.table[2], g[kSlotNi], g[kSlotN], e.ni);
  const int64_t aligned = rounding_shift(e.n - g[kSlotN].zp, g[kSlotN].shift - g[kSlotH].shift);
  const int64_t one = (int64_t{1} << g[kSlotU].shift) + g[kSlotU].zp;
  const int64_t old = h_code + g[kSlotH].lo - g[kSlotH].zp;
  const int64_t sum = (e.u - g[kSlotU].zp) * old + (one - e.u) * aligned;
  e.h = clamp(rounding_shift(sum, g[kSlotU].shift) + g[kSlotH].zp, g[kSlotH]);
  return e;
}

void put(int32_t* to, int64_t at, int64_t q) {
  if (to != nullptr) to[at] = static_cast<int32_t>(q);
}

int64_t packed_bytes(const GruSpec&) { return 0; }
void pack(const GruSpec&, uint8_t*) {}
int64_t scratch_bytes(const GruSpec& s, int64_t rows) { return (rows * 3 * s.h * 4 + 63) / 64 * 64; }

void input(const GruSpec& s, const uint8_t*, const uint16_t* x, int64_t rows, int32_t* ih, uint8_t*) {
  linear(s.w, s.x_bias, s.x_shift, s.grid[kSlotX], s.grid[kSlotIh], 3 * s.h, s.c, x, rows, ih);
}

void step(const GruSpec& s, const uint8_t*, const int32_t* ih, int64_t rows, uint16_t* h, const GruTrace* trace,
          uint8_t* scratch) {
  auto* hh = reinterpret_cast<int32_t*>(scratch);  // [rows, 3H]
  linear(s.r, s.h_bias, s.h_shift, s.grid[kSlotH], s.grid[kSlotHh], 3 * s.h, s.h, h, rows, hh);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t j = 0; j < s.h; ++j) {
      const int64_t at = m * s.h + j, sums = m * 3 * s.h + j;
      const Element e = element(s, ih + sums, hh + sums, h[at]);
      h[at] = static_cast<uint16_t>(e.h - s.grid[kSlotH].lo);
      if (trace == nullptr) continue;
      for (int gate = 0; gate < 3; ++gate)
        put(trace->hh, sums + gate * s.h, hh[sums + gate * s.h] + s.grid[kSlotHh].zp);
      put(trace->ui, at, e.ui);
      put(trace->u, at, e.u);
      put(trace->ri, at, e.ri);
      put(trace->r, at, e.r);
      put(trace->ni, at, e.ni);
      put(trace->n, at, e.n);
    }
}

}  // namespace

constinit const GruKernel kRefGru = {"gru_cell__ref", "ref", packed_bytes, pack, scratch_bytes, input, step};

}  // namespace lowbit
