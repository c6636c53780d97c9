#pragma once
// Kernel names, put together at compile time: matmul_<format>_<activation>__<isa>_<tile>.

#include "base/isa.h"
#include "kernels/api.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct KernelName {
  char text[64] = {};
  int length = 0;
  constexpr void append(const char* s) {
    for (; *s != '\0'; ++s) text[length++] = *s;
  }
};

constexpr KernelName matmul_name(const char* format, Activation activation, const char* isa_and_tile) {
  KernelName name;
  name.append("matmul_");
  name.append(format);
  name.append(activation == Activation::kInt8 ? "_a8__" : "_af32__");
  name.append(isa_and_tile);
  return name;
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
