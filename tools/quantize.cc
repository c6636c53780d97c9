// lowbit quantize: any model in, a low-bit checkpoint out.

#include "lowbit/quantize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "option_values.h"
#include "progress_display.h"
#include "quantize_choices.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct QuantizeArguments {
  std::string source, target, fit = "auto", scale;
  FormatId format = FormatId::kInt4;
  int64_t tokens = 0;  // 0: not given
  GroupShape group;
  bool zero = false;
  std::vector<std::string> renamed;  // what was said by an old name, and the new one
  QuantizeOptions options;
};

/// "int2 g64" -> {"int2", 64}, "int8 row" -> {"int8", "row"}, "bf16" -> {"bf16", null}
std::pair<std::string, nlohmann::json> split_format(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return {text, nullptr};
  const std::string group = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
  if (group.size() > 1 && group[0] == 'g')
    if (const auto columns = parse_size(group.substr(1))) return {text.substr(0, space), *columns};
  return {text.substr(0, space), group};
}

nlohmann::json layer_json(const LayerReport& layer) {
  const auto [format, group] = split_format(layer.format);
  nlohmann::json json = {{"name", layer.name},
                         {"format", format},
                         {"group", group},
                         {"rel_error", layer.rel_error},
                         {"shape", {layer.n, layer.k}},
                         {"bytes", layer.bytes},
                         {"bits_per_weight", layer.bits_per_weight}};
  if (layer.output_error) json["output_error"] = *layer.output_error;
  if (!layer.warning.empty()) json["warning"] = layer.warning;
  return json;
}

nlohmann::json report_json(const QuantizeReport& report, const std::string& source, const std::string& target) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerReport& layer : report.layers) layers.push_back(layer_json(layer));
  nlohmann::json held_out;
  if (const auto& held = report.held_out)
    held_out = {{"tokens", held->tokens},
                {"was_seen", held->was_seen},
                {"source_ppl", held->source_ppl},
                {"ppl", held->ppl},
                {"ratio", held->ratio()},
                {"same_token", held->same_token},
                {"continued", held->continued},
                {"sure_tokens", held->sure_tokens},
                {"same_where_sure", held->same_where_sure}};
  nlohmann::json times;
  if (const auto& t = report.times) times = {{"measure", t->measure}, {"fit", t->fit}, {"advance", t->advance}};
  return {{"source", source},
          {"target", target},
          {"held_out", held_out},
          {"held_back", held_out},  // as it was called
          {"resumed_blocks", report.resumed_blocks},
          {"bits_per_weight", report.bits_per_weight},
          {"bits_per_weight_total", report.bits_per_weight_total},
          {"bytes", report.bytes},
          {"seconds", report.seconds},
          {"calibration_seconds", times},
          {"choices", choices_json(report.choices)},
          {"embedding_head", choices_json(report.embedding_head)},
          {"warnings", report.warnings},
          {"layers", layers}};
}

/// One line per format, since the layers of one format look alike: `inspect` lists each.
std::string summary(const QuantizeReport& report) {
  struct Sum {
    int64_t layers = 0, weights = 0, bytes = 0;
    double error = 0, worst = 0;
  };
  std::map<std::string, Sum> sums;
  for (const LayerReport& layer : report.layers) {
    Sum& sum = sums[layer.format];
    ++sum.layers;
    sum.weights += layer.n * layer.k;
    sum.bytes += layer.bytes;
    sum.error += layer.rel_error;
    sum.worst = std::max(sum.worst, layer.rel_error);
  }
  TextTable table({{"format", Align::kLeft, 24},
                   {"layers", Align::kRight},
                   {"weights", Align::kRight},
                   {"size", Align::kRight},
                   {"bits/weight", Align::kRight},
                   {"mean rel. error", Align::kRight},
                   {"worst", Align::kRight}});
  for (const auto& [format, sum] : sums) {
    const double weights = static_cast<double>(std::max<int64_t>(sum.weights, 1));
    table.add({format, std::to_string(sum.layers), fmt::format("{:.2f} M", weights / 1e6),
               bytes_text(static_cast<double>(sum.bytes)),
               fmt::format("{:.3f}", 8 * static_cast<double>(sum.bytes) / weights),
               fmt::format("{:.5f}", sum.error / static_cast<double>(sum.layers)), fmt::format("{:.5f}", sum.worst)});
  }
  return table.str();
}

Status quantize_action(Console& console, QuantizeArguments& arguments, const Compute& compute) {
  auto source = resolve_model(arguments.source);
  if (!source) return tl::unexpected(source.error());
  QuantizeOptions& options = arguments.options;
  options.compute = compute;
  options.accept_broken = options.overwrite;
  QuantizeReport report;
  {
    ProgressDisplay progress(console);
    options.progress = progress.callback();
    auto quantized = quantize_model(*source, arguments.target, options);
    if (!quantized) return tl::unexpected(quantized.error());
    InterruptFlag::work_is_done();
    report = std::move(*quantized);
  }
  for (const std::string& renamed : arguments.renamed) console.note("{}", renamed);
  for (const std::string& warning : report.warnings) console.warn(warning);
  for (const LayerReport& layer : report.layers)
    if (layer.warning.empty())
      console.debug("{}: {}, relative error {:.5f}", layer.name, layer.format, layer.rel_error);
    else
      console.debug("{}: {}, relative error {:.5f}; {}", layer.name, layer.format, layer.rel_error, layer.warning);
  if (console.json()) {
    console.put_json(report_json(report, *source, arguments.target));
    return {};
  }
  if (!report.choices.empty())
    console.print("{}Formats by what their layers cost in divergence for their bits.\n{}\n", choices_table(report),
                  embedding_head_text(report));
  console.print("{}", summary(report));
  console.print("\n{}: {}, {:.3f} bits per weight in the linear layers, {:.3f} in all, in {:.1f} s\n", arguments.target,
                bytes_text(static_cast<double>(report.bytes)), report.bits_per_weight, report.bits_per_weight_total,
                report.seconds);
  if (const auto& held = report.held_out)
    console.print(
        "{} of the calibration text: the source's next token in {:.1f} % of places ({:.1f} % where the source is "
        "sure), "
        "{:g} tokens long in the median; perplexity {:.4g}, {:.4g} times the source's {:.4g}\n",
        held->was_seen ? "The first sequence" : "A held-out part", 100 * held->same_token, 100 * held->same_where_sure,
        held->continued, held->ppl, held->ratio(), held->source_ppl);
  if (const auto& t = report.times)
    console.print("{:.1f} s to measure inputs, {:.1f} s to fit, {:.1f} s to run the quantized blocks\n", t->measure,
                  t->fit, t->advance);
  return {};
}

/// The options that describe the linear layers, into QuantizeOptions::linear. A scale kind given on
/// the command line holds for the embedding and the head too.
void fill_specs(QuantizeArguments& arguments) {
  QuantizeOptions& options = arguments.options;
  QuantizeSpec linear;
  linear.format = arguments.format;
  linear.group = arguments.group.group;
  linear.group_rows = arguments.group.rows;
  linear.scale = default_scale(arguments.group);
  linear.zero = arguments.zero;
  linear.fit = arguments.fit;
  if (const auto scale = parse_scale_kind(arguments.scale))
    linear.scale = options.embedding.scale = options.head.scale = *scale;
  options.linear = linear;
  if (arguments.tokens > 0) options.calibration.tokens = arguments.tokens;
}

/// The options of most runs.
void add_layer_options(Verb& verb, QuantizeArguments& arguments) {
  QuantizeOptions& options = arguments.options;
  add_choice_option(verb, "--preset", options.preset, {"best", "balanced", "small"},
                    ": 4.25, 3.25 or 2.25 bits per weight of the linear layers; needs nothing else");
  add_format_option(verb, "--format", arguments.format,
                    "int8 int4 int3 codebook3 trellis3 trellis2 ternary ...; `inspect --formats` says when");
  add_number_option(
      verb, "--target-bpw", options.target_bpw, 0.5f, 16.0f,
      "in place of --format: bits per weight of all linear layers, each layer's format chosen by measured loss");
  CalibrationOptions& calibration = options.calibration;
  verb.add_option_function(
          "--calib",
          [&calibration](const std::string& file) {
            if (file.empty()) throw usage_error("--calib", file, "a file, or self");
            calibration.file = file;
          },
          "text the model is run on, to learn which errors matter; `self`: one that it writes itself")
      ->type_name("FILE");
  add_count_option(verb, "--calib-tokens", arguments.tokens, {2, int64_t{1} << 40},
                   "tokens of it to use [64K; --preset balanced: 128K]");
  add_group_option(
      verb, arguments.group,
      "weights that share a scale: 32, 64, 128, 256, row, tensor, or blocks as 128x128 [64; int8 and fp8: row]");
  verb.add_flag("--rotate", options.rotate, "rotate the residual stream and the values first: for 2 bits and fewer");
  verb.add_option("--keep", options.keep, "leave layers whose name matches as they are; may be repeated")
      ->repeatable()
      ->type_name("REGEX");
  verb.add_option("--recipe", options.recipe_file, "lines `regex format [group=64] [scale=f16] [zero] [fit=lsq]`")
      ->type_name("FILE");
  verb.add_flag("--force", options.overwrite,
                "replace OUT if it is a lowbit checkpoint; write a calibrated result even if it is broken");
}

void add_scale_option(Verb& verb, QuantizeArguments& arguments) {
  verb.add_option_function(
          "--scale",
          [&arguments](const std::string& text) {
            if (!parse_scale_kind(text)) throw usage_error("--scale", text, "f16, bf16, f32, pow2 or double");
            arguments.scale = text;
          },
          "how scales are stored: f16, bf16, f32, pow2 or double [f16; blocks: f32]")
      ->type_name("NAME")
      ->group(kMoreOptions);
}

/// `align` is what asymmetric calibration was called.
void add_fit_option(Verb& verb, std::string& fit, std::vector<std::string>& renamed) {
  const std::vector<std::string> fits = {"auto", "absmax", "mse", "lsq", "wls", "gptq", "refit", "asymmetric"};
  verb.add_option_function(
          "--fit",
          [&fit, &renamed, fits](const std::string& text) {
            const bool is_old = text == "align";
            if (is_old) renamed.emplace_back("--fit align is now --fit asymmetric");
            if (!is_old && std::ranges::find(fits, text) == fits.end())
              throw usage_error("--fit", text, fmt::format("one of {}", fmt::join(fits, ", ")));
            fit = is_old ? "asymmetric" : text;
          },
          fmt::format("{}: how scales and codes are found; the last four need --calib [auto]", fmt::join(fits, ", ")))
      ->type_name("NAME")
      ->group(kMoreOptions);
}

/// Options that few need: `--help-all`.
void add_more_options(Verb& verb, QuantizeArguments& arguments) {
  QuantizeOptions& options = arguments.options;
  add_fit_option(verb, arguments.fit, arguments.renamed);
  add_scale_option(verb, arguments);
  verb.add_flag("--zero", arguments.zero, "fit an offset per group too")->group(kMoreOptions);
  verb.add_flag("--hadamard", options.hadamard,
                "spread down_proj's inputs by a Hadamard transform at run time: for 4-bit activations")
      ->group(kMoreOptions);
  add_number_option(
      verb, "--smooth", options.smooth, 0.0f, 1.0f,
      "move outliers of activations into the weights first, by this strength; for --act int8-row; needs --calib")
      ->group(kMoreOptions);
  add_format_or_keep_option(verb, "--embedding", options.embedding.format, options.embedding.keep,
                            "token embedding, and a head tied to it: a format or `keep` [int8; a preset searches]")
      ->group(kMoreOptions);
  add_format_or_keep_option(verb, "--head", options.head.format, options.head.keep,
                            "a head of its own: a format or `keep` [int8; a preset searches]")
      ->group(kMoreOptions);
  add_seed_option(verb, options.seed)->group(kMoreOptions);
}

}  // namespace

void add_quantize_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<QuantizeArguments>();
  Verb* verb = app.add_subcommand("quantize", "A model as a checkpoint with few bits per weight");
  verb->add_option("SRC", arguments->source, "GGUF file, Hugging Face directory, checkpoint, or `default`")
      ->required()
      ->type_name("");
  verb->add_option("OUT", arguments->target, "checkpoint directory to write")->required()->type_name("");
  add_layer_options(*verb, *arguments);
  add_more_options(*verb, *arguments);
  verb->set_help_all_flag("--help-all", "this text, and the options that few need");
  verb->callback([arguments, verb, &invocation] {
    const auto said = std::ranges::count_if(std::array{"--preset", "--format", "--target-bpw"},
                                            [verb](const char* name) { return verb->count(name) > 0; });
    if (said != 1)
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit quantize",
                        said == 0 ? "no format" : "several of --preset, --format and --target-bpw",
                        "--preset P, --format F or --target-bpw X", "`lowbit inspect --formats` lists formats"}};
    if (!arguments->options.preset.empty())
      for (const char* other : {"--fit", "--group", "--zero", "--smooth"})
        if (verb->count(other) > 0)
          throw UsageError{{ErrorCode::kInvalidArgument, "lowbit quantize", fmt::format("--preset and {}", other),
                            "one of them", "a preset searches for it"}};
    fill_specs(*arguments);
    arguments->options.search_embedding_head = verb->count("--embedding") == 0 && verb->count("--head") == 0;
    invocation.action = [arguments, &invocation](Console& console) {
      return quantize_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
