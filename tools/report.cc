// lowbit report: one self-contained HTML page from what `quantize --json`, `eval --json`, bench/quality and recovery
// wrote.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lowbit/file.h"
#include "report_figures.h"
#include "report_findings.h"
#include "report_page.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> inputs;
  std::string output = "lowbit-report.html";
};

Status report_action(Console& console, const ReportArguments& arguments) {
  Findings found;
  for (const std::string& input : arguments.inputs)
    if (auto status = read_findings(input, found); !status) return status;
  if (found.empty())
    return tl::unexpected(Error{ErrorCode::kNotFound, arguments.inputs.front(),
                                fmt::format("{} JSON files without figures", found.documents),
                                "output of quantize --json or eval --json, or a quantized checkpoint", ""});
  const std::vector<Figure> figures = figures_of(found);
  if (auto written = write_text_file(arguments.output, report_page(found, figures)); !written) return written;
  if (console.json()) {
    nlohmann::json drawn = nlohmann::json::array();
    for (const Figure& figure : figures) drawn.push_back(figure_json(figure));
    console.put_json({{"output", arguments.output},
                      {"documents", found.documents},
                      {"models", found.errors.size()},
                      {"comparisons", found.comparisons.size()},
                      {"figures", drawn}});
    return {};
  }
  console.print("{}: {} documents\n", arguments.output, found.documents);
  return {};
}

}  // namespace

void add_report_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<ReportArguments>();
  Verb* verb = app.add_subcommand("report", "One HTML page of plots from checkpoints and results");
  verb->add_option("DIR", arguments->inputs, "directories with JSON files, or such files")->required()->type_name("");
  verb->add_option("-o,--output", arguments->output, "the page [lowbit-report.html]")->type_name("FILE");
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments](Console& console) { return report_action(console, *arguments); };
  });
}

}  // namespace lowbit::cli
