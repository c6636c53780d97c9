#include <string_view>

#include "lowbit/format_advice.h"

namespace lowbit {

const char* format_advice(FormatId id) {
  switch (id) {
    case FormatId::kF32:
      return "layers that must stay exact";
    case FormatId::kF16:
      return "layers kept as they are, from 16-bit models";
    case FormatId::kBf16:
      return "layers kept as they are, with the range of f32";
    case FormatId::kInt8:
      return "no visible loss; the default of embedding and head";
    case FormatId::kInt4:
      return "the usual choice: small, fast, little loss";
    case FormatId::kInt3:
      return "three bits that run fastest; give --calib";
    case FormatId::kInt2Odd:
      return "two bits that run fastest; give --calib and --rotate";
    case FormatId::kBinary:
      return "models that were trained with one bit";
    case FormatId::kTernary:
      return "models that were trained ternary, such as BitNet";
    case FormatId::kTernaryPacked:
      return "ternary models at 1.6 bits: the smallest file";
    case FormatId::kFp8:
      return "models that come in FP8";
    case FormatId::kCodebook4:
      return "four bits with less loss than int4; give --calib";
    case FormatId::kCodebook3:
      return "three bits to train further (lowbit.recover)";
    case FormatId::kCodebook2:
      return "two bits to train further (lowbit.recover)";
    case FormatId::kTrellis2:
      return "two bits with the least loss; give --calib";
    case FormatId::kTrellis3:
      return "three bits with the least loss; give --calib";
    // No advice: formats kept for imports (above all from GGUF) while another of the same size loses less; layouts of
    // kernels, tests and benchmarks; new formats until it is known when they pay.
    default:
      return "";
  }
}

}  // namespace lowbit
