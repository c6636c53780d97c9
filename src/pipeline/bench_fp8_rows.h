#pragma once
// Shared by the benches of FP8 in blocks on a CPU and on a GPU.

#include <algorithm>
#include <vector>

#include "lowbit/bench.h"
#include "ops/fp8.h"
#include "runtime/engine.h"

namespace lowbit {

inline constexpr int64_t kFp8BenchColdBytes = int64_t{512} << 20;

/// A matrix of numbers that bf16 has, and what quantization makes of it.
struct Fp8Operand {
  int64_t rows = 0, columns = 0, row_block = 1;
  std::vector<float> values, scales;
  std::vector<uint8_t> codes;

  Fp8Operand(int64_t n, int64_t k, int64_t block, uint64_t seed);
  int64_t scale_columns() const;
  /// Codes and scales of rows [begin, end) of another one.
  void put(const Fp8Operand& from, int64_t begin, int64_t end, int64_t at);
  Fp8Quant quant();
  /// With a norm of these weights first.
  Fp8Quant normed(const float* weights);
};

/// Weights of a norm.
inline std::vector<float> fp8_bench_norm(int64_t columns) { return std::vector<float>(size_t(columns), 0.75f); }

/// Copies of weights in memory, so that none comes from a cache.
inline int64_t fp8_bench_copies(bool cold, int64_t bytes) {
  return cold ? std::max<int64_t>(1, (kFp8BenchColdBytes + bytes - 1) / bytes) : 1;
}

/// On the current GPU: quantization of both operands and the products. A time is the device's for one call of a
/// captured graph.
Result<std::vector<Fp8BenchRow>> bench_fp8_on_device(const Fp8BenchOptions& options, const Engine& engine);

}  // namespace lowbit
