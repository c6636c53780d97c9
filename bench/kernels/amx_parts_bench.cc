// Costs of the steps of an AMX matmul on one core: JSON lines, the nanoseconds of each (the least of short bursts,
// which keep clear of a host that slows tile products down) and its cycles, by the clock that products in registers
// show: 16 cycles each.
//
// Ends with 2 where there is no AMX.

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "kernels/cpu/amx/tiles.h"
#include "tensor/buffer.h"

namespace lowbit {
namespace {

using T = HardwareTiles;
constexpr int64_t kTile = 1024, kStride = 4160, kRows = 160, kK = 4096, kChunk = 512;

struct Memory {
  Buffer x, bytes, products, sums;
};

TileConfig whole_tiles() {
  TileConfig c;
  for (int t = 0; t < 8; ++t) c.rows[t] = 16, c.row_bytes[t] = 64;
  return c;
}

void products_in_registers(Memory&) {
  for (int i = 0; i < 1000; ++i) {
    T::dot<0, 4, 6>();
    T::dot<1, 4, 7>();
    T::dot<2, 5, 6>();
    T::dot<3, 5, 7>();
  }
}

/// Four tiles a time from `bytes` of memory, over and over.
template <int64_t kBytes>
void loads(Memory& m) {
  const std::byte* p = m.x.data();
  for (int64_t i = 0; i < 1000; ++i, p += 4 * kTile) {
    if (p == m.x.data() + kBytes) p = m.x.data();
    T::load<4>(p, 64);
    T::load<5>(p + kTile, 64);
    T::load<6>(p + 2 * kTile, 64);
    T::load<7>(p + 3 * kTile, 64);
  }
}

void loads_of_rows(Memory& m) {
  for (int64_t k = 0; k < kK; k += 64)
    for (int64_t r = 0; r < kRows; r += 16) T::load<4>(m.x.data() + r * kStride + k, kStride);
}

void stores(Memory& m) {
  for (int i = 0; i < 1000; ++i) {
    T::store<0>(m.products.data(), 64);
    T::store<1>(m.products.data() + kTile, 64);
    T::store<2>(m.products.data() + 2 * kTile, 64);
    T::store<3>(m.products.data() + 3 * kTile, 64);
  }
}

void stores_read_back(Memory& m) {
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < 1000; ++i) {
    T::store<0>(m.products.data() + i % 8 * kTile, 64);
    const std::byte* p = m.products.data() + (i + 4) % 8 * kTile;
    for (int r = 0; r < 16; ++r) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(p + 64 * r));
  }
  __asm__ volatile("" : : "v"(sum));
}

/// A tile load behind a store to elsewhere, whose addresses end in the same 12 bits (kAway 0) or in others.
template <int64_t kAway>
void load_behind_store(Memory& m) {
  for (int64_t i = 0; i < 1000; ++i) {
    T::store<0>(m.products.data() + i % 4 * 4096, 64);
    T::load<4>(m.bytes.data() + i % 2 * 4096 + kAway, 64);
  }
}

/// 32 operations that either vector port takes.
void vector_operations() {
  __asm__ volatile(
      ".rept 2\n\t.irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\tvpaddd %%zmm16, %%zmm17, "
      "%%zmm\\r\n\t.endr\n\t.endr" ::
          : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
            "xmm13", "xmm14", "xmm15");
}
/// Combinations of instructions that share the core: a product, a tile's store, vector operations, 80 instructions that
/// do nothing.
template <bool kProduct, bool kStore, bool kVectors, bool kNothing>
void beside(Memory& m) {
  for (int i = 0; i < 250; ++i) [&]<int... C>(std::integer_sequence<int, C...>) {
      ((kProduct ? T::dot<C, 4, 6>() : void(),
        kStore ? T::store<(C + 1) % 4>(m.products.data() + C * kTile, 64) : void(),
        kVectors ? vector_operations() : void()),
       ...);
      if constexpr (kNothing) __asm__ volatile(".rept 320\n\tnop\n\t.endr");
    }
  (std::make_integer_sequence<int, 4>{});
}

void configurations(Memory&) {
  const TileConfig c = whole_tiles();
  for (int i = 0; i < 1000; ++i) T::configure(c);
}

void step(const std::byte* x, int64_t ldx, int64_t second, const std::byte* bytes, int64_t half) {
  T::load<6>(bytes, 64);
  T::load<4>(x, ldx);
  T::dot<0, 4, 6>();
  T::load<7>(bytes + half, 64);
  T::dot<1, 4, 7>();
  T::load<5>(x + second, ldx);
  T::dot<2, 5, 6>();
  T::dot<3, 5, 7>();
}

void steps_from_first_level(Memory& m) {
  for (int64_t i = 0; i < 1000; ++i) {
    const std::byte* p = m.bytes.data() + i % 8 * kTile;
    step(p, 64, 8 * kTile, p + 16 * kTile, 8 * kTile);
  }
}

/// Rows of x in the second level; kWide: bytes of the whole row, there too, and sums that stay in tiles. Else chunks of
/// 512 columns in the first level, and sums that are stored and loaded between them.
template <bool kWide>
void rows_of_blocks(Memory& m) {
  constexpr int64_t kColumns = kWide ? kK : kChunk, kHalf = kColumns * 16;
  for (int64_t k0 = 0; k0 < kK; k0 += kColumns)
    for (int64_t r = 0; r < kRows; r += 32) {
      std::byte* sums = m.sums.data() + r * 128;
      if (k0 == 0) {
        T::zero<0>(), T::zero<1>(), T::zero<2>(), T::zero<3>();
      } else {
        T::load<0>(sums, 128), T::load<1>(sums + 64, 128), T::load<2>(sums + 2048, 128), T::load<3>(sums + 2112, 128);
      }
      const std::byte* x = m.x.data() + r * kStride + k0;
      for (int64_t i = 0; i < kColumns / 64; ++i)
        step(x + 64 * i, kStride, 16 * kStride, m.bytes.data() + i * kTile, kHalf);
      T::store<0>(sums, 128), T::store<1>(sums + 64, 128), T::store<2>(sums + 2048, 128), T::store<3>(sums + 2112, 128);
    }
}

/// A product and a store per group of 64 columns, without scale-accumulate.
void groups_of_columns(Memory& m) {
  for (int64_t r = 0; r < kRows; r += 16)
    for (int64_t k = 0; k < kChunk; k += 64) {
      const std::byte* bytes = m.bytes.data() + k * 16;
      std::byte* to = m.products.data() + k / 64 % 4 * 2 * kTile;
      T::zero<0>();
      T::zero<1>();
      T::load<4>(m.x.data() + r * kStride + k, kStride);
      T::load<6>(bytes, 64);
      T::dot<0, 4, 6>();
      T::load<7>(bytes + kChunk * 16, 64);
      T::dot<1, 4, 7>();
      T::store<0>(to, 64);
      T::store<1>(to + kTile, 64);
    }
}

void lines(Memory& m) {
  __m512i sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < 1024 * kTile; i += 256)
    for (int64_t j = 0; j < 256; j += 64) sum = _mm512_or_si512(sum, _mm512_loadu_si512(m.x.data() + i + j));
  __asm__ volatile("" : : "v"(sum));
}

struct Part {
  const char* name;
  double count;  // of what is named, per call
  void (*run)(Memory&);
};
constexpr double kProducts = double(kRows / 16) * 2 * (kK / 64);
constexpr Part kParts[] = {
    {"product, in registers", 4000, products_in_registers},
    {"tile load, first-level cache", 4000, loads<4 * kTile>},
    {"tile load, second-level cache", 4000, loads<512 * kTile>},
    {"tile load, rows 4160 bytes apart, second-level cache", double(kRows / 16) * (kK / 64), loads_of_rows},
    {"16 vector loads, second-level cache", 1024, lines},
    {"tile store", 4000, stores},
    {"tile store, and 16 vector loads of an earlier one", 1000, stores_read_back},
    {"tile load behind a store, other addresses", 1000, load_behind_store<2048>},
    {"tile load behind a store, addresses that end in the same 12 bits", 1000, load_behind_store<0>},
    {"32 vector operations", 1000, beside<false, false, true, false>},
    {"80 instructions that do nothing", 1000, beside<false, false, false, true>},
    {"product, and 32 vector operations", 1000, beside<true, false, true, false>},
    {"tile store, and 32 vector operations", 1000, beside<false, true, true, false>},
    {"product and tile store", 1000, beside<true, true, false, false>},
    {"product, tile store, and 32 vector operations", 1000, beside<true, true, true, false>},
    {"tile store, and 80 instructions that do nothing", 1000, beside<false, true, false, true>},
    {"tile configuration", 1000, configurations},
    {"product of a 32 x 32 step, first-level cache", 4000, steps_from_first_level},
    {"product, 160 rows of x, chunks of 512 columns", kProducts, rows_of_blocks<false>},
    {"product, 160 rows of x, whole rows of 4096 columns", kProducts, rows_of_blocks<true>},
    {"product and its store, a segment of 64 columns", double(kRows / 16) * 2 * (kChunk / 64), groups_of_columns},
};

double least_seconds(const Part& part, Memory& m) {
  const TileConfig config = whole_tiles();
  double least = 1e9;
  for (int burst = 0; burst < 20; ++burst) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    T::configure(config);
    for (const auto start = Clock::now(); seconds_since(start) < 0.4e-3;) {
      const auto begin = Clock::now();
      part.run(m);
      least = std::min(least, seconds_since(begin));
    }
    T::release();
  }
  return least / part.count;
}

}  // namespace
}  // namespace lowbit

int main() {
  using namespace lowbit;
  if (!isa_available(Isa::kAmx)) return 2;
  Memory m;
  for (Buffer* b : {&m.x, &m.bytes, &m.products, &m.sums}) {
    auto buffer = Buffer::allocate(int64_t{4} << 20, "parts", Pages::kLarge);
    if (!buffer) return 1;
    std::memset(buffer->data(), 1, size_t(buffer->size()));
    *b = *buffer;
  }
  double cycle = 0;
  for (const Part& part : kParts) {
    const double ns = 1e9 * least_seconds(part, m);
    if (cycle == 0) cycle = ns / 16;
    std::printf("%s\n", nlohmann::ordered_json{{"part", part.name}, {"ns", ns}, {"cycles", ns / cycle}}.dump().c_str());
  }
  return 0;
}
