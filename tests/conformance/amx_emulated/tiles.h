#pragma once
// AMX tiles in memory, for machines without the unit. What the processor answers with an illegal instruction traps.

#include "kernels/cpu/amx/tiles.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct EmulatedTiles {
  static constexpr const char* kTileName = "amx_emulated_32x32";
  struct State {
    TileConfig config;
    bool configured = false;
    alignas(64) uint8_t tiles[8][16][64];
  };
  static State& state() {
    static thread_local State s;
    return s;
  }
  static void configure(const TileConfig& config) {
    State& s = state();
    s.config = config;
    s.configured = true;
    __builtin_memset(s.tiles, 0, sizeof s.tiles);
  }
  static void release() { state().configured = false; }
  static void check(int t) {  // what the processor answers with an illegal instruction
    const State& s = state();
    if (!s.configured || s.config.rows[t] == 0 || s.config.rows[t] > 16 || s.config.row_bytes[t] > 64 ||
        s.config.row_bytes[t] % 4 != 0)
      __builtin_trap();
  }
  template <int T>
  static void zero() {
    check(T);
    __builtin_memset(state().tiles[T], 0, 1024);
  }
  template <int T>
  static void load(const void* from, int64_t stride) {
    zero<T>();
    for (int r = 0; r < state().config.rows[T]; ++r)
      __builtin_memcpy(state().tiles[T][r], static_cast<const char*>(from) + r * stride, state().config.row_bytes[T]);
  }
  template <int T>
  static void store(void* to, int64_t stride) {
    check(T);
    for (int r = 0; r < state().config.rows[T]; ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * stride, state().tiles[T][r], state().config.row_bytes[T]);
  }
  template <int C, int A, int B>
  static void dot() {
    multiply<C, A, B, int8_t>();
  }
  template <int C, int A, int B>
  static void dot_unsigned() {
    multiply<C, A, B, uint8_t>();
  }
  template <int C, int A, int B, class Byte>
  static void multiply() {
    check(C), check(A), check(B);
    State& s = state();
    if (s.config.row_bytes[A] != 4 * s.config.rows[B] || s.config.rows[A] != s.config.rows[C] ||
        s.config.row_bytes[B] != s.config.row_bytes[C])
      __builtin_trap();
    for (int i = 0; i < s.config.rows[C]; ++i)
      for (int n = 0; n < s.config.row_bytes[C] / 4; ++n) {
        int32_t sum;
        __builtin_memcpy(&sum, &s.tiles[C][i][4 * n], 4);
        for (int k = 0; k < s.config.rows[B]; ++k)
          for (int b = 0; b < 4; ++b) sum += int32_t(Byte(s.tiles[A][i][4 * k + b])) * int8_t(s.tiles[B][k][4 * n + b]);
        __builtin_memcpy(&s.tiles[C][i][4 * n], &sum, 4);
      }
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
