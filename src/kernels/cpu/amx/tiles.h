#pragma once
// AMX tile registers. Inline assembly, not GCC's intrinsics: those of GCC 12 declare too small an input for the
// configuration (stores to it are dropped, and the first tile load traps) and no memory at all for loads and stores.

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Palette 1: bytes of a row and rows of each of the eight tiles.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// The registers of this machine. `row_bytes` and `rows` of all tiles used come from configure(), until release().
struct HardwareTiles {
  static constexpr const char* kTileName = "amx_32x32";
  static void configure(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory"); }
  static void release() { __asm__ volatile("tilerelease" : : : "memory"); }
  template <int T>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  static void load(const void* from, int64_t stride_bytes) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(T), "r"(from), "r"(stride_bytes) : "memory");
  }
  template <int T>
  static void store(void* to, int64_t stride_bytes) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(T), "r"(to), "r"(stride_bytes) : "memory");
  }
  /// C[i][n] += sum over k and b < 4 of A[i][4 k + b] * B[k][4 n + b]: int8 times int8 into int32, without saturation.
  template <int C, int A, int B>
  static void dot() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  /// dot() with unsigned bytes in A.
  template <int C, int A, int B>
  static void dot_unsigned() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
