// The AMX kernels on tiles in memory, so that machines with AVX-512 and no AMX can prove them.

#include "kernels/cpu/avx512/simd.h"
// The vocabulary comes first: the lists below are templates over it.
#include "kernels/cpu/tile_matmul.h"
#include "tests/conformance/amx_emulated/table.h"

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
          for (int b = 0; b < 4; ++b)
            sum += int32_t(int8_t(s.tiles[A][i][4 * k + b])) * int8_t(s.tiles[B][k][4 * n + b]);
        __builtin_memcpy(&s.tiles[C][i][4 * n], &sum, 4);
      }
  }
};

}  // namespace LOWBIT_ISA

constinit const KernelTable kAmxEmulatedTable = {"amx_emulated", kTileKernels<Simd, EmulatedTiles>,
                                                 kTileKernelCount<Simd, EmulatedTiles>, nullptr};

}  // namespace lowbit
