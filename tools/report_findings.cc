#include "report_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "text_file.h"

namespace lowbit::cli {

namespace fs = std::filesystem;
using nlohmann::json;

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

namespace {

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

/// Answers of the other model, and the difference question by question.
std::string compared_cells(const json& task) {
  const auto against = task.find("against"), difference = task.find("difference");
  if (against == task.end() || !against->is_object() || difference == task.end() || !difference->is_object())
    return "<td></td><td></td>";
  return fmt::format("<td>{:.2f} ± {:.2f} %</td><td>{:+.2f} ± {:.2f} %</td>", 100 * number_or(*against, "accuracy", 0),
                     100 * number_or(*against, "accuracy_error", 0), 100 * number_or(*difference, "mean", 0),
                     100 * number_or(*difference, "error", 0));
}

}  // namespace

void read_evaluation(const std::string& name, const json& document, Findings& out) {
  for (const json& task : list_of(document, "tasks")) {
    if (!task.is_object()) continue;
    if (task.contains("kld_mean")) out.comparisons.emplace_back(name, task);
    if (task.contains("lengths")) out.agreements.emplace_back(name, task);
    if (task.contains("accuracy"))
      out.choices += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{:.0f}</td><td>{:.2f} ± {:.2f} %</td><td>{:.2f} ± {:.2f} %</td>{}</tr>\n",
          html_escape(name), html_escape(text_or(task, "name", "")), number_or(task, "questions", 0),
          100 * number_or(task, "accuracy", 0), 100 * number_or(task, "accuracy_error", 0),
          100 * number_or(task, "normalized_accuracy", 0), 100 * number_or(task, "normalized_accuracy_error", 0),
          compared_cells(task));
  }
}

namespace {

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
  for (const json& stage : list_of(document, "stages"))  // OUT.loss.json of python -m lowbit.recover
    if (stage.is_object()) out.stages.emplace_back(name, stage);
  if (document.contains("layers")) bits = number_or(document, "bits_per_weight", bits);
  return {};
}

}  // namespace

Status read_findings(const std::string& input, Findings& out) {
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

}  // namespace lowbit::cli
