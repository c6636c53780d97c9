#include "rival.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace lowbit::cli {
namespace {

Error error(ErrorCode code, std::string where, std::string got, std::string wanted, std::string hint = {}) {
  return Error{code, std::move(where), std::move(got), std::move(wanted), std::move(hint)};
}

/// ggml's type with as many bits.
const char* same_bits(FormatId format) {
  switch (format) {
    case FormatId::kInt8:
      return "q8_0";
    case FormatId::kInt4:
      return "q4_0";
    case FormatId::kUint4:
      return "q4_1";
    case FormatId::kInt3:
      return "q3_K";
    case FormatId::kInt2:
    case FormatId::kTernary:
      return "tq2_0";
    case FormatId::kTernaryPacked:
      return "tq1_0";
    case FormatId::kBinary:
      return "q1_0";
    case FormatId::kF32:
      return "f32";
    case FormatId::kF16:
      return "f16";
    case FormatId::kBf16:
      return "bf16";
    default:
      return nullptr;
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text)
    if (c == ':') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  return words;
}

bool is_word(const std::string& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

/// Runs the program; its output and its exit code.
std::pair<std::string, int> output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {"", -1};
  std::string text;
  std::array<char, 4096> part;
  for (size_t n; (n = fread(part.data(), 1, part.size(), pipe)) > 0;) text.append(part.data(), n);
  const int status = pclose(pipe);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

/// The program that `variable` names, else the one at `path`, which `maker` makes.
Result<std::string> program_of(const char* variable, const std::string& path, const std::string& maker) {
  const char* given = std::getenv(variable);
  const std::string program = given != nullptr && *given != '\0' ? given : path;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(program, ignored) || program.find('\'') != std::string::npos)
    return tl::unexpected(error(ErrorCode::kNotFound, "--vs", "no program " + program, "what " + maker + " makes",
                                "run " + maker + ", or set " + variable));
  return program;
}
/// bench/rivals' own.
Result<std::string> rival_program(const char* variable, const std::string& name) {
  return program_of(variable, "build/rivals/build/bin/" + name, "bench/rivals/build.sh");
}

double number_in(const nlohmann::json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0.0;
}

std::string text_in(const nlohmann::json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

}  // namespace

bool is_ggml(const std::string& spec) { return spec == "ggml" || spec.rfind("ggml:", 0) == 0; }

Result<MatmulBenchReport> bench_ggml(const MatmulBenchOptions& options, int threads, const std::string& spec) {
  const std::vector<std::string> words = split(spec);
  const char* same = same_bits(options.format);
  if (words.size() > 3 || (words.size() < 2 && same == nullptr))
    return tl::unexpected(error(ErrorCode::kInvalidArgument, "--vs", spec, "ggml:TYPE or ggml:TYPE:BUFFER"));
  const std::string type = words.size() > 1 ? words[1] : same, buffer = words.size() > 2 ? words[2] : "plain";
  if (!is_word(type) || !is_word(buffer))
    return tl::unexpected(error(ErrorCode::kInvalidArgument, "--vs", spec, "ggml:TYPE or ggml:TYPE:BUFFER"));
  const auto program = rival_program("LOWBIT_GGML_MATMUL", "ggml_matmul");
  if (!program) return tl::unexpected(program.error());
  const auto [text, code] =
      output_of(fmt::format("'{}' {} {} {} {} {} {} {} {}", *program, type, options.n, options.k, options.m, threads,
                            buffer, options.cold ? 512 : 0, options.min_seconds));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto number = [&](const char* key) { return number_in(json, key); };
  if (code == 2 || number("seconds") <= 0)
    return tl::unexpected(error(ErrorCode::kUnsupported, "--vs " + spec, fmt::format("{} answers {}", *program, code),
                                "a type and buffer that ggml has a kernel for"));
  MatmulBenchReport report;
  report.kernel = "ggml " + type + " " + buffer;
  report.isa = "ggml";
  report.format = type;
  report.scaling = "-";
  report.m = options.m;
  report.n = options.n;
  report.k = options.k;
  report.threads = threads;
  report.cold = options.cold;
  report.checked = code == 0 && json.contains("checked") && json["checked"] == true;
  report.seconds = number("seconds");
  report.gops = number("gops");
  report.gb_s = number("gb_s");
  report.bits_per_weight = report.gb_s * 1e9 * report.seconds * 8 / (double(options.n) * double(options.k));
  if (!report.checked)
    return tl::unexpected(error(ErrorCode::kCorrupt, "--vs " + spec,
                                "another answer than its own dequantized weights give", "within 2 %"));
  return report;
}

Result<RivalModel> bench_llama(const ModelBenchOptions& options, const std::string& model, int threads,
                               const std::string& spec) {
  constexpr size_t kPrefix = 5;  // "ggml:"
  RivalModel report;
  report.path = spec.size() > kPrefix ? spec.substr(kPrefix) : model;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(report.path, ignored) || report.path.find('\'') != std::string::npos)
    return tl::unexpected(error(ErrorCode::kInvalidArgument, "--vs", spec, "ggml:FILE.gguf"));
  const auto program = rival_program("LOWBIT_LLAMA_BENCH", "llama-bench");
  if (!program) return tl::unexpected(program.error());
  const std::string depth = options.depth > 0 ? fmt::format(" -d {}", options.depth) : std::string();
  const auto [text, code] =
      output_of(fmt::format("'{}' -m '{}' -t {} -p {} -n {}{} -r {} -o json", *program, report.path, threads,
                            options.prompt, options.generate, depth, options.repetitions));
  const nlohmann::json runs = nlohmann::json::parse(text, nullptr, false);
  if (runs.is_array())
    for (const nlohmann::json& run : runs) {
      (number_in(run, "n_prompt") > 0 ? report.prefill_tok_s : report.decode_tok_s) = number_in(run, "avg_ts");
      report.type = text_in(run, "model_type");
      report.build = text_in(run, "build_commit");
      report.bytes = static_cast<int64_t>(number_in(run, "model_size"));
      report.parameters = static_cast<int64_t>(number_in(run, "model_n_params"));
    }
  if (code != 0 || report.prefill_tok_s <= 0 || report.decode_tok_s <= 0)
    return tl::unexpected(error(ErrorCode::kUnsupported, "--vs " + spec, fmt::format("{} answers {}", *program, code),
                                "a file that llama.cpp runs"));
  return report;
}

bool is_onednn(const std::string& spec) {
  return spec == "onednn" || spec == "onednn:f32" || spec == "onednn:bf16" || spec == "onednn:u8s8";
}

Result<RivalGru> bench_onednn_gru(const GruBenchShape& shape, const std::string& spec, double seconds) {
  if (!is_onednn(spec))
    return tl::unexpected(error(ErrorCode::kInvalidArgument, "--vs", spec, "onednn, onednn:f32, bf16 or u8s8"));
  const std::vector<std::string> words = split(spec);
  RivalGru report;
  report.kind = words.size() > 1 ? words[1] : "f32";
  const auto program = rival_program("LOWBIT_ONEDNN_GRU", "onednn_gru");
  if (!program) return tl::unexpected(program.error());
  const auto [text, code] = output_of(
      fmt::format("'{}' {} {} {} {} {} {}", *program, report.kind, shape.t, shape.n, shape.c, shape.h, seconds));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  report.implementation = text_in(json, "implementation");
  report.us_per_step = number_in(json, "us_per_step");
  if (report.us_per_step <= 0)
    return tl::unexpected(error(ErrorCode::kUnsupported, "--vs " + spec, fmt::format("{} answers {}", *program, code),
                                "a layer that oneDNN has on this machine"));
  if (code != 0)
    return tl::unexpected(
        error(ErrorCode::kCorrupt, "--vs " + spec, "another answer than plain loops give", "the same"));
  return report;
}

Result<Fp8BenchRow> bench_cublaslt(const Fp8BenchOptions& options) {
  const auto program = program_of("LOWBIT_FP8_GEMM_BENCH", "build/cuda/bin/lowbit_fp8_gemm_bench",
                                  "cmake --build build/cuda --target lowbit_fp8_gemm_bench");
  if (!program) return tl::unexpected(program.error());
  const auto [text, code] = output_of(fmt::format("'{}' rival {} {} {}", *program, options.m, options.n, options.k));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (code == 1)
    return tl::unexpected(error(ErrorCode::kCorrupt, "--vs cublaslt", "another answer than ours", "the same"));
  if (code != 0 || number_in(json, "us") <= 0)
    return tl::unexpected(error(ErrorCode::kUnsupported, "--vs cublaslt", fmt::format("{} answers {}", *program, code),
                                "a product that cuBLASLt has", "LOWBIT_CUBLASLT=path of libcublasLt.so"));
  Fp8BenchRow row;
  row.what = "gemm";
  row.kernel = "cuBLASLt";
  row.checked = true;
  row.seconds = 1e-6 * number_in(json, "us");
  row.spread = 1e-6 * (number_in(json, "us_max") - number_in(json, "us_min")) / row.seconds;
  row.gops = 2e-9 * double(options.m) * double(options.n) * double(options.k) / row.seconds;
  row.gb_s = 1e-9 * double(options.n) * double(options.k) / row.seconds;
  return row;
}

}  // namespace lowbit::cli
