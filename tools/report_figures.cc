#include "report_figures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace lowbit::cli {
namespace {

using nlohmann::json;

void add_quality(const Findings& found, std::vector<Figure>& out) {
  Plot plot{"Perplexity against size",
            "bits per weight of the linear layers",
            "perplexity / the original's",
            false,
            true,
            found.points};
  if (!found.own.points.empty()) plot.series.push_back(found.own);
  if (!plot.series.empty()) out.push_back({"perplexity", "Perplexity against bits per weight", std::move(plot)});
}

void add_heat_maps(const Findings& found, std::vector<Figure>& out) {
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
    out.push_back({"errors-" + model, "Error per layer", std::move(map)});
  }
}

void add_divergences(const Findings& found, std::vector<Figure>& out) {
  Plot histogram{"Positions by KL divergence", "KL divergence", "share of positions, %", true, false, {}};
  Plot drift{"Drift", "position", "mean KL divergence", false, false, {}};
  Plot by_position{"By position in a sequence", "position", "mean KL divergence", false, false, {}};
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
    for (const json& b : list_of(task, "buckets"))
      if (b.is_object())
        curve.points.push_back({(number_or(b, "first", 0) + number_or(b, "last", 0)) / 2, number_or(b, "kld", 0),
                                number_or(b, "kld_error", 0), ""});
    if (curve.points.size() > 1)
      (text_or(task, "name", "") == "drift" ? drift : by_position).series.push_back(std::move(curve));
  }
  if (!histogram.series.empty()) out.push_back({"divergence", "Divergence from the original", std::move(histogram)});
  if (!by_position.series.empty()) out.push_back({"positions", "Divergence from the original", std::move(by_position)});
  if (!drift.series.empty()) out.push_back({"drift", "Divergence from the original", std::move(drift)});
}

/// After each number of tokens: how many continuations are still the original's.
void add_agreements(const Findings& found, std::vector<Figure>& out) {
  Plot plot{"Greedy continuations that are still alike", "tokens", "share of prompts, %", false, false, {}};
  for (const auto& [model, task] : found.agreements) {
    PlotSeries alike{model, {}, true, false};
    const json& lengths = list_of(task, "lengths");
    for (double tokens = 0; tokens <= std::min(number_or(task, "tokens", 0), 4096.0); ++tokens) {
      const auto reach = std::ranges::count_if(
          lengths, [&](const json& length) { return length.is_number() && length.get<double>() >= tokens; });
      alike.points.push_back({tokens, 100 * double(reach) / std::max(1.0, double(lengths.size())), 0, ""});
    }
    plot.series.push_back(std::move(alike));
  }
  if (!plot.series.empty()) out.push_back({"agreement", "Greedy continuations", std::move(plot)});
}

/// Stages that train block by block have a loss per block, the others one per step.
void add_losses(const Findings& found, std::vector<Figure>& out) {
  for (const auto& [run, stage] : found.stages) {
    const std::string method = text_or(stage, "method", "");
    const bool by_block = stage.contains("blocks");
    Plot plot{run + ": " + (by_block ? "block reconstruction" : method),
              by_block ? "block" : "step",
              by_block ? "relative output error" : "KL divergence per token, nats",
              false,
              true,
              {}};
    PlotSeries first{"first steps", {}, true, true}, last{"last steps", {}, true, true}, curve{method, {}, true, false};
    for (const json& block : list_of(stage, "blocks")) {
      if (!block.is_object() || number_or(block, "first", 0) <= 0) continue;  // not trained
      first.points.push_back({number_or(block, "block", 0), number_or(block, "first", 0), 0, ""});
      last.points.push_back({number_or(block, "block", 0), number_or(block, "last", 0), 0, ""});
    }
    for (const json& step : list_of(stage, "curve"))
      if (step.is_array() && step.size() == 2 && step[0].is_number() && step[1].is_number())
        curve.points.push_back({step[0].get<double>(), step[1].get<double>(), 0, ""});
    for (PlotSeries* series : {&first, &last, &curve})
      if (!series->points.empty()) plot.series.push_back(std::move(*series));
    if (!plot.series.empty()) out.push_back({"loss-" + run + "-" + method, "Training", std::move(plot)});
  }
}

json plot_json(const Plot& plot) {
  json all = json::array();
  for (const PlotSeries& series : plot.series) {
    json points = json::array();
    for (const PlotPoint& p : series.points) points.push_back({p.x, p.y, p.error, p.label});
    all.push_back({{"name", series.name}, {"line", series.has_line}, {"marks", series.has_marks}, {"points", points}});
  }
  return {{"kind", "plot"},
          {"title", plot.title},
          {"x_label", plot.x_label},
          {"y_label", plot.y_label},
          {"log_x", plot.log_x},
          {"log_y", plot.log_y},
          {"series", all}};
}

json heat_map_json(const HeatMap& map) {
  json cells = json::array();
  for (const auto& row : map.cells) {
    json values = json::array();
    for (const auto& cell : row) values.push_back(cell ? json(*cell) : json());
    cells.push_back(std::move(values));
  }
  return {{"kind", "heat_map"}, {"title", map.title}, {"rows", map.rows}, {"columns", map.columns}, {"cells", cells}};
}

}  // namespace

std::vector<Figure> figures_of(const Findings& found) {
  std::vector<Figure> all;
  add_quality(found, all);
  add_heat_maps(found, all);
  add_divergences(found, all);
  add_agreements(found, all);
  add_losses(found, all);
  return all;
}

std::string figure_svg(const Figure& figure) {
  return std::visit([](const auto& drawing) { return drawing.svg(); }, figure.drawing);
}

json figure_json(const Figure& figure) {
  const auto* const plot = std::get_if<Plot>(&figure.drawing);
  json drawn = plot != nullptr ? plot_json(*plot) : heat_map_json(std::get<HeatMap>(figure.drawing));
  drawn["name"] = figure.name;
  return drawn;
}

}  // namespace lowbit::cli
