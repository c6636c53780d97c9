// lowbit ppl: perplexity, and KL divergence against saved logits.

#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/evaluate.h"
#include "lowbit/quantize.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_file.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct PplArguments {
  std::string model, file, method = "llama.cpp";
  ModelOptions model_options;
  PerplexityOptions options;
};

nlohmann::json report_json(const PerplexityReport& report, const PplArguments& arguments, const ModelInfo& info) {
  nlohmann::json json = {{"model", info.path},
                         {"file", arguments.file},
                         {"method", arguments.method},
                         {"context", arguments.options.context},
                         {"activation", info.activation},
                         {"kv", info.kv},
                         {"isa", info.isa},
                         {"threads", info.threads},
                         {"ppl", report.ppl},
                         {"ppl_error", report.ppl_error},
                         {"tokens", report.tokens},
                         {"chunks", report.chunks},
                         {"seconds", report.seconds},
                         {"tok_s", report.tok_s},
                         {"kld_mean", nullptr},
                         {"top1", nullptr}};
  if (!report.compared) return json;
  json.update({{"base_ppl", report.base_ppl},
               {"kld_mean", report.kld_mean},
               {"kld_p50", report.kld_p50},
               {"kld_p90", report.kld_p90},
               {"kld_p99", report.kld_p99},
               {"kld_max", report.kld_max},
               {"top1", report.top1},
               {"delta_p_rms", report.delta_p_rms}});
  return json;
}

void print_report(Console& console, const PerplexityReport& report) {
  if (report.compared) {
    console.print("base PPL = {}, ratio = {:.4f}\n", perplexity_text(report.base_ppl),
                  report.base_ppl > 0 ? report.ppl / report.base_ppl : 0);
    console.print("KL divergence: mean {:.5f}, median {:.5f}, 90 % {:.5f}, 99 % {:.5f}, max {:.4f}\n", report.kld_mean,
                  report.kld_p50, report.kld_p90, report.kld_p99, report.kld_max);
    console.print("same likeliest token: {:.2f} %; RMS change of the true token's probability: {:.2f} %\n",
                  100 * report.top1, 100 * report.delta_p_rms);
  }
  console.print("PPL = {} +/- {} ({} tokens, {} chunks)\n", perplexity_text(report.ppl),
                perplexity_text(report.ppl_error), report.tokens, report.chunks);
  console.note("{:.1f} s, {:.1f} tok/s", report.seconds, report.tok_s);
}

Status ppl_action(Console& console, PplArguments& arguments, const Compute& compute) {
  const auto text = read_text(arguments.file);
  if (!text) return tl::unexpected(text.error());
  const auto path = resolve_model(arguments.model);
  if (!path) return tl::unexpected(path.error());
  Result<PerplexityReport> report;
  ModelInfo info;
  {
    ProgressDisplay progress(console);
    arguments.model_options.compute = with_gpu_found(compute);
    arguments.model_options.context = arguments.options.context;
    arguments.model_options.progress = progress.callback();
    auto model = Model::open(*path, arguments.model_options);
    if (!model) return tl::unexpected(model.error());
    info = model->info();
    PerplexityOptions& options = arguments.options;
    options.method = arguments.method == "gptq" ? PerplexityMethod::kGptq : PerplexityMethod::kLlamaCpp;
    // The running value replaces the bar: it says how far we are, too.
    int64_t total = 0;
    std::string running;
    options.progress = [&](const std::string&, int64_t, int64_t all) {
      total = all;
      return running.empty() ? !InterruptFlag::is_raised() : progress.update(running);
    };
    options.on_chunk = [&](int64_t chunk, double ppl) {
      running =
          fmt::format("chunk {}{}: PPL {}", chunk, total > 0 ? fmt::format(" of {}", total) : "", perplexity_text(ppl));
      progress.update(running);
    };
    report = perplexity(*model, *text, options);
  }
  if (!report) return tl::unexpected(report.error());
  if (console.json())
    console.put_json(report_json(*report, arguments, info));
  else
    print_report(console, *report);
  return {};
}

}  // namespace

void add_ppl_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<PplArguments>();
  Verb* verb = app.add_subcommand("ppl", "Perplexity on a text; divergence from saved logits");
  add_model_argument(*verb, arguments->model);
  verb->add_option("-f,--file", arguments->file, "text; - is stdin")->required()->type_name("FILE");
  add_count_option(*verb, "-c,--context", arguments->options.context, {2, int64_t{1} << 30}, "tokens of a chunk [512]");
  add_activation_option(*verb, arguments->model_options.activation);
  add_gpu_layers_option(*verb, arguments->model_options.gpu_layers);
  add_exact_option(*verb, arguments->model_options.exact);
  add_kv_options(*verb, arguments->model_options);
  add_count_option(*verb, "--chunks", arguments->options.chunks, {1, int64_t{1} << 40}, "only the first N chunks");
  add_choice_option(*verb, "--method", arguments->method, {"llama.cpp", "gptq"},
                    ": the second half of each chunk after BOS, or all of it [llama.cpp]");
  verb->add_option("--save-logits", arguments->options.save_logits, "write all logits, as llama.cpp does")
      ->type_name("FILE");
  verb->add_option("--against", arguments->options.against, "compare with logits written by --save-logits")
      ->type_name("FILE");
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation](Console& console) {
      return ppl_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
