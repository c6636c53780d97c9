// lowbit bench fp8: quantization to E4M3 in blocks, and products of it.

#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/bench.h"
#include "option_values.h"
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

Status fp8_action(Console& console, const Fp8BenchOptions& options) {
  const auto report = bench_fp8(options);
  if (!report) return tl::unexpected(report.error());
  if (console.json()) {
    console.put_json(to_json(*report));
  } else {
    TextTable table({{"what", Align::kLeft, 14},
                     {"kernel", Align::kLeft, 40},
                     {"ms", Align::kRight},
                     {"spread", Align::kRight},
                     {"GOP/s", Align::kRight},
                     {"GB/s", Align::kRight},
                     {"of peak", Align::kRight},
                     {"checked"}});
    for (const Fp8BenchRow& row : report->rows) add_row(table, row);
    console.print("fp8, M {}, N {}, K {}, {} groups, {} threads, {}\n\n{}", report->m, report->n, report->k,
                  report->groups, report->threads,
                  report->cold ? fmt::format("weights from memory (peak {:.1f} GB/s)", report->bandwidth_gb_s)
                               : "weights in the cache",
                  table.str());
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
  Verb* verb = bench.add_subcommand("fp8", "Quantization to E4M3 in blocks, and products [M,K] by [N,K]");
  constexpr CountRange kExtent = {1, 1 << 20};
  add_count_option(*verb, "-M", options->m, kExtent, "rows of activations [1]");
  add_count_option(*verb, "-N", options->n, kExtent, "rows of weights [4096]");
  add_count_option(*verb, "-K", options->k, kExtent, "columns of both [4096]");
  add_count_option(*verb, "--groups", options->groups, {1, 256},
                   "groups that the rows fall in, each with weights of its own [8]");
  verb->add_flag("--warm", *warm, "weights stay in the cache");
  add_number_option(*verb, "--seconds", *seconds, 0.01f, 60, "of each row");
  verb->callback([options, warm, seconds, &invocation] {
    options->cold = !*warm;
    options->min_seconds = double(*seconds);
    invocation.action = [options, &invocation](Console& console) {
      options->compute = invocation.compute;
      return fp8_action(console, *options);
    };
  });
}

}  // namespace lowbit::cli
