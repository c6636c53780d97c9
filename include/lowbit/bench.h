#pragma once
// Measurements that check the answer before they time it.

#include <cstdint>
#include <string>
#include <vector>

#include "lowbit/compute.h"
#include "lowbit/error.h"
#include "lowbit/format.h"

namespace lowbit {

struct MatmulBenchOptions {
  FormatId format = FormatId::kInt4;
  int64_t group = 64;  // 0: one scale per row
  int64_t m = 1, n = 4096, k = 4096;
  std::string activation = "int8";
  bool cold = true;        // weights rotate through at least 512 MiB
  double min_seconds = 1;  // measuring time
  Compute compute;
};
struct MatmulBenchReport {
  std::string kernel, isa, format, scaling;
  int64_t m = 0, n = 0, k = 0;
  int threads = 0;
  bool cold = false, checked = false;
  double seconds = 0;  // median of one product
  double spread = 0;   // (p90 - p10) / median
  double gops = 0;     // 2 m n k / seconds
  double gb_s = 0;     // bytes of weights as the kernel holds them / seconds
  double bits_per_weight = 0;
  double bandwidth_gb_s = 0;   // measured in the same run, 0 when warm
  double percent_of_peak = 0;  // of that bandwidth; 0 when warm
};
Result<MatmulBenchReport> bench_matmul(const MatmulBenchOptions& options);

struct Fp8BenchOptions {
  int64_t m = 1, n = 4096, k = 4096;
  int64_t groups = 8;      // that the rows fall in, in grouped products
  bool cold = true;        // weights rotate through at least 512 MiB
  double min_seconds = 1;  // of each row
  Compute compute;
};
/// "act_quant": x [m, k] to codes; "norm, act_quant": with an RMS norm first. "weight_quant": w [n, k] to codes in
/// blocks of 128 x 128. "gemm": their product as lb_fp8_gemm_host makes it. "contiguous", "masked":
/// lb_fp8_grouped_gemm_host of x in groups, each with a w of its own. "model": the product in a model, x quantized in
/// the same call; "model, f32 x": with x as it is; "bf16, f32 x" and "f32, f32 x": weights of those types, the rivals.
/// On a GPU the first six, of bf16 x and with bf16 outputs.
struct Fp8BenchRow {
  std::string what, kernel;
  bool checked = false;        // the reference's bits; products on a GPU: within 1e-3 of the reference's norm
  double seconds = 0;          // median of one call; on a GPU the device's time
  double spread = 0;           // (p90 - p10) / median
  double gops = 0;             // 2 m n k / seconds, of products
  double gb_s = 0;             // bytes read and written, of products those of the weights
  double percent_of_peak = 0;  // of bandwidth_gb_s; 0 when warm and on a GPU
};
struct Fp8BenchReport {
  std::string isa;
  int64_t m = 0, n = 0, k = 0, groups = 0;
  int threads = 0;
  bool cold = false;
  double bandwidth_gb_s = 0;  // measured in the same run, 0 when warm and on a GPU
  std::vector<Fp8BenchRow> rows;
};
/// Errors: kInvalidArgument (extents), kUnsupported (no such device), kOutOfMemory.
Result<Fp8BenchReport> bench_fp8(const Fp8BenchOptions& options);

struct ModelBenchOptions {
  int64_t prompt = 128, generate = 64;
  int64_t depth = 0;  // tokens before either
  int64_t batch = 1;  // sessions that run together, each with such a prompt, depth and generation
  int repetitions = 3;
  std::string activation = "auto";
  std::string kv = "f16";     // ModelOptions::kv
  int64_t kv_residual = 128;  // ModelOptions::kv_residual
  std::string kv_keep;        // ModelOptions::kv_keep
  int64_t kv_refresh = 0;     // ModelOptions::kv_refresh
  std::string kv_demote;      // ModelOptions::kv_demote
  bool exact = false;         // ModelOptions::exact
  bool tune = false;          // ModelOptions::tune
  bool profile = false;       // then the same once more, each step timed on its own
  Compute compute;
  Progress progress;
};
/// One step of a pass: "norm", "qkv", ... (ModelBenchReport::steps).
struct StepReport {
  std::string phase, step;    // phase: "prompt" or "generation"
  double calls = 0;           // per pass: of the prompt, or of one generated token
  double seconds = 0;         // of one pass
  double share = 0;           // of the pass
  double gb_s = 0, gops = 0;  // 0 where nothing is read or multiplied
};
struct ModelBenchReport {
  std::string model, activation, isa, kv;
  int threads = 0;
  int64_t weight_bytes = 0;
  double load_s = 0;
  double prefill_tok_s = 0, prefill_spread = 0, decode_tok_s = 0, decode_spread = 0;  // of all sessions together
  double decode_gb_s = 0;     // weight bytes read per second while decoding
  double bandwidth_gb_s = 0;  // measured in the same run
  int64_t loaded_bytes = 0;   // Model::device_bytes() before the first token
  int64_t device_bytes = 0;   // and at the end, when the longest sequences have been there
  bool checked = false;       // a prompt in one call, token by token, and beside other sessions gave the same logits,
  double logits_apart = 0;    // at most this far apart, a part of the largest logit: infinite where one is no number,
  double logits_bound = 0;    // and this is allowed; 0: the same bits
  std::vector<StepReport> steps;
  double prefill_profiled_tok_s = 0, decode_profiled_tok_s = 0;  // while steps are timed: what timing costs
};
Result<ModelBenchReport> bench_model(const std::string& path, const ModelBenchOptions& options);

struct AttentionBenchOptions {
  int64_t context = 8192;  // positions before the token's and its own
  int64_t heads = 9, kv_heads = 3, head_dim = 64;
  std::vector<std::string> kv = {"f16", "int8", "int4", "k4v2", "int2"};  // ModelOptions::kv, one after the other
  int64_t kv_residual = 128;                                              // ModelOptions::kv_residual
  double min_seconds = 1;                                                 // of each format
  Compute compute;
};
/// Attention of one new token in one layer, whose keys and values come from memory.
struct AttentionBenchRow {
  std::string kv;
  bool checked = false;  // the reference's bits
  double seconds = 0;    // median of one call
  double spread = 0;     // (p90 - p10) / median
  int64_t bytes = 0;     // of the pages that it reads
  double gb_s = 0;
  double read_gb_s = 0;  // of plain reads of other memory by as many threads, in turn with it: median
  /// gb_s by the plain read next to it: median, and where nine of ten are above and below.
  double share = 0, share_least = 0, share_most = 0;
};
struct AttentionBenchReport {
  std::string isa;
  int threads = 0;
  double bandwidth_gb_s = 0;  // the rows' read_gb_s: median
  std::vector<AttentionBenchRow> rows;
};
/// Errors: kInvalidArgument (sizes, a format's name), kUnsupported (heads that a format does not pack), kOutOfMemory.
Result<AttentionBenchReport> bench_attention(const AttentionBenchOptions& options);

struct GruBenchOptions {
  int64_t steps = 100, batch = 1, input = 256, hidden = 256;
  std::string preset = "seed8";  // gru_presets()
  int weight_bits = 8;
  std::vector<std::string> isas = {""};  // as Compute::isa, one after the other
  double seconds = 0.5;                  // of each timing
};
/// Quickest runs on one core.
struct GruBenchRow {
  std::string isa;
  bool checked = false;                            // all integers are the scalar kernel's
  double us_per_step = 0, stream_us_per_step = 0;  // the whole sequence at once, and step by step
};
struct GruBenchReport {
  std::vector<GruBenchRow> rows;
  int64_t bytes = 0;  // GruModel::bytes()
};
/// One layer with random weights. Errors: kInvalidArgument (preset, bits), kUnsupported (an isa that the machine
/// lacks).
Result<GruBenchReport> bench_gru(const GruBenchOptions& options);

}  // namespace lowbit
