#pragma once
// bench matmul --vs ggml: the same product by bench/rivals' ggml_matmul, a program of its own.

#include <string>

#include "lowbit/bench.h"

namespace lowbit::cli {

/// `spec`: "ggml", "ggml:TYPE" or "ggml:TYPE:BUFFER", TYPE by ggml's names (default: the one with as many bits), BUFFER plain,
/// repack or amx. The program is $LOWBIT_GGML_MATMUL, else build/rivals/build/bin/ggml_matmul.
/// Errors: kNotFound (no program), kInvalidArgument (spec), kUnsupported (ggml has no such kernel), kCorrupt (its answer is wrong).
bool is_ggml(const std::string& spec);
Result<MatmulBenchReport> bench_ggml(const MatmulBenchOptions& options, int threads, const std::string& spec);

}  // namespace lowbit::cli
