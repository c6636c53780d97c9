// lowbit import: any model as a lowbit checkpoint, weights unchanged where possible.

#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/quantize.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct ImportArguments {
  std::string source, target, i2s_layout;
  bool force = false;
};

Status import_action(Console& console, const ImportArguments& arguments, const Compute& compute) {
  auto source = resolve_model(arguments.source);
  if (!source) return tl::unexpected(source.error());
  ProgressDisplay progress(console);
  const auto report =
      import_model(*source, arguments.target, {arguments.force, arguments.i2s_layout, compute, progress.callback()});
  if (!report) return tl::unexpected(report.error());
  InterruptFlag::work_is_done();
  if (console.json()) {
    console.put_json({{"source", *source},
                      {"target", arguments.target},
                      {"tensors", report->tensors},
                      {"bytes", report->bytes},
                      {"dequantized", report->dequantized},
                      {"seconds", report->seconds}});
    return {};
  }
  console.print("{}: {} tensors, {}, in {:.1f} s\n", arguments.target, report->tensors,
                bytes_text(static_cast<double>(report->bytes)), report->seconds);
  if (!report->dequantized.empty()) {
    console.print("{} tensors were stored in formats that lowbit lacks and are bf16 now:\n",
                  report->dequantized.size());
    for (const std::string& name : report->dequantized) console.print("  {}\n", printable(name));
  }
  return {};
}

}  // namespace

void add_import_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<ImportArguments>();
  Verb* verb = app.add_subcommand("import", "A model as a lowbit checkpoint, weights unchanged");
  verb->add_option("SRC", arguments->source, "GGUF file, Hugging Face directory, or `default`")
      ->required()
      ->type_name("");
  verb->add_option("OUT", arguments->target, "checkpoint directory to write")->required()->type_name("");
  verb->add_flag("--force", arguments->force, "replace OUT if it is a lowbit checkpoint");
  add_choice_option(*verb, "--i2s-layout", arguments->i2s_layout, {"x86", "arm", "rows4"},
                    ": the order of I2_S tensors in a GGUF file of bitnet.cpp, by the machine that wrote it");
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation](Console& console) {
      return import_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
