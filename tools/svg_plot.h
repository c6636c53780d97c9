#pragma once
// Plots as inline SVG: no scripts, no fonts, no files beside the page.

#include <optional>
#include <string>
#include <vector>

namespace lowbit::cli {

/// & < > " and ' as entities; control characters but newline and tab left out.
std::string html_escape(const std::string& text);

struct PlotPoint {
  double x = 0, y = 0;
  double error = 0;   // half the bar's height
  std::string label;  // beside the point; may be empty
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
  bool has_line = true, has_marks = true;
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<PlotSeries> series;

  /// Points that cannot be drawn (not finite, not positive on a log axis) are left out.
  std::string svg() const;
};

struct HeatMap {
  std::string title;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<std::optional<double>>> cells;  // [rows][columns], > 0; darker is more, by logarithm

  std::string svg() const;
};

}  // namespace lowbit::cli
