#pragma once
// The integer GRU cell on vectors S, for any instruction set; the bits of kernels/ref/gru.cc.
//
// Products: a lane is an output row. Inputs are offset codes u = q - lo in one or two unsigned bytes ("limbs"), so that
// sum w q = sum_l 256^l sum w u_l + lo sum w, the last term added to the bias at load. Weights up to 8 bits are
// signed bytes, S::kColumns of them a lane; their sums of one limb fit int32 up to kMaxBytesK columns. S::kCentred
// products see limbs less 128, and their bias what that takes away. Weights of up to 4 bits that would not stay in the
// second-level cache as bytes lie two or four to a byte; a field comes out as its value times 16 or 64 by a shift and a
// mask, so that sums are that much too large and shifted back, exactly. Wider weights are 16-bit pairs, their sums move
// to int64 every kWideRun columns. Where the plan has proved that the whole sum fits int32 it is put together there:
// arithmetic modulo 2^32 cannot go wrong when the true result fits. Elements: blocks of kBlock in loops for the
// compiler to vectorize, in int32 where the plan allows, else in double where it has proved that exact (x 2^-k + 1.5 *
// 2^52 - 1.5 * 2^52 is rs(x, k)), else in int64.

#include <cstdint>

#include "kernels/cpu/gru_elements.h"
#include "kernels/cpu/gru_interleaved.h"
#include "kernels/cpu/gru_products.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class S>
int64_t gru_packed_bytes(const GruSpec& s) {
  return plan_cell<S>(s).bytes;
}

template <class S>
void gru_pack(const GruSpec& s, uint8_t* packed) {
  const PackedCell c = plan_cell<S>(s);
  __builtin_memset(packed, 0, size_t(c.bytes));
  __builtin_memcpy(packed, &c, sizeof c);
  if (c.use_reference) return;
  pack_product<S>(c.x, s.grid[kSlotX], s.w, s.x_bias, s.x_shift, packed);
  pack_product<S>(c.h, s.grid[kSlotH], s.r, s.h_bias, s.h_shift, packed);
  const int inputs[3] = {kSlotUi, kSlotRi, kSlotNi}, outputs[3] = {kSlotU, kSlotR, kSlotN};
  for (int i = 0; i < 3; ++i) pack_table(c.table[i], s.table[i], s.grid[inputs[i]], s.grid[outputs[i]], packed);
}

template <class S>
int64_t gru_scratch_bytes(const GruSpec& s, int64_t rows) {
  const PackedCell c = plan_cell<S>(s);
  if (c.use_reference) return kRefGru.scratch_bytes(s, rows);
  const int64_t x = product_scratch<S>(c.x, rows), h = product_scratch<S>(c.h, rows);
  const int64_t plain = gru_round_up(4 * rows * 3 * s.h, 64) + (x > h ? x : h);
  const int64_t interleaved = may_interleave<S>(c.x, c.h) ? interleaved_scratch<S>(c.x, c.h) : 0;
  return plain > interleaved ? plain : interleaved;
}

template <class S>
void gru_input(const GruSpec& s, const uint8_t* packed, const uint16_t* x, int64_t rows, int32_t* ih,
               uint8_t* scratch) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  if (c.use_reference) return kRefGru.input(s, packed, x, rows, ih, scratch);
  product<S>(c.x, packed, x, rows, ih, scratch);
}

/// Gates and state of one row.
template <class S>
void gates(const GruSpec& s, const uint8_t* packed, const int32_t* ih, const int32_t* hh, uint16_t* h,
           const GruTrace* trace, int64_t row) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  if (s.elements32)
    elements<S, int32_t>(s, c, packed, ih, hh, h, trace, row);
  else if (s.elements_f64)
    elements<S, double>(s, c, packed, ih, hh, h, trace, row);
  else
    elements<S, int64_t>(s, c, packed, ih, hh, h, trace, row);
}

template <class S>
void gru_step(const GruSpec& s, const uint8_t* packed, const int32_t* ih, int64_t rows, uint16_t* h,
              const GruTrace* trace, uint8_t* scratch) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  if (c.use_reference) return kRefGru.step(s, packed, ih, rows, h, trace, scratch);
  auto* hh = reinterpret_cast<int32_t*>(scratch);
  product<S>(c.h, packed, h, rows, hh, scratch + gru_round_up(4 * rows * 3 * s.h, 64));
  for (int64_t m = 0; m < rows; ++m) gates<S>(s, packed, ih + m * 3 * s.h, hh + m * 3 * s.h, h + m * s.h, trace, m);
  if (trace != nullptr) trace_block<int32_t>(trace->hh, hh, rows * 3 * s.h, s.grid[kSlotHh].zp);
}

template <class S>
int64_t gru_ahead_rows(const uint8_t* packed) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  return !c.use_reference && may_interleave<S>(c.x, c.h) ? kAheadRows : 0;
}

template <class S>
void gru_step_ahead(const GruSpec& s, const uint8_t* packed, const int32_t* ih, uint16_t* h, const GruAhead& ahead,
                    uint8_t* scratch) {
  const auto& c = *reinterpret_cast<const PackedCell*>(packed);
  // hh with its padding, the state's codes, then what stays between the shares.
  auto* hh = reinterpret_cast<int32_t*>(scratch);
  uint8_t* const codes = scratch + gru_round_up(4 * c.h.rows_padded, 64);
  interleaved_product<S>(c.h, c.x, packed, h, ahead, hh, reinterpret_cast<typename S::Element*>(codes),
                         codes + gru_round_up(c.h.k_padded, 64));
  gates<S>(s, packed, ih, hh, h, nullptr, 0);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
