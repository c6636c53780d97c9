#include "rivals.h"

#include <dlfcn.h>

#include <cstdlib>

namespace lowbit {
namespace {

void* open_named(const char* variable) {
  const char* const path = std::getenv(variable);
  return path == nullptr || *path == 0 ? nullptr : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}
template <class F>
F symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library, name));
}

}  // namespace

Rivals::Rivals(void* stream) : stream_(stream) {
  bitnet_ = symbol<BitnetKernel>(open_named("LOWBIT_BITNET_KERNEL"), "bitlinear_int8xint2");
  void* const library = open_named("LOWBIT_CUBLAS");
  const auto create = symbol<int (*)(void**)>(library, "cublasCreate_v2");
  const auto set_stream = symbol<int (*)(void*, void*)>(library, "cublasSetStream_v2");
  if (create == nullptr || set_stream == nullptr || create(&handle_) != 0 || set_stream(handle_, stream) != 0) return;
  cublas_ = symbol<GemmEx>(library, "cublasGemmEx");
}

bool Rivals::bitnet(const void* x, const void* w, void* y, const void* scale, const void* scales, int n, int k) const {
  bitnet_(x, w, y, scale, scales, 1, n, k, stream_);  // prints a line where it has no kernel
  return true;
}

bool Rivals::cublas(const void* x, const void* w, void* y, int n, int k) const {
  constexpr int kTransposed = 1, kAsItIs = 0, kBf16 = 14, kComputeF32 = 68, kAnyAlgorithm = -1;
  const float one = 1, zero = 0;
  return cublas_(handle_, kTransposed, kAsItIs, n, 1, k, &one, w, kBf16, k, x, kBf16, k, &zero, y, kBf16, n,
                 kComputeF32, kAnyAlgorithm) == 0;
}

}  // namespace lowbit
