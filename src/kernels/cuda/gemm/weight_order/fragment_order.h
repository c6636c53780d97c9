#pragma once
// Fragment order: weights as the tensor cores' A operand wants them in registers. mma.m16n8 and wgmma.m64 give a warp
// 16 rows and lane 4 g + t the rows g and g + 8 of them; the order is the same for both, so one layout serves every
// architecture. The two rows of a lane hold *neighbouring* weight rows 2 g and 2 g + 1, which makes the outputs of a
// lane neighbours in memory.
//
// A pack is 64 rows by 128 bytes of x (128 columns of int8, 64 of f16). Two packs of neighbouring rows lie side by
// side, so that one copy brings 128 rows; such panels follow along K, then N. A step is 32 bytes of x: the K of one
// instruction, four registers. A batch is two steps. In a pack: [batch][lane of 128][words of the lane].

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

inline constexpr int kPackRows = 64, kPackLanes = 128, kStepsPerPack = 4, kStepsPerBatch = 2;
inline constexpr int kPanelPacks = 2, kPanelRows = kPanelPacks * kPackRows;

/// Index of the pack of rows [64 pack, 64 pack + 64) and block `block` of K among all packs.
constexpr LOWBIT_HD int64_t pack_index(int64_t pack, int64_t block, int64_t blocks) {
  return (pack / kPanelPacks * blocks + block) * kPanelPacks + pack % kPanelPacks;
}

/// In place of a width: ternary values as two planes, a word of the positive ones and one of those that are not zero;
/// stored indices of a table of bytes (kernels/cuda_lookup.h), those of a register side by side; stored codes of two
/// bits on a trellis, which become such indices (trellis_decode.cuh), as two planes, a word each; and codes of E4M3.
inline constexpr int kTwoPlanes = 3, kTable = 5, kTrellis = 6, kE4m3 = 9;
constexpr LOWBIT_HD int stored_width(int bits) {
  return bits == kTwoPlanes || bits == kTrellis ? 2 : bits == kTable ? 4 : bits == kE4m3 ? 8 : bits;
}

/// Where code `field` of word `word` of a pack belongs, for codes of Bits bits and x elements of XBytes bytes.
template <int Bits, int XBytes>
struct FragmentOrder {
  static_assert((XBytes == 1 &&
                 (Bits == 2 || Bits == kTwoPlanes || Bits == 4 || Bits == kTable || Bits == kTrellis || Bits == 8)) ||
                (XBytes == 2 && (Bits == 2 || Bits == 4 || Bits == 8 || Bits == kE4m3)));
  static constexpr int kBits = Bits, kWidth = stored_width(Bits);
  static constexpr int kPackK = 128 / XBytes;         // columns of a pack
  static constexpr int kLaneWords = kWidth / XBytes;  // 32-bit words of a lane in a batch
  static constexpr int kPackWords = 2 * kPackLanes * kLaneWords;
  static constexpr int kPackBytes = 4 * kPackWords;
  static constexpr int kFields = 32 / kWidth;      // codes in a word
  static constexpr int kPerRegister = 4 / XBytes;  // codes in an operand register
  static constexpr int kRegistersPerWord = kFields / kPerRegister;
  static_assert(kPackBytes * 8 == kPackRows * kPackK * kWidth);

  struct Position {
    int row, k;  // inside the pack
  };
  /// Part `part` (byte or half) of operand register `in_batch` (4 * step + r) of a lane in a batch.
  static constexpr LOWBIT_HD Position position(int batch, int lane128, int in_batch, int part) {
    const int step = kStepsPerBatch * batch + in_batch / 4, r = in_batch % 4;
    const int warp = lane128 / 32, g = lane128 % 32 / 4, t = lane128 % 4;
    return {16 * warp + 2 * g + r % 2, (16 * (2 * step + r / 2) + 4 * t) / XBytes + part};
  }

  struct Element {
    int row, k, shift;  // inside the pack; bit position inside the word
  };
  static constexpr LOWBIT_HD Element element(int word, int field) {
    constexpr int kVector = kLaneWords < 4 ? kLaneWords : 4;  // words of one load
    const int batch = word / (kPackLanes * kLaneWords), in_batch = word % (kPackLanes * kLaneWords);
    const int chunk = in_batch / (kPackLanes * kVector), lane128 = in_batch / kVector % kPackLanes;
    const int register_of_batch =
        (chunk * kVector + in_batch % kVector) * kRegistersPerWord + field / kPerRegister;  // 4 * step + r
    const int part = field % kPerRegister;                                                  // byte or half of it
    const int nth = register_of_batch % kRegistersPerWord;  // which register of this word
    const Position at = position(batch, lane128, register_of_batch, part);
    // int8: the code's top bit lies at the top of a byte, so that masking alone gives value * 2^(8 - Bits);
    // halves: register `nth` is (word >> Bits * nth) & mask in both halves.
    const int shift = Bits == kTable ? 16 * nth + 4 * part
                      : XBytes == 1  ? 8 * part + 8 - Bits * (nth + 1)
                                     : 16 * part + kWidth * nth;
    return {at.row, at.k, shift};
  }
  /// Two planes: register `nth` of a batch is bits nth, nth + 8, nth + 16, nth + 24 of the word of each plane.
  static constexpr LOWBIT_HD Element plane_element(int word, int bit) {
    const int batch = word / (kPackLanes * kLaneWords), lane128 = word / kLaneWords % kPackLanes;
    const Position at = position(batch, lane128, bit % 8, bit / 8);
    return {at.row, at.k, bit};
  }
  /// A trellis: bit 16 h + 4 i + j of both words is of byte i of register 2 j + h, so of the columns 16 j + 4 t + i of
  /// row h of the lane. A nibble holds four runs of four columns at the same place of each.
  static constexpr LOWBIT_HD Element trellis_element(int word, int bit) {
    const int batch = word / (kPackLanes * kLaneWords), lane128 = word / kLaneWords % kPackLanes;
    const Position at = position(batch, lane128, 2 * (bit % 4) + bit / 16, bit / 4 % 4);
    return {at.row, at.k, bit};
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
