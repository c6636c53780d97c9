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

constexpr KernelName matmul_name(const char* format, const char* activation, const char* isa_and_tile) {
  KernelName name;
  for (const char* part : {"matmul_", format, "_", activation, "__", isa_and_tile}) name.append(part);
  return name;
}
constexpr KernelName matmul_name(const char* format, Activation activation, const char* isa_and_tile) {
  return matmul_name(format, activation_tag(activation), isa_and_tile);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
