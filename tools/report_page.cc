#include "report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "svg_plot.h"

namespace lowbit::cli {
namespace {

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

/// The numbers of each comparison.
std::string losses(const Findings& found) {
  std::string rows;
  for (const auto& [model, task] : found.comparisons)
    rows += fmt::format(
        "<tr><td>{} ({})</td><td>{:.4g}</td><td>{:.4f}</td><td>{:.5f} ± {:.5f}</td><td>{:.5f}</td><td>{:.2f} "
        "%</td></tr>\n",
        html_escape(model), html_escape(text_or(task, "name", "")), number_or(task, "ppl", 0),
        number_or(task, "ppl", 0) / std::max(1e-300, number_or(task, "base_ppl", 0)), number_or(task, "kld_mean", 0),
        number_or(task, "kld_error", 0), number_or(task, "kld_p99", 0), 100 * number_or(task, "top1", 0));
  if (rows.empty()) return "";
  return "<table><tr><th>model</th><th>perplexity</th><th>/ the original's</th><th>KL divergence</th><th>99 % of "
         "positions "
         "below</th><th>same likeliest token</th></tr>\n" +
         rows + "</table>\n";
}

std::string partings(const Findings& found) {
  std::string out;
  for (const auto& [model, task] : found.agreements) {
    out += fmt::format(
        "<h3>{}: alike for {:g} tokens in the median, {:.1f} in the mean, to the end of {:.0f}: {:.1f} %</h3>\n"
        "<table><tr><th>text</th><th>alike</th><th>original</th><th>quantized</th></tr>\n",
        html_escape(model), number_or(task, "median", 0), number_or(task, "mean", 0), number_or(task, "tokens", 0),
        100 * number_or(task, "never", 0));
    for (const nlohmann::json& e : list_of(task, "examples"))
      if (e.is_object())
        out += fmt::format("<tr><td>… {}</td><td>{:.0f}</td><td><code>{}</code></td><td><code>{}</code></td></tr>\n",
                           html_escape(text_or(e, "before", "")), number_or(e, "agreed", 0),
                           html_escape(text_or(e, "base", "")), html_escape(text_or(e, "model", "")));
    out += "</table>\n";
  }
  return out.empty() ? "" : "<h2>Where continuations part</h2>\n" + out;
}

}  // namespace

std::string report_page(const Findings& found, const std::vector<Figure>& figures) {
  std::string out =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>lowbit report</title>\n<style>\n"
      "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\n"
      "svg{width:100%;margin:.6em 0}svg text{font-size:12px;fill:#333}svg .small{font-size:10px}svg "
      ".title{font-size:14px;font-weight:600}\n"
      "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:4px "
      "7px;text-align:left;vertical-align:top}\n"
      "code{background:#f2f2f2;white-space:pre-wrap}\n</style></head><body>\n<h1>lowbit report</h1>\n";
  out += losses(found);
  for (size_t i = 0; i < figures.size(); ++i) {
    if (i == 0 || figures[i].heading != figures[i - 1].heading) out += "<h2>" + figures[i].heading + "</h2>\n";
    out += figure_svg(figures[i]);
  }
  if (!found.choices.empty())
    out +=
        "<h2>Questions</h2>\n<table><tr><th>model</th><th>task</th><th>questions</th><th>accuracy</th><th>by "
        "length</th><th>the original</th><th>difference</th></tr>\n" +
        found.choices + "</table>\n";
  return out + examples(found) + partings(found) + "</body></html>\n";
}

}  // namespace lowbit::cli
