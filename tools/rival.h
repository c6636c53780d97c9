#pragma once
// bench matmul|model --vs ggml: the same work by bench/rivals' programs.

#include <string>

#include "lowbit/bench.h"

namespace lowbit::cli {

/// `spec`: "ggml", "ggml:TYPE" or "ggml:TYPE:BUFFER", TYPE by ggml's names (default: the one with as many bits), BUFFER plain,
/// repack or amx. The program is $LOWBIT_GGML_MATMUL, else build/rivals/build/bin/ggml_matmul.
/// Errors: kNotFound (no program), kInvalidArgument (spec), kUnsupported (ggml has no such kernel), kCorrupt (its answer is wrong).
bool is_ggml(const std::string& spec);
Result<MatmulBenchReport> bench_ggml(const MatmulBenchOptions& options, int threads, const std::string& spec);

/// llama.cpp's speed on a GGUF file, by its llama-bench.
struct RivalModel {
  std::string path, type, build;  // the file, what llama.cpp calls its weights, its commit
  int64_t bytes = 0, parameters = 0;
  double prefill_tok_s = 0, decode_tok_s = 0;
};

/// `spec`: "ggml:FILE.gguf", or "ggml" when `model` is a GGUF file itself. Prompt, generated tokens, repetitions and threads are
/// those of `options`. The program is $LOWBIT_LLAMA_BENCH, else build/rivals/build/bin/llama-bench. It checks no answers: the
/// reports say which files were run.
/// Errors: kNotFound (no program or file), kInvalidArgument (spec), kUnsupported (it does not run the file).
Result<RivalModel> bench_llama(const ModelBenchOptions& options, const std::string& model, int threads,
                               const std::string& spec);

}  // namespace lowbit::cli
