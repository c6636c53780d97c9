#pragma once
// The figures of a report: drawn as SVG here, as PNG by python -m lowbit.plots from figure_json().

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "report_findings.h"
#include "svg_plot.h"

namespace lowbit::cli {

struct Figure {
  // Of a PNG file: "perplexity", "errors-<model>", "divergence", "positions", "drift", "agreement", "loss-<run>".
  std::string name;
  std::string heading;  // figures in a row may share one
  std::variant<Plot, HeatMap> drawing;
};
std::vector<Figure> figures_of(const Findings& found);

std::string figure_svg(const Figure& figure);
/// {name, kind: "plot", title, x_label, y_label, log_x, log_y, series[{name, line, marks, points[[x, y, error,
/// label]]}]} or {name, kind: "heat_map", title, rows[], columns[], cells[][]}.
nlohmann::json figure_json(const Figure& figure);

}  // namespace lowbit::cli
