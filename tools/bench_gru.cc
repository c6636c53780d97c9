// lowbit bench gru: a random network of one layer, its integers checked against the scalar ones, then timed on one core.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "lowbit/gru.h"
#include "option_values.h"
#include "rival.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct Arguments {
  GruBenchShape shape;
  int weight_bits = 8;
  float seconds = 0.5f;
  std::string preset = "seed8", other;
};

struct Report {
  std::string isa;
  bool checked = false;
  double us_per_step = 0, stream_us_per_step = 0;
};

std::vector<float> normals(std::mt19937& random, int64_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = normal(random);
  return v;
}

/// Seconds of the quickest of many calls: on a shared machine only that says what the code costs.
template <class F>
double best_seconds(double limit, const F& call) {
  double best = 1e9;
  const auto start = std::chrono::steady_clock::now();
  for (auto now = start; std::chrono::duration<double>(now - start).count() < limit;) {
    const auto before = std::chrono::steady_clock::now();
    call();
    now = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(now - before).count());
  }
  return best;
}

/// The model and what it is run on.
struct Subject {
  GruNetwork network;
  std::vector<float> x;
  GruInput input;
  std::vector<float> wanted;  // of the scalar kernel
};

Result<GruModel> make_model(const Arguments& a, Subject& s) {
  std::mt19937 random(1);
  const auto& [t, n, c, h] = a.shape;
  const float spread = 0.5f / std::sqrt(static_cast<float>(h));
  s.network.cells.push_back({c, h, normals(random, 3 * h * c, spread), normals(random, 3 * h * h, spread),
                             normals(random, 3 * h, 0.1f), normals(random, 3 * h, 0.1f)});
  s.x = normals(random, t * n * c, 1);
  s.input.steps = t;
  s.input.batch = n;
  s.input.x = s.x;
  auto config = gru_preset(a.preset);
  if (!config) return tl::unexpected(config.error());
  config->w.bits = config->r.bits = a.weight_bits;
  const auto ranges = GruRanges::measure(s.network, std::span(&s.input, 1));
  if (!ranges) return tl::unexpected(ranges.error());
  return GruModel::quantize(s.network, *ranges, *config);
}

Result<Report> time_isa(const Arguments& a, const GruModel& model, const Subject& s, const std::string& isa) {
  GruModel::RunOptions options;
  options.isa = isa;
  const auto got = model.run(s.input, options);
  if (!got) return tl::unexpected(got.error());
  auto stream = model.stream(a.shape.n, isa);
  if (!stream) return tl::unexpected(stream.error());
  Report report;
  report.isa = isa;
  report.checked = got->y == s.wanted;
  report.us_per_step =
      1e6 * best_seconds(a.seconds, [&] { (void)model.run(s.input, options); }) / static_cast<double>(a.shape.t);
  std::vector<float> y(static_cast<size_t>(a.shape.n * a.shape.h));
  const auto row = static_cast<size_t>(a.shape.n * a.shape.c);
  const double streamed = best_seconds(a.seconds, [&] {
    for (size_t t = 0; t < static_cast<size_t>(a.shape.t); ++t)
      (void)stream->step(std::span(s.x).subspan(t * row, row), y);
  });
  report.stream_us_per_step = 1e6 * streamed / static_cast<double>(a.shape.t);
  return report;
}

/// What `asked` or LOWBIT_ISA name, else the best that this machine has.
std::string chosen_isa(const GruModel& model, const std::string& asked) {
  const char* set = std::getenv("LOWBIT_ISA");
  if (!asked.empty()) return asked;
  if (set != nullptr && *set != '\0') return set;
  for (const char* isa : {"amx", "avx512", "avx2"})
    if (model.stream(1, isa)) return isa;
  return "scalar";
}

nlohmann::json to_json(const Report& r) {
  return {{"isa", r.isa},
          {"checked", r.checked},
          {"us_per_step", r.us_per_step},
          {"stream_us_per_step", r.stream_us_per_step}};
}

/// --vs: the same network on another instruction set, or oneDNN's layer of the same shape.
/// Returns its microseconds per step.
Result<double> add_other(const Arguments& a, const GruModel& model, const Subject& s, nlohmann::json& json,
                         TextTable& table) {
  if (is_onednn(a.other)) {
    const auto other = bench_onednn_gru(a.shape, a.other, static_cast<double>(a.seconds));
    if (!other) return tl::unexpected(other.error());
    table.add({"oneDNN " + other->kind, fmt::format("{:.2f}", other->us_per_step), "-", "yes"});
    json["vs"] = {{"program", "oneDNN"},
                  {"kind", other->kind},
                  {"implementation", other->implementation},
                  {"us_per_step", other->us_per_step},
                  {"checked", true}};
    return other->us_per_step;
  }
  const auto other = time_isa(a, model, s, a.other);
  if (!other) return tl::unexpected(other.error());
  table.add({other->isa, fmt::format("{:.2f}", other->us_per_step), fmt::format("{:.2f}", other->stream_us_per_step),
             other->checked ? "yes" : "NO"});
  json["vs"] = to_json(*other);
  if (other->checked) return other->us_per_step;
  return fail(ErrorCode::kCorrupt, "gru on " + other->isa, "other integers than the scalar ones", "the same",
              "this is a fault of lowbit: please report it");
}

Status gru_action(Console& console, const Arguments& a, const Compute& compute) {
  Subject s;
  const auto model = make_model(a, s);
  if (!model) return tl::unexpected(model.error());
  GruModel::RunOptions scalar;
  scalar.isa = "scalar";
  auto wanted = model->run(s.input, scalar);
  if (!wanted) return tl::unexpected(wanted.error());
  s.wanted = std::move(wanted->y);
  const auto report = time_isa(a, *model, s, chosen_isa(*model, compute.isa));
  if (!report) return tl::unexpected(report.error());
  nlohmann::json json = to_json(*report);
  json.update({{"t", a.shape.t},
               {"n", a.shape.n},
               {"c", a.shape.c},
               {"h", a.shape.h},
               {"preset", a.preset},
               {"weight_bits", a.weight_bits},
               {"threads", 1},
               {"bytes", model->bytes()}});
  TextTable table({{"kernel", Align::kLeft, 40}, {"us/step", Align::kRight}, {"streamed", Align::kRight}, {"checked"}});
  table.add({report->isa, fmt::format("{:.2f}", report->us_per_step), fmt::format("{:.2f}", report->stream_us_per_step),
             report->checked ? "yes" : "NO"});
  double ratio = 0;
  if (!a.other.empty()) {
    const auto other = add_other(a, *model, s, json, table);
    if (!other) return tl::unexpected(other.error());
    ratio = *other / report->us_per_step;
    json["ratio"] = ratio;
  }
  if (console.json()) {
    console.put_json(json);
  } else {
    console.print("T {}, N {}, C {}, H {}, {}, weights of {} bits, one core\n\n{}", a.shape.t, a.shape.n, a.shape.c,
                  a.shape.h, a.preset, a.weight_bits, table.str());
    if (!a.other.empty()) console.print("\n{:.2f} times as fast as {}\n", ratio, a.other);
  }
  if (report->checked) return {};
  return fail(ErrorCode::kCorrupt, "gru on " + report->isa, "other integers than the scalar ones", "the same",
              "this is a fault of lowbit: please report it");
}

}  // namespace

void add_gru_bench(CLI::App& bench, Invocation& invocation) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = bench.add_subcommand("gru", "One layer of a recurrent network on integers, on one core");
  GruBenchShape& shape = arguments->shape;
  add_count_option(*verb, "-T", shape.t, {1, 1 << 20}, "steps [100]");
  add_count_option(*verb, "-N", shape.n, {1, 1 << 16}, "sequences [1]");
  add_count_option(*verb, "-C", shape.c, {1, 1 << 16}, "inputs [256]");
  add_count_option(*verb, "-H", shape.h, {1, 1 << 16}, "units [256]");
  add_choice_option(*verb, "--preset", arguments->preset, gru_presets(), "formats [seed8]");
  add_count_option(*verb, "--weight-bits", arguments->weight_bits, {2, 16}, "of both matrices [8]");
  add_number_option(*verb, "--seconds", arguments->seconds, 0.01f, 60, "of each timing [0.5]");
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
