// lowbit report: one self-contained HTML page from what `quantize --json`, `eval --json` and bench/quality wrote.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "lowbit/file.h"
#include "svg_plot.h"
#include "text_file.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct ReportArguments {
  std::vector<std::string> inputs;
  std::string output = "lowbit-report.html";
};

double number_or(const json& object, const char* key, double otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : otherwise;
}
std::string text_or(const json& object, const char* key, const std::string& otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : otherwise;
}
/// The array of that name; empty when there is none.
const json& list_of(const json& object, const char* key) {
  static const json kNone = json::array();
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : kNone;
}

/// What all inputs say, by what it is.
struct Findings {
  PlotSeries own{"lowbit", {}, false, true};
  std::vector<PlotSeries> points;  // of tables: bits per weight against the ratio of perplexities
  std::map<std::string, std::map<std::string, double>> errors;  // by model, then by layer
  std::vector<std::pair<std::string, json>> comparisons;        // name of the model, a task `kld` or `drift`
  std::string choices;                                          // rows of an HTML table
  int64_t documents = 0;
};

/// "int3 calibrated", "int2odd refit group=32", "int3 20M", "Q4_K_M imatrix"
std::string row_label(const json& row) {
  std::string label = text_or(row, "step", text_or(row, "format", text_or(row, "type", "")));
  if (row.contains("recovered"))
    label += text_or(row, "tokens", "") == "0M" ? " blocks" : " " + text_or(row, "tokens", "");
  std::ranges::replace(label, ':', ' ');
  return label;
}

void read_table(const std::string& name, const json& document, Findings& out) {
  PlotSeries series{text_or(document, "program", name), {}, false, true};
  for (const json& row : list_of(document, "rows"))
    if (row.is_object()) {
      const auto recovered = row.find("recovered");  // of bench/quality/recovery.py: what training made of the row
      const bool trained = recovered != row.end() && recovered->is_object();
      const double bits = number_or(row, "bits_per_weight", 0),
                   ratio = number_or(trained ? *recovered : row, "ratio", 0);
      if (bits > 0 && ratio > 0) series.points.push_back({bits, ratio, 0, row_label(row)});
    }
  if (!series.points.empty()) out.points.push_back(std::move(series));
}

void read_layers(const std::string& name, const json& document, Findings& out) {
  for (const json& layer : list_of(document, "layers"))
    if (layer.is_object())
      out.errors[name][text_or(layer, "name", "")] = number_or(layer, "output_error", number_or(layer, "rel_error", 0));
}

/// The quality entry of a checkpoint's config.json, unless `quantize --json` said more.
void read_checkpoint(const std::string& name, const json& config, Findings& out) {
  const auto q = config.find("quantization_config");
  if (q == config.end() || !q->is_object() || out.errors.contains(name)) return;
  const auto quality = q->find("quality");
  if (quality == q->end() || !quality->is_object()) return;
  for (const auto& [layer, entry] : quality->items())
    if (entry.is_object()) out.errors[name][layer] = number_or(entry, "rel_error", 0);
}

void read_evaluation(const std::string& name, const json& document, Findings& out) {
  for (const json& task : list_of(document, "tasks")) {
    if (!task.is_object()) continue;
    if (task.contains("kld_mean")) out.comparisons.emplace_back(name, task);
    if (task.contains("accuracy"))
      out.choices += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{:.0f}</td><td>{:.2f} ± {:.2f} %</td><td>{:.2f} ± {:.2f} %</td></tr>\n",
          html_escape(name), html_escape(text_or(task, "name", "")), number_or(task, "questions", 0),
          100 * number_or(task, "accuracy", 0), 100 * number_or(task, "accuracy_error", 0),
          100 * number_or(task, "normalized_accuracy", 0), 100 * number_or(task, "normalized_accuracy_error", 0));
  }
}

Status read_document(const fs::path& path, const std::string& name, Findings& out, double& bits) {
  const auto text = read_text(path.string());
  if (!text) return tl::unexpected(text.error());
  const json document = json::parse(*text, nullptr, false);
  if (!document.is_object())
    return tl::unexpected(Error{ErrorCode::kCorrupt, path.string(), "text that is not a JSON object",
                                "what `lowbit ... --json` wrote", ""});
  ++out.documents;
  read_table(path.stem().string(), document, out);
  read_layers(name, document, out);
  read_checkpoint(name, document, out);
  read_evaluation(name, document, out);
  if (document.contains("layers")) bits = number_or(document, "bits_per_weight", bits);
  return {};
}

Status read_input(const std::string& input, Findings& out) {
  std::error_code error;
  double bits = 0;
  if (!fs::is_directory(input, error)) return read_document(input, fs::path(input).stem().string(), out, bits);
  std::vector<fs::path> files;
  for (fs::directory_iterator it(input, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".json" && !it->path().filename().string().starts_with("tokenizer"))
      files.push_back(it->path());
  if (error) return tl::unexpected(Error{ErrorCode::kIo, input, error.message(), "a readable directory", ""});
  std::ranges::sort(files, std::greater<>());  // quantize.json before config.json
  const std::string name = fs::path(input).lexically_normal().filename().string().empty()
                               ? fs::path(input).lexically_normal().parent_path().filename().string()
                               : fs::path(input).lexically_normal().filename().string();
  const size_t before = out.comparisons.size();
  for (const fs::path& file : files)
    if (auto status = read_document(file, name, out, bits); !status) return status;
  for (size_t i = before; i < out.comparisons.size(); ++i) {
    const json& task = out.comparisons[i].second;
    if (bits > 0 && text_or(task, "name", "") == "kld" && number_or(task, "base_ppl", 0) > 0)
      out.own.points.push_back({bits, number_or(task, "ppl", 0) / number_or(task, "base_ppl", 1), 0, name});
  }
  return {};
}

std::string quality_plot(const Findings& found) {
  Plot plot{"Perplexity against size",
            "bits per weight of the linear layers",
            "perplexity / the original's",
            false,
            true,
            found.points};
  if (!found.own.points.empty()) plot.series.push_back(found.own);
  return plot.series.empty() ? "" : "<h2>Perplexity against bits per weight</h2>\n" + plot.svg();
}

std::string heat_maps(const Findings& found) {
  std::string out;
  for (const auto& [model, layers] : found.errors) {
    std::map<int64_t, std::map<std::string, double>> blocks;
    std::vector<std::string> kinds;
    for (const auto& [name, error] : layers) {
      std::istringstream in(name.starts_with("model.layers.") ? name.substr(13) : "");
      int64_t block = 0;
      std::string kind;
      if (!(in >> block) || !std::getline(in, kind)) continue;
      kind = kind.substr(kind.rfind('.') + 1);
      blocks[block][kind] = error;
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    }
    if (blocks.empty()) continue;
    const std::vector<std::string> order = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                            "gate_proj", "up_proj", "down_proj"};  // as they run
    std::ranges::stable_sort(kinds, {},
                             [&](const std::string& kind) { return std::ranges::find(order, kind) - order.begin(); });
    HeatMap map{model + ": relative error of each layer (of its outputs where calibrated)", kinds, {}, {}};
    map.cells.resize(kinds.size());
    for (const auto& [block, errors] : blocks) {
      map.columns.push_back(std::to_string(block));
      for (size_t k = 0; k < kinds.size(); ++k) {
        const auto it = errors.find(kinds[k]);
        map.cells[k].push_back(it == errors.end() ? std::nullopt : std::optional<double>(it->second));
      }
    }
    out += map.svg();
  }
  return out.empty() ? "" : "<h2>Error per layer</h2>\n" + out;
}

std::string divergence_plots(const Findings& found) {
  Plot histogram{"Positions by KL divergence", "KL divergence", "share of positions, %", true, false, {}};
  Plot drift{"Drift", "position", "mean KL divergence", false, false, {}};
  for (const auto& [model, task] : found.comparisons) {
    const std::string name = model + " " + text_or(task, "name", "");
    PlotSeries bars{name, {}, true, false}, curve{name, {}, true, true};
    if (const auto h = task.find("histogram"); h != task.end() && h->is_object()) {
      const double first = number_or(*h, "first", 1e-6), per_decade = number_or(*h, "per_decade", 10);
      double bin = 0;
      for (const json& count : list_of(*h, "counts")) {
        const double share =
            count.is_number() ? 100 * count.get<double>() / std::max(1.0, number_or(task, "tokens", 1)) : 0;
        bars.points.push_back({first * std::pow(10, (bin++ + 0.5) / per_decade), share, 0, ""});
      }
      // Bins behind the largest divergence and before the smallest say nothing.
      const auto is_empty = [](const PlotPoint& p) { return p.y == 0; };
      while (bars.points.size() > 1 && is_empty(bars.points.back())) bars.points.pop_back();
      bars.points.erase(bars.points.begin(), std::ranges::find_if_not(bars.points, is_empty));
      histogram.series.push_back(std::move(bars));
    }
    if (text_or(task, "name", "") != "drift") continue;
    for (const json& b : list_of(task, "buckets"))
      if (b.is_object())
        curve.points.push_back({(number_or(b, "first", 0) + number_or(b, "last", 0)) / 2, number_or(b, "kld", 0),
                                number_or(b, "kld_error", 0), ""});
    drift.series.push_back(std::move(curve));
  }
  std::string out;
  if (!histogram.series.empty()) out += "<h2>Divergence from the original</h2>\n" + histogram.svg();
  if (!drift.series.empty()) out += drift.svg();
  return out;
}

std::string shares(const json& list) {
  std::string out;
  for (const json& share : list)
    if (share.is_object())
      out += fmt::format("<code>{}</code> {:.1f} %<br>", html_escape(text_or(share, "text", "")),
                         100 * number_or(share, "probability", 0));
  return out;
}

std::string examples(const Findings& found) {
  std::string out;
  for (const auto& [model, task] : found.comparisons) {
    const json& list = list_of(task, "examples");
    if (list.empty()) continue;
    out += fmt::format(
        "<h3>{} ({})</h3>\n<table><tr><th>text</th><th>what "
        "follows</th><th>original</th><th>quantized</th><th>KLD</th></tr>\n",
        html_escape(model), html_escape(text_or(task, "name", "")));
    for (const json& e : list)
      if (e.is_object())
        out += fmt::format("<tr><td>… {}</td><td><code>{}</code></td><td>{}</td><td>{}</td><td>{:.2f}</td></tr>\n",
                           html_escape(text_or(e, "before", "")), html_escape(text_or(e, "truth", "")),
                           shares(list_of(e, "base")), shares(list_of(e, "model")), number_or(e, "kld", 0));
    out += "</table>\n";
  }
  return out.empty() ? "" : "<h2>Where the models differ most</h2>\n" + out;
}

std::string page(const Findings& found) {
  std::string out =
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>lowbit report</title>\n<style>\n"
      "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\n"
      "svg{width:100%;margin:.6em 0}svg text{font-size:12px;fill:#333}svg .small{font-size:10px}svg "
      ".title{font-size:14px;font-weight:600}\n"
      "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:4px "
      "7px;text-align:left;vertical-align:top}\n"
      "code{background:#f2f2f2;white-space:pre-wrap}\n</style></head><body>\n<h1>lowbit report</h1>\n";
  out += quality_plot(found) + heat_maps(found) + divergence_plots(found);
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
    if (auto status = read_input(input, found); !status) return status;
  if (found.points.empty() && found.errors.empty() && found.comparisons.empty() && found.choices.empty())
    return tl::unexpected(Error{ErrorCode::kNotFound, arguments.inputs.front(),
                                fmt::format("{} JSON files without figures", found.documents),
                                "output of quantize --json or eval --json, or a quantized checkpoint", ""});
  if (auto written = write_text_file(arguments.output, page(found)); !written) return written;
  if (console.json())
    console.put_json({{"output", arguments.output},
                      {"documents", found.documents},
                      {"models", found.errors.size()},
                      {"comparisons", found.comparisons.size()}});
  else
    console.print("{}: {} documents\n", arguments.output, found.documents);
  return {};
}

}  // namespace

void add_report_verb(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* verb =
      app.add_subcommand("report", "One HTML page with plots, from checkpoints and JSON of quantize and eval");
  verb->add_option("DIR", arguments->inputs, "directories with JSON files, or such files")->required()->type_name("");
  verb->add_option("-o,--output", arguments->output, "the page [lowbit-report.html]")->type_name("FILE");
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments](Console& console) { return report_action(console, *arguments); };
  });
}

}  // namespace lowbit::cli
