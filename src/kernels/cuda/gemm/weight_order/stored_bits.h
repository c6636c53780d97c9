#pragma once
// How many bits a format's values take in fragment order: derived from the codec, so that every integer format of the
// list is served by three kernels and none knows its name; floats and tables are stored as their codes.

#include <array>

#include "format/formats.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/weight_order/fragment_order.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct StoredBits {
  int bits;  // 2, 4, 8, kTwoPlanes, kTable, kTrellis or kE4m3; 0: not served
  int zero;  // the stored code of value 0 for f16 and bf16; int8 activations store two's complement
};

template <class F, bool Int8>
constexpr StoredBits stored_bits_of() {
  using C = typename F::Codec;
  if constexpr (OnTrellis<F>) {
    return {Int8 && F::Packing::kStoredBits == 2 ? kTrellis : 0, 0};
  } else if constexpr (C::kKind == CodecKind::kTable) {
    return {Int8 ? kTable : 0, 0};
  } else if constexpr (C::kKind == CodecKind::kFloat) {
    return {Int8 ? 0 : kE4m3, 0};
  } else if constexpr (Int8 && F::kId == FormatId::kTernaryPlanes) {
    return {kTwoPlanes, 0};
  } else if constexpr (!Int8 && C::kMin >= 0) {
    return C::kMax < 4 ? StoredBits{2, 0} : C::kMax < 16 ? StoredBits{4, 0} : StoredBits{0, 0};
  } else if constexpr (C::kMin >= -2 && C::kMax <= 1) {
    return {2, 2};
  } else if constexpr (C::kMin >= -8 && C::kMax <= 7) {
    return {4, 8};
  } else {
    return C::kMin >= -128 && C::kMax <= 127 ? StoredBits{8, Int8 ? 0 : 128} : StoredBits{0, 0};
  }
}
template <class F>
struct StoredForInt8 {
  static constexpr StoredBits value = stored_bits_of<F, true>();
};
template <class F>
struct StoredForHalf {
  static constexpr StoredBits value = stored_bits_of<F, false>();
};

constexpr StoredBits stored_bits(FormatId format, cuda::GemmActivation activation) {
  constexpr auto kInt8 = make_table<StoredForInt8>(FormatList{});
  constexpr auto kHalf = make_table<StoredForHalf>(FormatList{});
  const int at = int(format) - kDenseFormats;
  if (at < 0 || at >= int(kInt8.size())) return {0, 0};
  if (activation == cuda::GemmActivation::kBit) return {format == FormatId::kBinary ? 8 : 0, 0};  // bytes as they are
  return activation == cuda::GemmActivation::kInt8 ? kInt8[size_t(at)] : kHalf[size_t(at)];
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
