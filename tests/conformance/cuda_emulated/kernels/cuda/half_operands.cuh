#pragma once
// In place of src/kernels/cuda/half_operands.cuh, for a host compiler: sums are added one after the other.

#include "kernels/cuda/gemm/weight_order/fragment_order.h"
#include "kernels/cuda/half_matrices.cuh"

namespace lowbit::cuda {

template <int Bits, bool kBf16>
void half_values(const uint32_t* words, uint32_t half_zero, uint32_t (&a)[8]) {
  using Order = FragmentOrder<Bits, 2>;
  constexpr int kRegisters = Order::kRegistersPerWord, kWidth = Order::kWidth;
  const int zero = static_cast<int>(half_zero & 0xffffu) - (kBf16 ? 0x4300 : 0x6400);
  for (int i = 0; i < 8; ++i) {
    a[i] = 0;
    for (int part = 0; part < 2; ++part) {
      const uint32_t code = words[i / kRegisters] >> (16 * part + kWidth * (i % kRegisters)) & ((1u << kWidth) - 1u);
      const float value =
          Bits == kE4m3 ? e4m3_to_f32(static_cast<uint8_t>(code)) : static_cast<float>(static_cast<int>(code) - zero);
      a[i] |= uint32_t{kBf16 ? f32_to_bf16(value) : f32_to_f16(value)} << (16 * part);
    }
  }
}
template <bool kBf16>
void multiply_halves(float (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
  multiply_pairs(d, a, b0, b1, [](uint32_t pair, int which) {
    const auto bits = static_cast<uint16_t>(pair >> (16 * which));
    return kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  });
}

}  // namespace lowbit::cuda
