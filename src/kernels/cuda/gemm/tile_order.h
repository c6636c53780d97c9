#pragma once
// Fragment order: weights as the tensor cores' A operand wants them in registers. mma.m16n8 and wgmma.m64 give a warp 16
// rows and lane 4 g + t the rows g and g + 8 of them; the order is the same for both, so one layout serves every
// architecture. The two rows of a lane hold *neighbouring* weight rows 2 g and 2 g + 1, which makes the outputs of a lane
// neighbours in memory.
//
// A unit is 64 rows by 128 bytes of x (128 columns of int8, 64 of f16). Two units of neighbouring rows lie side by side, so
// that one copy brings 128 rows; such panels follow along K, then N. A step is 32 bytes of
// x: the K of one instruction, four registers. A batch is two steps. In a unit: [batch][lane of 128][words of the lane].

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

inline constexpr int kUnitRows = 64, kUnitLanes = 128, kStepsPerUnit = 4, kStepsPerBatch = 2;
inline constexpr int kPanelUnits = 2, kPanelRows = kPanelUnits * kUnitRows;

/// Place of the unit of rows [64 unit, 64 unit + 64) and block `block` of K among all units.
constexpr LOWBIT_HD int64_t unit_index(int64_t unit, int64_t block, int64_t blocks) {
  return (unit / kPanelUnits * blocks + block) * kPanelUnits + unit % kPanelUnits;
}

/// In place of a width: ternary values as two planes, a word of the positive ones and one of those that are not zero.
inline constexpr int kTwoPlanes = 3;
constexpr LOWBIT_HD int stored_width(int bits) { return bits == kTwoPlanes ? 2 : bits; }

/// Where code `field` of word `word` of a unit belongs, for codes of Bits bits and x elements of XBytes bytes.
template <int Bits, int XBytes>
struct FragmentOrder {
  static_assert((XBytes == 1 && (Bits == 2 || Bits == kTwoPlanes || Bits == 4 || Bits == 8)) ||
                (XBytes == 2 && (Bits == 2 || Bits == 4)));
  static constexpr int kBits = Bits, kWidth = stored_width(Bits);
  static constexpr int kUnitK = 128 / XBytes;         // columns of a unit
  static constexpr int kLaneWords = kWidth / XBytes;  // 32-bit words of a lane in a batch
  static constexpr int kUnitWords = 2 * kUnitLanes * kLaneWords;
  static constexpr int kUnitBytes = 4 * kUnitWords;
  static constexpr int kFields = 32 / kWidth;      // codes in a word
  static constexpr int kPerRegister = 4 / XBytes;  // codes in an operand register
  static constexpr int kRegistersPerWord = kFields / kPerRegister;
  static_assert(kUnitBytes * 8 == kUnitRows * kUnitK * kWidth);

  struct Place {
    int row, k;  // inside the unit
  };
  /// Part `part` (byte or half) of operand register `in_batch` (4 * step + r) of a lane in a batch.
  static constexpr LOWBIT_HD Place place(int batch, int lane128, int in_batch, int part) {
    const int step = kStepsPerBatch * batch + in_batch / 4, r = in_batch % 4;
    const int warp = lane128 / 32, g = lane128 % 32 / 4, t = lane128 % 4;
    return {16 * warp + 2 * g + r % 2, (16 * (2 * step + r / 2) + 4 * t) / XBytes + part};
  }

  struct Element {
    int row, k, shift;  // inside the unit; bit position inside the word
  };
  static constexpr LOWBIT_HD Element element(int word, int field) {
    constexpr int kVector = kLaneWords < 4 ? kLaneWords : 4;  // words of one load
    const int batch = word / (kUnitLanes * kLaneWords), in_batch = word % (kUnitLanes * kLaneWords);
    const int chunk = in_batch / (kUnitLanes * kVector), lane128 = in_batch / kVector % kUnitLanes;
    const int register_of_batch =
        (chunk * kVector + in_batch % kVector) * kRegistersPerWord + field / kPerRegister;  // 4 * step + r
    const int part = field % kPerRegister;                                                  // byte or half of it
    const int nth = register_of_batch % kRegistersPerWord;  // which register of this word
    const Place at = place(batch, lane128, register_of_batch, part);
    // int8: the code's top bit lies at the top of a byte, so that masking alone gives value * 2^(8 - Bits);
    // halves: register `nth` is (word >> Bits * nth) & mask in both halves.
    const int shift = XBytes == 1 ? 8 * part + 8 - Bits * (nth + 1) : 16 * part + Bits * nth;
    return {at.row, at.k, shift};
  }
  /// Two planes: register `nth` of a batch is bits nth, nth + 8, nth + 16, nth + 24 of the word of each plane.
  static constexpr LOWBIT_HD Element plane_element(int word, int bit) {
    const int batch = word / (kUnitLanes * kLaneWords), lane128 = word / kLaneWords % kUnitLanes;
    const Place at = place(batch, lane128, bit % 8, bit / 8);
    return {at.row, at.k, bit};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
