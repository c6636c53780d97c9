#pragma once
// The contract between src/gru/ and the GRU kernels of each instruction set: plain structs and function pointers.
//
// Between cells and kernels an activation is its *offset code* u = q - lo, 0 .. 2^bits - 1, in 16 bits: signed and
// unsigned formats look alike there. Sums (ih, hh) are centered, q - zp, in 32 bits.
// Every kernel gives the bits of kernels/ref/gru.cc.

#include <cstdint>

namespace lowbit {

/// Order of GruSpec::grid; the same as GruTensor of lowbit/gru.h.
enum GruSlot { kSlotX, kSlotH, kSlotIh, kSlotHh, kSlotUi, kSlotU, kSlotRi, kSlotR, kSlotNi, kSlotN, kGruSlots };

/// real = (q - zp) * 2^-shift, q in [lo, hi].
struct GruGrid {
  int32_t lo = 0, hi = 0, zp = 0;
  int shift = 0;
};

/// An activation function. Segment i = number of thresholds <= q; q and zp are the input's.
///   kFused:  clamp(rs(slope[i] * (q - zp) + intercept[i], shift[i]) + out.zp)
///   kSeed:   clamp(rs(slope[i] * (q - zp), shift[i]) + intercept[i])       (the intercept holds out.zp)
///   kDirect: direct[q - lo]
struct GruTableView {
  enum Kind : uint8_t { kFused, kSeed, kDirect };
  Kind kind = kDirect;
  int segments = 0;
  const int32_t* threshold = nullptr;  // [segments - 1], ascending
  const int32_t* slope = nullptr;      // [segments]
  const int64_t* intercept = nullptr;
  const int32_t* shift = nullptr;
  const int32_t* direct = nullptr;  // [2^bits of the input], output codes q
};

/// Everything a cell computes with. The plan builder has proved that no int64 here can overflow.
struct GruSpec {
  int64_t c = 0, h = 0;
  GruGrid grid[kGruSlots];
  const int32_t* w = nullptr;        // [3H, C], gate order u, r, n, zero points taken off
  const int32_t* r = nullptr;        // [3H, H]
  int w_bits = 8, r_bits = 8;        // values fit signed integers of so many bits, 1 to 17
  const int64_t* x_bias = nullptr;   // [3H] bias at product scale minus zp_x * sum of the row
  const int64_t* h_bias = nullptr;   // [3H]
  const int32_t* x_shift = nullptr;  // [3H] right shift from the product to ih; negative: left
  const int32_t* h_shift = nullptr;
  GruTableView table[3];  // u, r, n
  // Proved: these stages, rounding included, fit int32, so a kernel may compute them there.
  bool input32 = false, state32 = false;  // products
  bool elements32 = false;                // everything from ih, hh to h but tables
  // Proved: the same in f32 or f64 is exact, rs(x, k) being (x 2^-k + m) - m with m = 1.5 * 2^23 or 1.5 * 2^52.
  bool input_f64 = false, state_f32 = false, state_f64 = false, elements_f32 = false, elements_f64 = false;
};

/// Where to leave a step's tensors for comparison: codes q, rows of 3H (hh) or H. Any may be null.
struct GruTrace {
  int32_t *hh = nullptr, *ui = nullptr, *u = nullptr, *ri = nullptr, *r = nullptr, *ni = nullptr, *n = nullptr;
};

/// A share of the input product of rows to come, done beside a step of one sequence.
struct GruAhead {
  const uint16_t* x = nullptr;    // [ahead_rows(), C], the same for all shares
  int32_t* ih = nullptr;          // [ahead_rows(), 3H], complete after the last share
  int64_t share = 0, shares = 1;  // in order
};

struct GruKernel {
  const char* name;  // "gru_cell__avx512_32x4"
  const char* isa;
  /// Bytes that pack() writes: a multiple of 64. 0: the kernel reads GruSpec::w and r themselves.
  int64_t (*packed_bytes)(const GruSpec& spec);
  void (*pack)(const GruSpec& spec, uint8_t* packed);
  /// Scratch of input() and step() for up to `rows` rows: a multiple of 64.
  int64_t (*scratch_bytes)(const GruSpec& spec, int64_t rows);
  /// ih[m, 0..3H) from x [rows, C], offset codes.
  void (*input)(const GruSpec& spec, const uint8_t* packed, const uint16_t* x, int64_t rows, int32_t* ih,
                uint8_t* scratch);
  /// h [rows, H], offset codes, to the next step's in place. `trace` may be null.
  void (*step)(const GruSpec& spec, const uint8_t* packed, const int32_t* ih, int64_t rows, uint16_t* h,
               const GruTrace* trace, uint8_t* scratch);
  /// Rows that step_ahead() works on, 0 where it may not be called for a cell; null: for none. Scratch as for step(),
  /// and kept between the shares.
  int64_t (*ahead_rows)(const uint8_t* packed) = nullptr;
  void (*step_ahead)(const GruSpec& spec, const uint8_t* packed, const int32_t* ih, uint16_t* h, const GruAhead& ahead,
                     uint8_t* scratch) = nullptr;
};

extern const GruKernel kRefGru;
extern const GruKernel kAvx2Gru;
extern const GruKernel kAvx512Gru;
extern const GruKernel kAmxGru;

}  // namespace lowbit
