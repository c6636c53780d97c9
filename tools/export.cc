// lowbit export: a ternary model as the Hugging Face directory that transformers loads.

#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/quantize.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct ExportArguments {
  std::string source, target;
  ExportOptions options;
};

Status export_action(Console& console, ExportArguments& arguments) {
  auto source = resolve_model(arguments.source);
  if (!source) return tl::unexpected(source.error());
  ProgressDisplay progress(console);
  arguments.options.progress = progress.callback();
  const auto report = export_model(*source, arguments.target, arguments.options);
  if (!report) return tl::unexpected(report.error());
  InterruptFlag::work_is_done();
  if (console.json()) {
    console.put_json({{"source", *source},
                      {"target", arguments.target},
                      {"linear_class", arguments.options.linear_class},
                      {"tensors", report->tensors},
                      {"bytes", report->bytes},
                      {"seconds", report->seconds}});
    return {};
  }
  console.print("{}: {} tensors, {}, in {:.1f} s\n", arguments.target, report->tensors,
                bytes_text(static_cast<double>(report->bytes)), report->seconds);
  return {};
}

}  // namespace

void add_export_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<ExportArguments>();
  Verb* verb = app.add_subcommand("export", "A ternary or fp8 model as the directory that transformers loads");
  verb->add_option("SRC", arguments->source, "checkpoint, Hugging Face directory or GGUF file")
      ->required()
      ->type_name("");
  verb->add_option("OUT", arguments->target, "directory to write")->required()->type_name("");
  add_choice_option(*verb, "--linear-class", arguments->options.linear_class, {"autobitlinear", "bitlinear"},
                    ": whether weight_scale multiplies or divides [autobitlinear]");
  verb->add_flag("--force", arguments->options.overwrite, "replace OUT if it is a BitNet or fp8 model");
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments](Console& console) { return export_action(console, *arguments); };
  });
}

}  // namespace lowbit::cli
