// lowbit report: one self-contained HTML page from what `quantize --json`, `eval --json`, bench/quality and recovery
// wrote.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lowbit/file.h"
#include "report_figures.h"
#include "report_findings.h"
#include "svg_plot.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> inputs;
  std::string output = "lowbit-report.html";
};

std::string shares(const nlohmann::json& list) {
  std::string out;
  for (const nlohmann::json& share : list)
    if (share.is_object())
      out += fmt::format("<code>{}</code> {:.1f} %<br>", html_escape(text_or(share, "text", "")),
                         100 * number_or(share, "probability", 0));
  return out;
}

std::string examples(const Findings& found) {
  std::string out;
  for (const auto& [model, task] : found.comparisons) {
    const nlohmann::json& list = list_of(task, "examples");
    if (list.empty()) continue;
    out += fmt::format(
        "<h3>{} ({})</h3>\n<table><tr><th>text</th><th>what "
        "follows</th><th>original</th><th>quantized</th><th>KLD</th></tr>\n",
        html_escape(model), html_escape(text_or(task, "name", "")));
    for (const nlohmann::json& e : list)
      if (e.is_object())
        out += fmt::format("<tr><td>… {}</td><td><code>{}</code></td><td>{}</td><td>{}</td><td>{:.2f}</td></tr>\n",
                           html_escape(text_or(e, "before", "")), html_escape(text_or(e, "truth", "")),
                           shares(list_of(e, "base")), shares(list_of(e, "model")), number_or(e, "kld", 0));
    out += "</table>\n";
  }
  return out.empty() ? "" : "<h2>Where the models differ most</h2>\n" + out;
}

std::string page(const Findings& found, const std::vector<Figure>& figures) {
  std::string out =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>lowbit report</title>\n<style>\n"
      "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\n"
      "svg{width:100%;margin:.6em 0}svg text{font-size:12px;fill:#333}svg .small{font-size:10px}svg "
      ".title{font-size:14px;font-weight:600}\n"
      "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:4px "
      "7px;text-align:left;vertical-align:top}\n"
      "code{background:#f2f2f2;white-space:pre-wrap}\n</style></head><body>\n<h1>lowbit report</h1>\n";
  for (size_t i = 0; i < figures.size(); ++i) {
    if (i == 0 || figures[i].heading != figures[i - 1].heading) out += "<h2>" + figures[i].heading + "</h2>\n";
    out += figure_svg(figures[i]);
  }
  if (!found.choices.empty())
    out +=
        "<h2>Multiple choice</h2>\n<table><tr><th>model</th><th>task</th><th>questions</th><th>accuracy</th><th>by "
        "length</th></tr>\n" +
        found.choices + "</table>\n";
  return out + examples(found) + "</body></html>\n";
}

Status report_action(Console& console, const ReportArguments& arguments) {
  Findings found;
  for (const std::string& input : arguments.inputs)
    if (auto status = read_findings(input, found); !status) return status;
  if (found.empty())
    return tl::unexpected(Error{ErrorCode::kNotFound, arguments.inputs.front(),
                                fmt::format("{} JSON files without figures", found.documents),
                                "output of quantize --json or eval --json, or a quantized checkpoint", ""});
  const std::vector<Figure> figures = figures_of(found);
  if (auto written = write_text_file(arguments.output, page(found, figures)); !written) return written;
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
