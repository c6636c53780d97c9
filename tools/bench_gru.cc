// lowbit bench gru: a random network of one layer, its integers checked against the scalar ones, then timed on one
// core.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "lowbit/bench.h"
#include "lowbit/gru.h"
#include "option_values.h"
#include "rival.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct GruBenchArguments {
  GruBenchOptions bench;
  float seconds = 0.5f;
  std::string other;
};

nlohmann::json to_json(const GruBenchRow& r) {
  return {{"isa", r.isa},
          {"checked", r.checked},
          {"us_per_step", r.us_per_step},
          {"stream_us_per_step", r.stream_us_per_step}};
}

void add_row(const GruBenchRow& r, TextTable& table) {
  table.add({r.isa, fmt::format("{:.2f}", r.us_per_step), fmt::format("{:.2f}", r.stream_us_per_step),
             r.checked ? "yes" : "NO"});
}

/// --vs onednn: its layer of the same shape. Returns its microseconds per step.
Result<double> add_onednn(const GruBenchArguments& a, nlohmann::json& json, TextTable& table) {
  const GruBenchShape shape{a.bench.steps, a.bench.batch, a.bench.input, a.bench.hidden};
  const auto other = bench_onednn_gru(shape, a.other, a.bench.seconds);
  if (!other) return tl::unexpected(other.error());
  table.add({"oneDNN " + other->kind, fmt::format("{:.2f}", other->us_per_step), "-", "yes"});
  json["vs"] = {{"program", "oneDNN"},
                {"kind", other->kind},
                {"implementation", other->implementation},
                {"us_per_step", other->us_per_step},
                {"checked", true}};
  return other->us_per_step;
}

Status gru_action(Console& console, GruBenchArguments a, const Compute& compute) {
  const bool rival = is_onednn(a.other);
  a.bench.seconds = static_cast<double>(a.seconds);
  a.bench.isas = {compute.isa};
  if (!a.other.empty() && !rival) a.bench.isas.push_back(a.other);
  const auto report = bench_gru(a.bench);
  if (!report) return tl::unexpected(report.error());
  const GruBenchRow& row = report->rows.front();
  nlohmann::json json = to_json(row);
  json.update({{"t", a.bench.steps},
               {"n", a.bench.batch},
               {"c", a.bench.input},
               {"h", a.bench.hidden},
               {"preset", a.bench.preset},
               {"weight_bits", a.bench.weight_bits},
               {"threads", 1},
               {"bytes", report->bytes}});
  TextTable table({{"kernel", Align::kLeft, 40}, {"us/step", Align::kRight}, {"streamed", Align::kRight}, {"checked"}});
  for (const GruBenchRow& r : report->rows) add_row(r, table);
  double ratio = 0;
  if (rival) {
    const auto other = add_onednn(a, json, table);
    if (!other) return tl::unexpected(other.error());
    json["ratio"] = ratio = *other / row.us_per_step;
  } else if (!a.other.empty()) {
    json["vs"] = to_json(report->rows.back());
    json["ratio"] = ratio = report->rows.back().us_per_step / row.us_per_step;
  }
  if (console.json()) {
    console.put_json(json);
  } else {
    console.print("T {}, N {}, C {}, H {}, {}, weights of {} bits, one core\n\n{}", a.bench.steps, a.bench.batch,
                  a.bench.input, a.bench.hidden, a.bench.preset, a.bench.weight_bits, table.str());
    if (!a.other.empty()) console.print("\n{:.2f} times as fast as {}\n", ratio, a.other);
  }
  for (const GruBenchRow& r : report->rows)
    if (!r.checked)
      return fail(ErrorCode::kCorrupt, "gru on " + r.isa, "other integers than the scalar ones", "the same",
                  "this is a fault of lowbit: please report it");
  return {};
}

}  // namespace

void add_gru_bench(Verb& bench, Invocation& invocation) {
  auto arguments = std::make_shared<GruBenchArguments>();
  Verb* verb = bench.add_subcommand("gru", "One layer of a GRU on integers, on one core");
  GruBenchOptions& bench_options = arguments->bench;
  add_count_option(*verb, "-T", bench_options.steps, {1, 1 << 20}, "steps [100]");
  add_count_option(*verb, "-N", bench_options.batch, {1, 1 << 16}, "sequences [1]");
  add_count_option(*verb, "-C", bench_options.input, {1, 1 << 16}, "inputs [256]");
  add_count_option(*verb, "-H", bench_options.hidden, {1, 1 << 16}, "units [256]");
  add_choice_option(*verb, "--preset", bench_options.preset, gru_presets(), ": formats of all tensors [seed8]");
  add_count_option(*verb, "--weight-bits", bench_options.weight_bits, {2, 16}, "of both matrices [8]");
  add_number_option(*verb, "--seconds", arguments->seconds, 0.01f, 60, "of each timing");
  verb->add_option("--vs", arguments->other,
                   "then another instruction set, or oneDNN's layer: onednn[:f32|bf16|u8s8], and the ratio")
      ->type_name("NAME");
  verb->callback([arguments, &invocation] {
    const std::string& other = arguments->other;
    const std::vector<std::string> sets = {"scalar", "avx2", "avx512", "amx"};
    if (!other.empty() && !is_onednn(other) && std::find(sets.begin(), sets.end(), other) == sets.end())
      throw usage_error("--vs", other, "onednn[:f32|bf16|u8s8], or one of scalar, avx2, avx512, amx");
    invocation.action = [arguments, &invocation](Console& console) {
      return gru_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
