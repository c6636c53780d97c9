// lowbit trace: what is in the trace of a run, or where two runs part.

#include "lowbit/trace.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "option_values.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

constexpr int kError = 2;  // as of cmp: 1 says that the files differ

struct TraceArguments {
  std::vector<std::string> files;
  int64_t top = 0;  // 0: all taps
  float tolerance = -1;
};

nlohmann::json info_json(const TraceInfo& info) {
  return {{"path", info.path},     {"lowbit", info.version},        {"model", info.model},
          {"family", info.family}, {"activation", info.activation}, {"isa", info.isa},
          {"device", info.device}};
}

nlohmann::json place_json(const TracePlace& place) {
  return {{"tap", place.tap}, {"position", place.position}, {"column", place.column}};
}

nlohmann::json difference_json(const std::optional<TraceDifference>& difference) {
  if (!difference) return nullptr;
  nlohmann::json json = place_json(difference->place);
  json.update({{"got", difference->got}, {"wanted", difference->wanted}});
  return json;
}

std::string info_text(const TraceInfo& info) {
  return printable(fmt::format("{}: {} ({}), activations {}, {} on {}", info.path, info.model, info.family,
                               info.activation, info.isa, info.device));
}

std::string place_text(const TracePlace& place) {
  return printable(fmt::format("{}, position {}, column {}", place.tap, place.position, place.column));
}

// ---- One trace

nlohmann::json summary_json(const TraceSummary& summary) {
  nlohmann::json json = info_json(summary.info);
  json.update({{"passes", summary.passes}, {"tokens", summary.tokens}, {"taps", nlohmann::json::array()}});
  json["first_not_finite"] = summary.not_finite ? place_json(*summary.not_finite) : nlohmann::json();
  for (const TapSummary& t : summary.taps)
    json["taps"].push_back({{"tap", t.tap},
                            {"rows", t.rows},
                            {"width", t.width},
                            {"min", t.min},
                            {"max", t.max},
                            {"rms", t.rms},
                            {"nan", t.nans},
                            {"infinite", t.infinities}});
  return json;
}

Status show_trace(Console& console, const std::string& path) {
  const auto summary = summarize_trace(path);
  if (!summary) return tl::unexpected(summary.error());
  if (console.json()) console.put_json(summary_json(*summary));
  TextTable table({{"tap", Align::kLeft, 30},
                   {"rows", Align::kRight},
                   {"width", Align::kRight},
                   {"min", Align::kRight},
                   {"max", Align::kRight},
                   {"rms", Align::kRight},
                   {"NaN", Align::kRight},
                   {"inf", Align::kRight}});
  for (const TapSummary& t : summary->taps)
    table.add({t.tap, std::to_string(t.rows), std::to_string(t.width), fmt::format("{:.4g}", t.min),
               fmt::format("{:.4g}", t.max), fmt::format("{:.4g}", t.rms), std::to_string(t.nans),
               std::to_string(t.infinities)});
  console.print("{}\n{} tokens in {} passes\n\n{}\n", info_text(summary->info), summary->tokens, summary->passes,
                table.str());
  console.print("first NaN or infinity: {}\n", summary->not_finite ? place_text(*summary->not_finite) : "none");
  return {};
}

// ---- Two traces

nlohmann::json comparison_json(const TraceComparison& c, bool same) {
  nlohmann::json json = {{"got", info_json(c.got)},
                         {"wanted", info_json(c.wanted)},
                         {"tokens", c.tokens},
                         {"same", same},
                         {"first_difference", difference_json(c.first)},
                         {"parted", nullptr},
                         {"taps", nlohmann::json::array()}};
  const auto token = [](const std::optional<TokenId>& id) { return id ? nlohmann::json(*id) : nlohmann::json(); };
  if (c.parted)
    json["parted"] = {
        {"position", c.parted->position}, {"got", token(c.parted->got)}, {"wanted", token(c.parted->wanted)}};
  for (const TapComparison& t : c.taps)
    json["taps"].push_back({{"tap", t.tap},
                            {"rows", t.rows},
                            {"equal", !t.first},
                            {"largest", t.largest},
                            {"relative_rms", t.relative_rms},
                            {"first_difference", difference_json(t.first)}});
  return json;
}

/// The `top` taps of the largest relative difference, still in run order.
std::vector<const TapComparison*> largest_taps(const TraceComparison& c, int64_t top) {
  std::vector<const TapComparison*> taps;
  for (const TapComparison& t : c.taps) taps.push_back(&t);
  if (top == 0 || top >= int64_t(taps.size())) return taps;
  std::ranges::stable_sort(taps, std::greater(), &TapComparison::relative_rms);
  taps.resize(size_t(top));
  std::ranges::sort(taps);  // they lie in one array
  return taps;
}

void print_comparison(Console& console, const TraceComparison& c, const TraceArguments& arguments) {
  TextTable table({{"tap", Align::kLeft, 30},
                   {"rows", Align::kRight},
                   {"bits"},
                   {"largest", Align::kRight},
                   {"relative RMS", Align::kRight},
                   {"first: position, column", Align::kRight}});
  for (const TapComparison* t : largest_taps(c, arguments.top)) {
    std::vector<std::string> cells = {t->tap, std::to_string(t->rows), "equal", "", "", ""};
    if (t->first)
      cells = {t->tap,
               std::to_string(t->rows),
               "differ",
               fmt::format("{:.4g}", t->largest),
               fmt::format("{:.4g}", t->relative_rms),
               fmt::format("{}, {}", t->first->place.position, t->first->place.column)};
    table.add(std::move(cells));
  }
  console.print("A {}\nB {}\n\n{}\n", info_text(c.got), info_text(c.wanted), table.str());
  const auto token = [](const std::optional<TokenId>& id) { return id ? std::to_string(*id) : "the end"; };
  if (c.parted)
    console.print("tokens part at position {}: {} vs {}; compared before it\n", c.parted->position,
                  token(c.parted->got), token(c.parted->wanted));
  const auto above =
      std::ranges::find_if(c.taps, [&](const TapComparison& t) { return t.relative_rms > arguments.tolerance; });
  if (arguments.tolerance >= 0)
    console.print(
        "first tap above {}: {}\n", arguments.tolerance,
        above == c.taps.end() ? "none" : printable(fmt::format("{}, {:.4g}", above->tap, above->relative_rms)));
  console.print("first difference: {}\n",
                c.first ? fmt::format("{}: {} vs {}", place_text(c.first->place), c.first->got, c.first->wanted)
                        : fmt::format("none in {} tokens", c.tokens));
}

bool is_same(const TraceComparison& c, const TraceArguments& arguments) {
  if (c.parted) return false;
  if (arguments.tolerance < 0) return !c.first;
  return std::ranges::all_of(c.taps, [&](const TapComparison& t) { return t.relative_rms <= arguments.tolerance; });
}

Status trace_action(Console& console, const TraceArguments& arguments, Invocation& invocation) {
  invocation.failed = kError;
  if (arguments.files.size() == 1) return show_trace(console, arguments.files[0]);
  const auto comparison = compare_traces(arguments.files[0], arguments.files[1]);
  if (!comparison) return tl::unexpected(comparison.error());
  const bool same = is_same(*comparison, arguments);
  if (console.json()) console.put_json(comparison_json(*comparison, same));
  print_comparison(console, *comparison, arguments);
  if (!same) invocation.done = kFailed;
  return {};
}

}  // namespace

void add_trace_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<TraceArguments>();
  Verb* verb = app.add_subcommand("trace", "Traces of `run`: what is in one, where two part");
  verb->add_option("TRACE", arguments->files, "one file of `run --trace`; or two: A, and B that it should agree with")
      ->required()
      ->expected(1, 2)
      ->type_name("");
  Option* top = add_count_option(*verb, "--top", arguments->top, {1, int64_t{1} << 30},
                                 "show only the taps that differ most, so many");
  Option* tolerance =
      add_number_option(*verb, "--tolerance", arguments->tolerance, 0, 1e30f,
                        "relative RMS difference up to which taps pass for the same; without it bits must be equal");
  verb->callback([=, &invocation] {
    if (arguments->files.size() == 1 && top->count() + tolerance->count() > 0)
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit trace", "one file", "two to compare", ""}};
    invocation.action = [arguments, &invocation](Console& console) {
      return trace_action(console, *arguments, invocation);
    };
  });
}

}  // namespace lowbit::cli
