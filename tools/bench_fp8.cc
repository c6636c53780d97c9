// lowbit bench fp8: quantization to E4M3 in blocks, and products of it.

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/bench.h"
#include "option_values.h"
#include "rival.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

nlohmann::json to_json(const Fp8BenchRow& row) {
  const auto or_null = [](double v) { return v > 0 ? nlohmann::json(v) : nlohmann::json(); };
  return {{"what", row.what},       {"kernel", row.kernel},
          {"checked", row.checked}, {"seconds", row.seconds},
          {"spread", row.spread},   {"gops", or_null(row.gops)},
          {"gb_s", row.gb_s},       {"percent_of_peak", or_null(row.percent_of_peak)}};
}

nlohmann::json to_json(const Fp8BenchReport& report) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Fp8BenchRow& row : report.rows) rows.push_back(to_json(row));
  return {{"isa", report.isa},
          {"m", report.m},
          {"n", report.n},
          {"k", report.k},
          {"groups", report.groups},
          {"threads", report.threads},
          {"cold", report.cold},
          {"bandwidth_gb_s", report.bandwidth_gb_s},
          {"rows", rows}};
}

void add_row(TextTable& table, const Fp8BenchRow& row) {
  table.add({row.what, row.kernel, fmt::format("{:.3f}", 1e3 * row.seconds), fmt::format("{:.0f} %", 100 * row.spread),
             row.gops > 0 ? fmt::format("{:.2f}", row.gops) : "-", fmt::format("{:.2f}", row.gb_s),
             row.percent_of_peak > 0 ? fmt::format("{:.0f} %", row.percent_of_peak) : "-", row.checked ? "yes" : "NO"});
}

const Fp8BenchRow& product_of(const Fp8BenchReport& report) {
  return *std::ranges::find(report.rows, "gemm", &Fp8BenchRow::what);
}

/// The product by cuBLASLt, or by another instruction set of the CPU.
Result<Fp8BenchRow> bench_other(Fp8BenchOptions options, const std::string& other) {
  if (other == "cublaslt") return bench_cublaslt(options);
  options.compute.device = "cpu";
  options.compute.isa = other;
  auto report = bench_fp8(options);
  if (!report) return tl::unexpected(report.error());
  return product_of(*report);
}

Status fp8_action(Console& console, const Fp8BenchOptions& options, const std::string& other) {
  const auto report = bench_fp8(options);
  if (!report) return tl::unexpected(report.error());
  nlohmann::json json = to_json(*report);
  std::string comparison;
  if (!other.empty()) {
    const auto rival = bench_other(options, other);
    if (!rival) return tl::unexpected(rival.error());
    const double ours = product_of(*report).seconds, ratio = ours > 0 ? rival->seconds / ours : 0;
    json["vs"] = to_json(*rival);
    json["ratio"] = ratio;
    comparison = fmt::format("\ngemm by {}: {:.3f} ms; lowbit is {:.2f} times as fast\n", rival->kernel,
                             1e3 * rival->seconds, ratio);
  }
  if (console.json()) {
    console.put_json(json);
  } else {
    TextTable table({{"what", Align::kLeft, 15},
                     {"kernel", Align::kLeft, 40},
                     {"ms", Align::kRight},
                     {"spread", Align::kRight},
                     {"GOP/s", Align::kRight},
                     {"GB/s", Align::kRight},
                     {"of peak", Align::kRight},
                     {"checked"}});
    for (const Fp8BenchRow& row : report->rows) add_row(table, row);
    console.print("fp8, M {}, N {}, K {}, {} groups, {}, {}\n\n{}{}", report->m, report->n, report->k, report->groups,
                  report->isa == "cuda" ? std::string("a GPU") : fmt::format("{} threads", report->threads),
                  !report->cold ? "weights in the cache"
                  : report->bandwidth_gb_s > 0
                      ? fmt::format("weights from memory (peak {:.1f} GB/s)", report->bandwidth_gb_s)
                      : "weights from memory",
                  table.str(), comparison);
  }
  for (const Fp8BenchRow& row : report->rows)
    if (!row.checked)
      return fail(ErrorCode::kCorrupt, row.what + " by " + row.kernel, "another answer than the reference's",
                  "the same", "this is a fault of lowbit: please report it");
  return {};
}

}  // namespace

void add_fp8_bench(Verb& bench, Invocation& invocation) {
  auto options = std::make_shared<Fp8BenchOptions>();
  auto warm = std::make_shared<bool>(false);
  auto seconds = std::make_shared<float>(1.0f);
  auto other = std::make_shared<std::string>();
  Verb* verb = bench.add_subcommand("fp8", "Quantization to E4M3 in blocks, and products [M,K] by [N,K]");
  constexpr CountRange kExtent = {1, 1 << 20};
  add_count_option(*verb, "-M", options->m, kExtent, "rows of activations [1]");
  add_count_option(*verb, "-N", options->n, kExtent, "rows of weights [4096]");
  add_count_option(*verb, "-K", options->k, kExtent, "columns of both [4096]");
  add_count_option(*verb, "--groups", options->groups, {1, 256},
                   "groups that the rows fall in, each with weights of its own [8]");
  verb->add_flag("--warm", *warm, "weights stay in the cache");
  add_number_option(*verb, "--seconds", *seconds, 0.01f, 60, "of each row");
  verb->add_option("--vs", *other, "then the product by another instruction set or by cublaslt, and the ratio")
      ->type_name("NAME");
  verb->callback([options, warm, seconds, other, &invocation] {
    options->cold = !*warm;
    options->min_seconds = double(*seconds);
    static constexpr std::array kOthers = {"", "cublaslt", "scalar", "avx2", "avxvnni", "avx512", "amx"};
    if (std::ranges::find(kOthers, *other) == kOthers.end())
      throw usage_error("--vs", *other, "cublaslt, or one of scalar, avx2, avxvnni, avx512, amx");
    invocation.action = [options, other, &invocation](Console& console) {
      options->compute = invocation.compute;
      return fp8_action(console, *options, *other);
    };
  });
}

}  // namespace lowbit::cli
