#pragma once
// Products with a packed matrix, by one warp: kernels/ref/packed_kv.h. Tensor cores multiply codes by the two bytes of
// x apart; sums of integers are exact, so their order is free.

#include <type_traits>

#include "kernels/cuda/block/page_values.cuh"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/packed_ops.cuh"
#include "kernels/packed_kv.h"

namespace lowbit::cuda::block {

constexpr int kStep = 32;  // rows of one instruction

/// Where x of a row lies, for `kBits` and `kN` times 16 columns: a thread's bytes of four instructions' operands side
/// by side, in the order in which codes_of_step() gives rows. kBits 0: any matrix, rows in their order.
template <int kBits, int kN>
__device__ __forceinline__ int slot_of(int row) {
  const int step = row / kStep, at = row % kStep;
  if constexpr (kBits == 0) return row;
  if constexpr (kBits >= 4) {
    const int pair = at / 2, i = pair / 4;
    return step * kStep + i / 2 * 16 + pair % 4 * 4 + i % 2 * 2 + at % 2;
  } else if constexpr (kN == 4) {
    const int quad = at / 4, e = at % 4;
    return step * kStep + quad / 4 * 16 + quad % 4 * 4 + (e == 1 ? 2 : e == 2 ? 1 : e);
  } else {
    const int octet = at / 8, e = at % 8;
    return step * kStep + (e / 2 % 2) * 16 + octet * 4 + e % 2 * 2 + e / 4;
  }
}

/// Words that a thread takes of one step of the rows, eight bytes each. Of 3 bits the low two are those of 2 bits, and
/// then as many words have the highest.
template <int kBits, int kN>
constexpr int kStepLoads = kBits == 8   ? 8
                           : kBits >= 3 ? 4
                                        : kN / 2;

/// The raw codes of a step: columns 16 n + 2 g and 16 n + 2 g + 1 of the thread's rows, for all n. high: where the
/// highest of 3 bits begin.
template <int kBits, int kN>
__device__ __forceinline__ void load_step(const uint8_t* codes, const uint8_t* high, int step,
                                          uint2 (&raw)[kStepLoads<kBits, kN>]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if constexpr (kBits == 3) {
    static_assert(kN == 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pack = step * 8 + t + 4 * i;
      raw[i] = load_once(codes + pack * 64 + 8 * g);
      raw[2 + i] = high_bits_of(load_once(high + pack / 2 * 64 + 8 * g), pack % 2);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kStepLoads<kBits, kN>; ++i) {
      const int pack = kBits == 8   ? 2 * (step * 16 + t + i / 2 * 4) + i % 2
                       : kBits == 4 ? step * 16 + t + 4 * i
                       : kN == 4    ? step * 8 + t + 4 * i
                                    : step * 4 + t;
      raw[i] = load_once(codes + pack * 64 + 8 * g);
    }
  }
}

/// Operand a of columns 16 n to 16 n + 15, their even ones first.
template <int kBits, int kN>
__device__ __forceinline__ void codes_of_step(const uint2 (&raw)[kStepLoads<kBits, kN>], int n, uint32_t (&a)[4]) {
  if constexpr (kBits == 8) {
    const uint32_t which = n % 2 == 0 ? 0x6420 : 0x7531;
    const int of = n / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 first = raw[4 * half + of], second = raw[4 * half + 2 + of];
      a[2 * half] = choose_bytes(first.x, second.x, which);
      a[2 * half + 1] = choose_bytes(first.y, second.y, which);
    }
  } else if constexpr (kBits == 4) {
    const uint32_t which = n / 2 == 0 ? 0x6420 : 0x7531;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 first = raw[2 * half], second = raw[2 * half + 1];
      a[2 * half] = (choose_bytes(first.x, second.x, which) >> (n % 2 * 4)) & 0x0f0f0f0fu;
      a[2 * half + 1] = (choose_bytes(first.y, second.y, which) >> (n % 2 * 4)) & 0x0f0f0f0fu;
    }
  } else if constexpr (kBits == 3) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 low = raw[half], high = raw[2 + half];
      a[2 * half] = (low.x >> (2 * n) & 0x03030303u) | (high.x >> n & 0x01010101u) << 2;
      a[2 * half + 1] = (low.y >> (2 * n) & 0x03030303u) | (high.y >> n & 0x01010101u) << 2;
    }
  } else if constexpr (kN == 4) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[2 * half] = (raw[half].x >> (2 * n)) & 0x03030303u;
      a[2 * half + 1] = (raw[half].y >> (2 * n)) & 0x03030303u;
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[2 * half] = (raw[0].x >> (4 * half + 2 * n)) & 0x03030303u;
      a[2 * half + 1] = (raw[0].y >> (4 * half + 2 * n)) & 0x03030303u;
    }
  }
}

/// codes_of_step() for any matrix, a code at a time; zeros behind its last row.
__device__ __forceinline__ void codes_of_any(const PackedShape& shape, const uint8_t* codes, int step, int n,
                                             uint32_t (&a)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int column = 16 * n + 2 * g + i % 2;
    a[i] = 0;
    for (int b = 0; b < 4; ++b) {
      const int row = step * kStep + i / 2 * 16 + 4 * t + b;
      if (row >= shape.rows) continue;
      a[i] |= CodedRows::code(codes, shape, row, column) << (8 * b);
    }
  }
}

/// x of one product for a warp's queries, in shared memory: 16-bit integers, two halves of a warp write them.
struct SharedX {
  uint16_t* x;  // query q at x + q * pitch
  float2* by;   // [queries]: scale, offset
  int pitch, queries;
};
/// Elements between two queries' x of so many rows; neighbouring queries lie in different banks.
constexpr LOWBIT_HD int x_pitch(int rows) { return rows + 16; }

/// x becomes integers. Each half of the warp has every second query; x(query, row). kRows: at least shape.rows, of 16.
template <int kRows, int kBits, int kN, class Get>
__device__ __forceinline__ void prepare_x(const PackedShape& shape, const uint8_t* side, int queries, const Get& x,
                                          const SharedX& to) {
  constexpr int kOwn = kRows / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, half = static_cast<int>(threadIdx.x) % 32 / kLanes;
  const int rows = static_cast<int>(shape.rows);
  const float super_scale = reinterpret_cast<const float*>(side)[0],
              super_least = reinterpret_cast<const float*>(side)[1];
  float steps[kOwn], leasts[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int row = i * kLanes + lane;
    const bool there = row < rows;
    steps[i] = there ? __fmul_rn(super_scale, static_cast<float>(side[8 + row])) : 0.0f;
    leasts[i] = there ? __fmul_rn(super_least, static_cast<float>(static_cast<int8_t>(side[8 + rows + row]))) : 0.0f;
  }
#pragma unroll
  for (int q = 0; q < queries; q += 2) {
    const int query = q + half;
    float scaled[kOwn], offset = 0;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = i * kLanes + lane;
      scaled[i] = 0;
      if ((kRows != 64 && row >= rows) || query >= queries) continue;
      const float v = x(query, row);
      scaled[i] = __fmul_rn(v, steps[i]);
      most = max(most, __float_as_uint(scaled[i]) & 0x7fffffffu);
      offset = __fmaf_rn(v, leasts[i], offset);
    }
#pragma unroll
    for (int w = kLanes / 2; w > 0; w /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, 32));
    offset = reduce_lanes(offset);
    const float a = __uint_as_float(most);
    float scale = 0, inverse = 0;
    if (most > 0x7f7fffffu) {
      scale = __uint_as_float(0x7fc00000u);
    } else if (a >= 0x1p-100f) {
      scale = __fdiv_rn(a, kPackedX);
      inverse = __fdiv_rn(kPackedX, a);
    }
    if (lane == 0) to.by[query] = {scale, offset};
    uint16_t* const at = to.x + query * to.pitch;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {  // adding 1.5 * 2^23 rounds; an integer's bits lie lowest then
      const float v = inverse == 0 ? 0.0f : __fmul_rn(scaled[i], inverse);
      at[slot_of<kBits, kN>(i * kLanes + lane)] = static_cast<uint16_t>(__float_as_uint(__fadd_rn(v, 12582912.0f)));
    }
  }
}

/// Operands b of a step: the high and the low bytes of x, of query g.
struct XBytes {
  uint32_t high[2], low[2];
};
__device__ __forceinline__ XBytes bytes_of_step(const SharedX& from, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = min(lane / 4, from.queries - 1), t = lane % 4;
  XBytes x;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 four = *reinterpret_cast<const uint2*>(from.x + g * from.pitch + step * kStep + half * 16 + t * 4);
    x.high[half] = choose_bytes(four.x, four.y, 0x7531);
    x.low[half] = choose_bytes(four.x, four.y, 0x6420);
  }
  return x;
}

/// give(query, column, product) for the thread's outputs of columns 16 n to 16 n + 15.
template <class Give>
__device__ __forceinline__ void give_products(const int (&high)[4], const int (&low)[4], int n, int queries,
                                              const SharedX& x, const Give& give) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if (2 * t >= queries) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int query = 2 * t + i % 2;
    if (query >= queries) continue;
    const float2 by = x.by[query];
    const int sum = static_cast<int>(static_cast<uint32_t>(high[i]) * 256u + static_cast<uint32_t>(low[i]));
    give(query, 16 * n + 2 * g + i / 2, __fmaf_rn(static_cast<float>(sum), by.x, by.y));
  }
}

/// Raw codes of up to kSteps times 32 rows, 16 kN columns. Many are fetched step by step: registers are few.
template <int kBits, int kN, int kSteps>
struct RawCodes {
  static constexpr bool kAtOnce = kSteps * kStepLoads<kBits, kN> <= 16;
  uint2 raw[kAtOnce ? kSteps : 1][kStepLoads<kBits, kN>];

  /// Where the highest of 3 bits begin.
  static __device__ __forceinline__ const uint8_t* high(const uint8_t* codes, int steps) {
    return codes + steps * kStep * kN * 16 / 4;
  }
  __device__ __forceinline__ void fetch(const uint8_t* codes, int steps) {
    if constexpr (kAtOnce) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        if (step < steps) load_step<kBits, kN>(codes, high(codes, steps), step, raw[step]);
    }
  }
  __device__ __forceinline__ auto& of_step(const uint8_t* codes, int step, int steps) {
    if constexpr (kAtOnce) {
      return raw[step];
    } else {
      load_step<kBits, kN>(codes, high(codes, steps), step, raw[0]);
      return raw[0];
    }
  }
};

/// All products of a matrix of 16 kN columns, `steps` times 32 rows.
template <int kBits, int kN, int kMostSteps, class Give>
__device__ __forceinline__ void multiply_fast(const uint8_t* codes, RawCodes<kBits, kN, kMostSteps>& fetched, int steps,
                                              int queries, const SharedX& x, const Give& give) {
  int high[kN][4] = {}, low[kN][4] = {};
#pragma unroll
  for (int step = 0; step < kMostSteps; ++step) {
    if (step >= steps) break;
    const auto& raw = fetched.of_step(codes, step, steps);
    const XBytes by = bytes_of_step(x, step);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      uint32_t a[4];
      codes_of_step<kBits, kN>(raw, n, a);
      multiply_bytes<true>(high[n], a, by.high[0], by.high[1]);
      multiply_bytes<false>(low[n], a, by.low[0], by.low[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) give_products(high[n], low[n], n, queries, x, give);
}

template <class Give>
__device__ LOWBIT_OUT_OF_LINE void multiply_any(const PackedShape& shape, const uint8_t* codes, int queries,
                                                const SharedX& x, const Give& give) {
  for (int n = 0; n < shape.columns / 16; ++n) {
    int high[4] = {}, low[4] = {};
    for (int step = 0; step * kStep < shape.rows; ++step) {
      uint32_t a[4];
      codes_of_any(shape, codes, step, n, a);
      const XBytes by = bytes_of_step(x, step);
      multiply_bytes<true>(high, a, by.high[0], by.high[1]);
      multiply_bytes<false>(low, a, by.low[0], by.low[1]);
    }
    give_products(high, low, n, queries, x, give);
  }
}

/// y[query][c] = sum_r x(query, r) * real[r][c], for one warp: give(query, column, y). kRows: at least shape.rows. kN2:
/// columns of 2 bits, by 16, that are read fast.
template <int kRows, int kN2, class Get, class Give>
__device__ __forceinline__ void packed_product(const PackedShape& shape, const uint8_t* codes, const uint8_t* side,
                                               int queries, const SharedX& shared, const Get& x, const Give& give) {
  const int steps = static_cast<int>(shape.rows) / kStep;
  const auto run = [&](auto bits, auto columns) {
    constexpr int kBits = decltype(bits)::value, kN = decltype(columns)::value;
    RawCodes<kBits, kN, kRows / kStep> fetched;
    fetched.fetch(codes, steps);
    prepare_x<kRows, kBits, kN>(shape, side, queries, x, shared);
    sync_warp();
    multiply_fast<kBits, kN, kRows / kStep>(codes, fetched, steps, queries, shared, give);
  };
  const bool whole = shape.rows % kStep == 0, wide = whole && shape.columns == 64;
  if (wide && shape.bits == 8) {
    run(std::integral_constant<int, 8>(), std::integral_constant<int, 4>());
  } else if (wide && shape.bits == 4) {
    run(std::integral_constant<int, 4>(), std::integral_constant<int, 4>());
  } else if (wide && shape.bits == 3) {
    run(std::integral_constant<int, 3>(), std::integral_constant<int, 4>());
  } else if (whole && shape.bits == 2 && shape.columns == 16 * kN2) {
    run(std::integral_constant<int, 2>(), std::integral_constant<int, kN2>());
  } else {
    prepare_x<kRows, 0, 0>(shape, side, queries, x, shared);
    sync_warp();
    multiply_any(shape, codes, queries, shared, give);
  }
  sync_warp();  // x may be written again
}

}  // namespace lowbit::cuda::block
