// lowbit bench matmul | memory: check the answer, then time. bench_model.cc, bench_gru.cc and bench_fp8.cc: the other
// verbs.

#include "lowbit/bench.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_attention.h"
#include "lowbit/quantize.h"
#include "option_values.h"
#include "rival.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

nlohmann::json to_json(const MatmulBenchReport& report) {
  return {{"kernel", report.kernel},
          {"isa", report.isa},
          {"format", report.format},
          {"scaling", report.scaling},
          {"m", report.m},
          {"n", report.n},
          {"k", report.k},
          {"threads", report.threads},
          {"cold", report.cold},
          {"checked", report.checked},
          {"seconds", report.seconds},
          {"spread", report.spread},
          {"gops", report.gops},
          {"gb_s", report.gb_s},
          {"bits_per_weight", report.bits_per_weight},
          {"bandwidth_gb_s", report.bandwidth_gb_s},
          {"percent_of_peak", report.percent_of_peak > 0 ? nlohmann::json(report.percent_of_peak) : nlohmann::json()}};
}

struct MatmulArguments {
  MatmulBenchOptions options;
  std::string other;  // --vs
  bool cold = false, warm = false;
};

/// --vs: the same product with another format or instruction set, or by ggml.
Result<MatmulBenchReport> bench_other(const MatmulArguments& arguments, int threads) {
  MatmulBenchOptions options = arguments.options;
  if (is_ggml(arguments.other)) return bench_ggml(options, threads, arguments.other);
  if (const auto format = parse_format(arguments.other))
    options.format = *format;
  else
    options.compute.isa = arguments.other;
  return bench_matmul(options);
}

void add_row(TextTable& table, const MatmulBenchReport& report) {
  table.add({report.kernel, fmt::format("{:.3f}", 1e3 * report.seconds), fmt::format("{:.0f} %", 100 * report.spread),
             fmt::format("{:.2f}", report.gops), fmt::format("{:.2f}", report.gb_s),
             report.percent_of_peak > 0 ? fmt::format("{:.0f} %", report.percent_of_peak) : "-",
             report.checked ? "yes" : "NO"});
}

Status matmul_action(Console& console, MatmulArguments& arguments, const Compute& compute) {
  arguments.options.compute = compute;
  const auto report = bench_matmul(arguments.options);
  if (!report) return tl::unexpected(report.error());
  nlohmann::json json = to_json(*report);
  TextTable table({{"kernel", Align::kLeft, 40},
                   {"ms", Align::kRight},
                   {"spread", Align::kRight},
                   {"GOP/s", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"of peak", Align::kRight},
                   {"checked"}});
  add_row(table, *report);
  double ratio = 0;
  if (!arguments.other.empty()) {
    const auto other = bench_other(arguments, report->threads);
    if (!other) return tl::unexpected(other.error());
    add_row(table, *other);
    ratio = report->seconds > 0 ? other->seconds / report->seconds : 0;
    json["vs"] = to_json(*other);
    json["ratio"] = ratio;
  }
  if (console.json()) {
    console.put_json(json);
  } else {
    console.print("{} {}, M {}, N {}, K {}, {} threads, {}\n\n{}", report->format, report->scaling, report->m,
                  report->n, report->k, report->threads,
                  !report->cold ? "weights in the cache"
                  : report->bandwidth_gb_s > 0
                      ? fmt::format("weights from memory (peak {:.1f} GB/s)", report->bandwidth_gb_s)
                      : "weights from memory",
                  table.str());
    if (!arguments.other.empty()) console.print("\n{:.2f} times as fast as {}\n", ratio, arguments.other);
  }
  if (report->checked) return {};
  return fail(ErrorCode::kCorrupt, report->kernel, "another answer than the reference's", "the same",
              "this is a fault of lowbit: please report it");
}

void add_matmul_bench(Verb& bench, Invocation& invocation) {
  auto arguments = std::make_shared<MatmulArguments>();
  Verb* verb = bench.add_subcommand("matmul", "One product of activations [M,K] and weights [N,K]");
  MatmulBenchOptions& options = arguments->options;
  add_format_option(*verb, "--format", options.format, "of the weights")->required();
  verb->add_option_function(
          "--group",
          [&options](const std::string& text) {
            const auto group = parse_group(text);
            if (!group || group->group == QuantizeSpec::kTensor || group->rows > 1)
              throw usage_error("--group", text, "32, 64, 128, 256 or row");
            options.group = group->group == QuantizeSpec::kRow ? 0 : group->group;
          },
          "weights that share a scale: 32, 64, 128, 256 or row [64]")
      ->type_name("GROUP");
  constexpr CountRange kExtent = {1, 1 << 20};
  add_count_option(*verb, "-M", options.m, kExtent, "rows of activations [1]");
  add_count_option(*verb, "-N", options.n, kExtent, "rows of weights [4096]");
  add_count_option(*verb, "-K", options.k, kExtent, "columns of both [4096]");
  add_activation_option(*verb, options.activation, false);
  Option* cold = verb->add_flag("--cold", arguments->cold, "weights come from memory [default]");
  verb->add_flag("--warm", arguments->warm, "weights stay in the cache")->excludes(cold);
  verb->add_option("--vs", arguments->other,
                   "then the same with another format or instruction set, or by ggml[:TYPE[:BUFFER]], and the ratio")
      ->type_name("NAME");
  verb->callback([arguments, &invocation] {
    arguments->options.cold = !arguments->warm;
    const std::string& other = arguments->other;
    if (!other.empty() && !is_ggml(other) && !parse_format(other) && other != "scalar" && other != "avx2" &&
        other != "avxvnni" && other != "avx512" && other != "amx")
      throw usage_error("--vs", other, "a format, ggml[:TYPE[:BUFFER]], or one of scalar, avx2, avxvnni, avx512, amx");
    invocation.action = [arguments, &invocation](Console& console) {
      return matmul_action(console, *arguments, invocation.compute);
    };
  });
}

Status memory_action(Console& console, int64_t bytes, const Compute& compute) {
  const auto start = std::chrono::steady_clock::now();
  const auto bandwidth = measure_bandwidth(compute, bytes);
  if (!bandwidth) return tl::unexpected(bandwidth.error());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (console.json()) console.put_json({{"gb_s", *bandwidth}, {"bytes", bytes}, {"seconds", seconds}, {"cold", true}});
  console.print("{:.2f} GB/s: reading {}, the median of nine sweeps\n", *bandwidth,
                bytes_text(static_cast<double>(bytes)));
  return {};
}

void add_memory_bench(Verb& bench, Invocation& invocation) {
  auto bytes = std::make_shared<int64_t>(int64_t{512} << 20);
  Verb* verb = bench.add_subcommand("memory", "Read bandwidth of memory");
  add_count_option(*verb, "--bytes", *bytes, {int64_t{64} << 20, int64_t{64} << 30}, "how much is read [512M]");
  verb->callback([bytes, &invocation] {
    invocation.action = [bytes, &invocation](Console& console) {
      return memory_action(console, *bytes, invocation.compute);
    };
  });
}

}  // namespace

void add_bench_verb(Verb& app, Invocation& invocation) {
  Verb* bench = app.add_subcommand("bench", "Speed of products, models, memory; answers are checked");
  bench->set_help_flag("-h,--help", "this text");
  bench->require_subcommand(1);
  add_matmul_bench(*bench, invocation);
  add_model_bench(*bench, invocation);
  add_memory_bench(*bench, invocation);
  add_attention_bench(*bench, invocation);
  add_gru_bench(*bench, invocation);
  add_fp8_bench(*bench, invocation);
}

}  // namespace lowbit::cli
