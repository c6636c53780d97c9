#include "eval_compare.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "progress_display.h"
#include "text_file.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

constexpr int64_t kShortContext = 512, kLongContext = 4096, kShortSequences = 16;

nlohmann::json shares_json(const std::vector<TokenShare>& shares) {
  nlohmann::json json = nlohmann::json::array();
  for (const TokenShare& share : shares) json.push_back({{"text", share.text}, {"probability", share.probability}});
  return json;
}

nlohmann::json compare_json(const CompareReport& r) {
  nlohmann::json buckets = nlohmann::json::array(), examples = nlohmann::json::array();
  for (const PositionBucket& b : r.buckets)
    buckets.push_back({{"first", b.first},
                       {"last", b.last},
                       {"kld", b.kld},
                       {"kld_error", b.kld_error},
                       {"top1", b.top1},
                       {"ppl", b.ppl},
                       {"base_ppl", b.base_ppl}});
  for (const DivergentPosition& e : r.examples)
    examples.push_back({{"position", e.position},
                        {"kld", e.kld},
                        {"before", e.before},
                        {"truth", e.truth},
                        {"base", shares_json(e.base)},
                        {"model", shares_json(e.model)}});
  return {{"context", r.context},
          {"sequences", r.sequences},
          {"windows", r.sequences},  // as it was called
          {"tokens", r.tokens},
          {"kld_mean", r.kld_mean},
          {"kld_error", r.kld_error},
          {"kld_p50", r.kld_p50},
          {"kld_p99", r.kld_p99},
          {"top1", r.top1},
          {"ppl", r.ppl},
          {"base_ppl", r.base_ppl},
          {"slope_per_1000", r.slope},
          {"slope_error", r.slope_error},
          {"buckets", buckets},
          {"histogram", {{"first", kHistogramFirst}, {"per_decade", kHistogramPerDecade}, {"counts", r.histogram}}},
          {"examples", examples},
          {"seconds", r.seconds}};
}

nlohmann::json agreement_json(const AgreementReport& r) {
  nlohmann::json examples = nlohmann::json::array();
  for (const PartedContinuation& e : r.examples)
    examples.push_back({{"before", e.before}, {"agreed", e.agreed}, {"model", e.model}, {"base", e.base}});
  return {{"prompts", r.prompts}, {"prompt_tokens", r.prompt_tokens},
          {"tokens", r.tokens},   {"lengths", r.lengths},
          {"mean", r.mean},       {"median", r.median},
          {"never", r.never},     {"examples", examples},
          {"seconds", r.seconds}};
}

}  // namespace

bool is_text_task(const std::string& name) {
  return name == "ppl" || name == "kld" || name == "drift" || name == "agreement";
}

std::string default_text_file() {
  const char* data = std::getenv("LOWBIT_DATA");
  return (data != nullptr && *data != '\0' ? std::string(data) : std::string("../shared/data")) + "/text/wiki.test.raw";
}

Result<nlohmann::json> run_text_task(Console& console, Model& model, Model* base, const TextTask& task) {
  const auto text = read_text(task.file);
  if (!text) return tl::unexpected(text.error());
  ProgressDisplay progress(console);
  nlohmann::json json;
  const bool is_drift = task.name == "drift";
  const int64_t sequences = task.sequences > 0 ? task.sequences : is_drift ? 1 : kShortSequences;
  if (task.name == "ppl") {
    PerplexityOptions options;
    options.context = task.context > 0 ? task.context : std::min(kShortContext, model.info().context);
    options.chunks = sequences;
    options.progress = progress.callback();
    const auto report = perplexity(model, *text, options);
    if (!report) return tl::unexpected(report.error());
    json = {{"context", options.context}, {"sequences", report->chunks}, {"windows", report->chunks},
            {"tokens", report->tokens},   {"ppl", report->ppl},          {"ppl_error", report->ppl_error},
            {"seconds", report->seconds}};
  } else if (task.name == "agreement") {
    AgreementOptions options;
    const int64_t half = std::min(model.info().context, base->info().context) / 2;
    options.prompt_tokens = std::min(options.prompt_tokens, half);
    options.tokens = std::min(options.tokens, half);
    options.progress = progress.callback();
    const auto report = compare_continuations(model, *base, *text, options);
    if (!report) return tl::unexpected(report.error());
    json = agreement_json(*report);
    json["against"] = base->info().path;
  } else {
    CompareOptions options;
    const int64_t longest = std::min(model.info().context, base->info().context);
    options.context = task.context > 0 ? task.context : std::min(is_drift ? kLongContext : kShortContext, longest);
    options.sequences = sequences;
    options.progress = progress.callback();
    const auto report = compare_models(model, *base, *text, options);
    if (!report) return tl::unexpected(report.error());
    json = compare_json(*report);
    json["against"] = base->info().path;
  }
  json["name"] = task.name;
  json["file"] = task.file;
  return json;
}

void print_text_task(Console& console, const nlohmann::json& r) {
  const auto number = [&](const nlohmann::json& at, const char* key) { return at.at(key).get<double>(); };
  if (r.at("name") == "ppl") {
    console.print("ppl: {} +/- {}\n", perplexity_text(number(r, "ppl")), perplexity_text(number(r, "ppl_error")));
    return;
  }
  if (r.at("name") == "agreement") {
    console.print(
        "agreement: {} greedy continuations of {} tokens; alike for {:g} tokens in the median, {:.1f} in the mean, to "
        "the end {:.1f} %\n",
        r.at("prompts").get<int64_t>(), r.at("tokens").get<int64_t>(), number(r, "median"), number(r, "mean"),
        100 * number(r, "never"));
    return;
  }
  console.print(
      "{}: KL divergence {:.5f} +/- {:.5f} (99 % of positions below {:.5f}), same likeliest token {:.2f} %, perplexity "
      "{} against {}: {:.4f} times\n",
      r.at("name").get<std::string>(), number(r, "kld_mean"), number(r, "kld_error"), number(r, "kld_p99"),
      100 * number(r, "top1"), perplexity_text(number(r, "ppl")), perplexity_text(number(r, "base_ppl")),
      number(r, "ppl") / number(r, "base_ppl"));
  if (r.at("name") != "drift") return;
  TextTable table({{"positions", Align::kRight},
                   {"KLD", Align::kRight},
                   {"same top", Align::kRight},
                   {"PPL", Align::kRight},
                   {"base", Align::kRight}});
  for (const nlohmann::json& b : r.at("buckets"))
    table.add({fmt::format("{} - {}", b.at("first").get<int64_t>(), b.at("last").get<int64_t>()),
               fmt::format("{:.5f} +/- {:.5f}", number(b, "kld"), number(b, "kld_error")),
               fmt::format("{:.2f} %", 100 * number(b, "top1")), fmt::format("{:.3f}", number(b, "ppl")),
               fmt::format("{:.3f}", number(b, "base_ppl"))});
  console.print("{}\nchange per 1,000 positions: {:+.5f} +/- {:.5f}\n", table.str(), number(r, "slope_per_1000"),
                number(r, "slope_error"));
}

}  // namespace lowbit::cli
