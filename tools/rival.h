#pragma once
// bench matmul|model --vs ggml, bench gru --vs onednn, bench fp8 --vs cublaslt: the same work by other
// programs.

#include <string>

#include "lowbit/bench.h"

namespace lowbit::cli {

/// `spec`: "ggml", "ggml:TYPE" or "ggml:TYPE:BUFFER", TYPE by ggml's names (default: the one with as many bits), BUFFER
/// plain, repack or amx. The program is $LOWBIT_GGML_MATMUL, else build/rivals/build/bin/ggml_matmul. Errors: kNotFound
/// (no program), kInvalidArgument (spec), kUnsupported (ggml has no such kernel), kCorrupt (its answer is wrong).
bool is_ggml(const std::string& spec);
Result<MatmulBenchReport> bench_ggml(const MatmulBenchOptions& options, int threads, const std::string& spec);

/// llama.cpp's speed on a GGUF file, by its llama-bench.
struct RivalModel {
  std::string path, type, build;  // the file, what llama.cpp calls its weights, its commit
  int64_t bytes = 0, parameters = 0;
  double prefill_tok_s = 0, decode_tok_s = 0;
};

/// `spec`: "ggml:FILE.gguf", or "ggml" when `model` is a GGUF file itself. Prompt, generated tokens, repetitions and
/// threads are those of `options`. The program is $LOWBIT_LLAMA_BENCH, else build/rivals/build/bin/llama-bench. It
/// checks no answers: the reports say which files were run. Errors: kNotFound (no program or file), kInvalidArgument
/// (spec), kUnsupported (it does not run the file).
Result<RivalModel> bench_llama(const ModelBenchOptions& options, const std::string& model, int threads,
                               const std::string& spec);

struct GruBenchShape {
  int64_t t = 100, n = 1, c = 256, h = 256;
};
struct RivalGru {
  std::string kind, implementation;  // f32, bf16 or u8s8; oneDNN's name for what it runs
  double us_per_step = 0;
};

/// `spec`: "onednn" (f32) or "onednn:KIND". One layer on one core; u8s8 is the GRU whose reset gate comes before the
/// product, oneDNN has no other in integers. The program is $LOWBIT_ONEDNN_GRU, else build/rivals/build/bin/onednn_gru.
/// Errors: kNotFound (no program), kInvalidArgument (spec), kUnsupported (not on this machine), kCorrupt (its answer is
/// wrong).
bool is_onednn(const std::string& spec);
Result<RivalGru> bench_onednn_gru(const GruBenchShape& shape, const std::string& spec, double seconds);

/// cuBLASLt's product of FP8 codes in blocks on the first GPU, as a row "gemm": results in bf16, weights from memory,
/// scales of a by column. The program is $LOWBIT_FP8_GEMM_BENCH, else build/cuda/bin/lowbit_fp8_gemm_bench
/// (bench/gpu/fp8_gemm_bench.cc), the library $LOWBIT_CUBLASLT. Errors: kNotFound (no program), kUnsupported (no
/// library, or not this product), kCorrupt (its answer is wrong).
Result<Fp8BenchRow> bench_cublaslt(const Fp8BenchOptions& options);

}  // namespace lowbit::cli
