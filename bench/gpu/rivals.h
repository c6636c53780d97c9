#pragma once
// Other people's kernels beside ours, loaded by path and never linked: BitNet's W2A8 GEMV and cuBLAS with bf16 weights.
// LOWBIT_BITNET_KERNEL: a shared library of microsoft/BitNet's gpu/bitnet_kernels; LOWBIT_CUBLAS: libcublas.so.

#include <cstdint>

namespace lowbit {

class Rivals {
 public:
  explicit Rivals(void* stream);
  bool has_bitnet() const { return bitnet_ != nullptr; }
  bool has_cublas() const { return cublas_ != nullptr; }
  /// y [n] bf16 = x [k] int8 times packed ternary weights.
  bool bitnet(const void* x, const void* w, void* y, const void* scale, const void* scales, int n, int k) const;
  /// y [n] bf16 = x [k] bf16 times w [n, k] bf16.
  bool cublas(const void* x, const void* w, void* y, int n, int k) const;

 private:
  using BitnetKernel = int (*)(const void*, const void*, void*, const void*, const void*, int, int, int, void*);
  using GemmEx = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                         const void*, void*, int, int, int, int);
  void *stream_, *handle_ = nullptr;
  BitnetKernel bitnet_ = nullptr;
  GemmEx cublas_ = nullptr;
};

}  // namespace lowbit
