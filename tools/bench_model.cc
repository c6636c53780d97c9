// lowbit bench model: check the answer, time prompt and generation, and where the time goes.

#include "lowbit/bench.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "lowbit/quantize.h"
#include "option_values.h"
#include "progress_display.h"
#include "rival.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct ModelArguments {
  std::string model;
  ModelBenchOptions options;
  std::string other;  // --vs
};

nlohmann::json to_json(const ModelBenchReport& report, const ModelBenchOptions& options) {
  nlohmann::json json = {
      {"model", report.model},
      {"activation", report.activation},
      {"isa", report.isa},
      {"threads", report.threads},
      {"kv", report.kv},
      {"depth", options.depth},
      {"batch", options.batch},
      {"prompt", options.prompt},
      {"generate", options.generate},
      {"tuned", options.tune},
      {"weight_bytes", report.weight_bytes},
      {"load_s", report.load_s},
      {"prefill_tok_s", report.prefill_tok_s},
      {"prefill_spread", report.prefill_spread},
      {"decode_tok_s", report.decode_tok_s},
      {"decode_spread", report.decode_spread},
      {"gb_s", report.decode_gb_s},
      {"bandwidth_gb_s", report.bandwidth_gb_s},
      {"percent_of_peak", report.bandwidth_gb_s > 0 ? 100 * report.decode_gb_s / report.bandwidth_gb_s : 0},
      {"logits_apart", report.logits_apart},  // null where infinite
      {"logits_bound", report.logits_bound},
      {"loaded_device_bytes", report.loaded_bytes},
      {"device_bytes", report.device_bytes},
      {"checked", report.checked}};
  if (!options.profile) return json;
  json["prefill_profiled_tok_s"] = report.prefill_profiled_tok_s;
  json["decode_profiled_tok_s"] = report.decode_profiled_tok_s;
  json["steps"] = nlohmann::json::array();
  for (const StepReport& s : report.steps)
    json["steps"].push_back({{"phase", s.phase},
                             {"step", s.step},
                             {"calls", s.calls},
                             {"ms", 1e3 * s.seconds},
                             {"share", s.share},
                             {"gb_s", s.gb_s},
                             {"gops", s.gops}});
  return json;
}

nlohmann::json to_json(const RivalModel& rival) {
  return {{"model", rival.path},
          {"type", rival.type},
          {"build", rival.build},
          {"bytes", rival.bytes},
          {"parameters", rival.parameters},
          {"prefill_tok_s", rival.prefill_tok_s},
          {"decode_tok_s", rival.decode_tok_s}};
}

/// One table per phase.
void print_steps(Console& console, const ModelBenchReport& report) {
  const auto number = [](double v) { return v > 0 ? fmt::format("{:.1f}", v) : std::string("-"); };
  for (const auto& [phase, title] : {std::pair{"prompt", "of the prompt"}, std::pair{"generation", "of a token"}}) {
    TextTable table({{"step"},
                     {"calls", Align::kRight},
                     {"ms", Align::kRight},
                     {"share", Align::kRight},
                     {"GB/s", Align::kRight},
                     {"GOP/s", Align::kRight}});
    double share = 0, seconds = 0;
    for (const StepReport& s : report.steps) {
      if (s.phase != phase) continue;
      table.add({s.step, fmt::format("{:.0f}", s.calls), fmt::format("{:.3f}", 1e3 * s.seconds),
                 fmt::format("{:.1f} %", 100 * s.share), number(s.gb_s), number(s.gops)});
      share += s.share;
      seconds += s.seconds;
    }
    table.add({"all of them", "", fmt::format("{:.3f}", 1e3 * seconds), fmt::format("{:.1f} %", 100 * share), "", ""});
    console.print("\nSteps {}:\n\n{}", title, table.str());
  }
  console.print("\nwhile steps were timed: prompt {:.2f} tok/s, generation {:.2f} tok/s\n",
                report.prefill_profiled_tok_s, report.decode_profiled_tok_s);
}

void print_report(Console& console, const ModelBenchReport& report, const ModelBenchOptions& options) {
  TextTable table({{"phase"}, {"tokens", Align::kRight}, {"tok/s", Align::kRight}, {"spread", Align::kRight}});
  table.add({"prompt", std::to_string(options.prompt), fmt::format("{:.2f}", report.prefill_tok_s),
             fmt::format("{:.0f} %", 100 * report.prefill_spread)});
  table.add({"generation", std::to_string(options.generate), fmt::format("{:.2f}", report.decode_tok_s),
             fmt::format("{:.0f} %", 100 * report.decode_spread)});
  console.print("{}: weights {}, activations {}, {} with {} threads, loaded in {:.2f} s\n\n{}", report.model,
                bytes_text(static_cast<double>(report.weight_bytes)), report.activation, report.isa, report.threads,
                report.load_s, table.str());
  console.print(
      "\ngeneration reads {:.2f} GB/s of {:.2f} GB/s that this machine's memory gives; checked: {}\n"
      "logits of a batch and of single tokens are {:.2g} % of the largest apart, of {:g} % that are allowed\n",
      report.decode_gb_s, report.bandwidth_gb_s, report.checked ? "yes" : "NO", 100 * report.logits_apart,
      100 * report.logits_bound);
  if (report.device_bytes > 0)
    console.print("memory of the GPU: {} when the model was loaded, {} at the end\n",
                  bytes_text(static_cast<double>(report.loaded_bytes)),
                  bytes_text(static_cast<double>(report.device_bytes)));
  if (options.profile) print_steps(console, report);
}

Status model_action(Console& console, ModelArguments& arguments, const Compute& compute) {
  const auto path = resolve_model(arguments.model);
  if (!path) return tl::unexpected(path.error());
  ModelBenchOptions& options = arguments.options;
  options.compute = with_gpu_found(compute);
  const auto report = [&] {
    ProgressDisplay progress(console);
    options.progress = progress.callback();
    return bench_model(*path, options);
  }();
  if (!report) return tl::unexpected(report.error());
  nlohmann::json json = to_json(*report, options);
  std::string comparison;
  if (!arguments.other.empty()) {
    const auto rival = bench_llama(options, *path, report->threads, arguments.other);
    if (!rival) return tl::unexpected(rival.error());
    const double prefill = report->prefill_tok_s / rival->prefill_tok_s;
    const double decode = report->decode_tok_s / rival->decode_tok_s;
    json["vs"] = to_json(*rival);
    json["prefill_ratio"] = prefill;
    json["decode_ratio"] = decode;
    comparison = fmt::format(
        "\nllama.cpp {} on {} ({}, {}): prompt {:.2f} tok/s, generation {:.2f} tok/s\n"
        "lowbit is {:.2f} times as fast on the prompt, {:.2f} times in generation\n",
        rival->build, rival->path, rival->type, bytes_text(static_cast<double>(rival->bytes)), rival->prefill_tok_s,
        rival->decode_tok_s, prefill, decode);
  }
  if (!console.json()) print_report(console, *report, options);
  console.print("{}", comparison);
  if (console.json()) console.put_json(json);
  if (report->checked) return {};
  return fail(ErrorCode::kCorrupt, *path,
              fmt::format("logits of a batch {:.2g} % of the largest away from those of single tokens, or other tokens",
                          100 * report->logits_apart),
              fmt::format("at most {:g} %", 100 * report->logits_bound), "this is a fault of lowbit: please report it");
}

}  // namespace

void add_model_bench(Verb& bench, Invocation& invocation) {
  auto arguments = std::make_shared<ModelArguments>();
  Verb* verb = bench.add_subcommand("model", "Speed of the prompt and of generation");
  add_model_argument(*verb, arguments->model);
  ModelBenchOptions& options = arguments->options;
  add_count_option(*verb, "-p,--prompt", options.prompt, {1, 1 << 20}, "tokens of the prompt [128]");
  add_count_option(*verb, "--depth", options.depth, {0, 1 << 20}, "tokens before either [0]");
  add_count_option(*verb, "--batch", options.batch, {1, 4096},
                   "sessions that run together, each with these counts; tok/s are of all of them [1]");
  add_count_option(*verb, "-n,--tokens", options.generate, {1, 1 << 20}, "tokens generated [64]");
  add_count_option(*verb, "-r,--repetitions", options.repetitions, {1, 1000}, "repetitions; the median counts [3]");
  add_activation_option(*verb, options.activation);
  add_exact_option(*verb, options.exact);
  add_kv_options(*verb, options);
  verb->add_flag("--tune", options.tune, "try several ways to cut products first, and keep the fastest of each shape");
  verb->add_flag("--profile", options.profile, "then once more, with the time, share and GB/s of each step");
  verb->add_option("--vs", arguments->other, "then llama.cpp on a GGUF file of the same model: ggml[:FILE.gguf]")
      ->type_name("NAME");
  verb->callback([arguments, &invocation] {
    if (!arguments->other.empty() && !is_ggml(arguments->other))
      throw usage_error("--vs", arguments->other, "ggml, or ggml:FILE.gguf");
    if (!arguments->other.empty() && arguments->options.batch > 1)
      throw usage_error("--vs", "--batch " + std::to_string(arguments->options.batch),
                        "--batch 1: llama-bench runs one session");
    invocation.action = [arguments, &invocation](Console& console) {
      return model_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
