// lowbit bench attention: one new token behind a long context, with every format of keys and values.

#include "bench_attention.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/bench.h"
#include "option_values.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

struct AttentionArguments {
  AttentionBenchOptions options;
  float seconds = 1;
};

nlohmann::json to_json(const AttentionBenchReport& report) {
  nlohmann::json rows = nlohmann::json::array();
  for (const AttentionBenchRow& row : report.rows)
    rows.push_back({{"kv", row.kv},
                    {"checked", row.checked},
                    {"us", 1e6 * row.seconds},
                    {"spread", row.spread},
                    {"bytes", row.bytes},
                    {"gb_s", row.gb_s},
                    {"read_gb_s", row.read_gb_s},
                    {"percent_of_peak", 100 * row.share},
                    {"percent_p10", 100 * row.share_least},
                    {"percent_p90", 100 * row.share_most}});
  return {{"isa", report.isa},
          {"threads", report.threads},
          {"bandwidth_gb_s", report.bandwidth_gb_s},
          {"rows", std::move(rows)}};
}

void print_report(Console& console, const AttentionBenchReport& report) {
  TextTable table({{"--kv"},
                   {"us", Align::kRight},
                   {"spread", Align::kRight},
                   {"read", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"plain read", Align::kRight},
                   {"% of memory", Align::kRight},
                   {"p10 - p90", Align::kRight}});
  for (const AttentionBenchRow& row : report.rows)
    table.add({row.kv, fmt::format("{:.1f}", 1e6 * row.seconds), fmt::format("{:.0f} %", 100 * row.spread),
               bytes_text(double(row.bytes)), fmt::format("{:.1f}", row.gb_s), fmt::format("{:.1f}", row.read_gb_s),
               fmt::format("{:.0f}", 100 * row.share),
               fmt::format("{:.0f} - {:.0f}", 100 * row.share_least, 100 * row.share_most)});
  console.print("{} with {} threads; a plain read in turn with it gets {:.1f} GB/s\n\n{}", report.isa, report.threads,
                report.bandwidth_gb_s, table.str());
}

Status action(Console& console, const AttentionArguments& arguments, const Compute& compute) {
  AttentionBenchOptions options = arguments.options;
  options.min_seconds = double(arguments.seconds);
  options.compute = compute;
  const auto report = bench_attention(options);
  if (!report) return tl::unexpected(report.error());
  for (const AttentionBenchRow& row : report->rows)
    if (!row.checked)
      return fail(ErrorCode::kCorrupt, "bench attention, " + row.kv, "another answer than the reference's", "the same",
                  "this is a fault of lowbit: please report it");
  console.json() ? console.put_json(to_json(*report)) : print_report(console, *report);
  return {};
}

}  // namespace

void add_attention_bench(Verb& bench, Invocation& invocation) {
  auto arguments = std::make_shared<AttentionArguments>();
  AttentionBenchOptions& options = arguments->options;
  Verb* verb = bench.add_subcommand("attention", "Time attention of one token behind a long context");
  add_count_option(*verb, "-c,--context", options.context, {1, int64_t{1} << 24}, "positions [8192]");
  add_count_option(*verb, "--heads", options.heads, {1, 1024}, "heads of queries [9]");
  add_count_option(*verb, "--kv-heads", options.kv_heads, {1, 1024}, "heads of keys and values [3]");
  add_count_option(*verb, "--head-dim", options.head_dim, {1, 1024}, "elements of a head [64]");
  verb->add_option("--kv", options.kv, "formats of keys and values [f16,int8,int4,k4v2,int2]")
      ->delimiter(',')
      ->type_name("NAMES");
  add_count_option(*verb, "--kv-residual", options.kv_residual, {0, int64_t{1} << 30},
                   "newest positions that stay f16 [128]");
  add_number_option(*verb, "--seconds", arguments->seconds, 0.001f, 1e6f, "of each format [1]");
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation](Console& console) {
      return action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
