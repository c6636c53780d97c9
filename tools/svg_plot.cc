#include "svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace lowbit::cli {
namespace {

constexpr double kWidth = 760, kHeight = 440, kLeft = 70, kRight = 170, kTop = 30, kBottom = 50;
constexpr std::array kColours = {"#1f5fa8", "#c2501c", "#2f7d32", "#7a3fa0",
                                 "#8a6d00", "#00808a", "#b03060", "#555555"};

const char* colour(size_t i) { return kColours[i % kColours.size()]; }

/// Values of one axis on its pixels.
class Axis {
 public:
  Axis(bool is_log, double first_pixel, double last_pixel) : is_log_(is_log), first_(first_pixel), last_(last_pixel) {}

  bool accepts(double v) const { return std::isfinite(v) && (!is_log_ || v > 0); }
  void include(double v) {
    if (!accepts(v)) return;
    low_ = std::min(low_, to_line(v));
    high_ = std::max(high_, to_line(v));
  }
  void finish() {
    if (low_ > high_) low_ = 0, high_ = 1;
    const double margin = high_ > low_ ? 0.04 * (high_ - low_) : 0.5;
    low_ -= margin;
    high_ += margin;
  }
  double pixel(double v) const { return first_ + (to_line(v) - low_) / (high_ - low_) * (last_ - first_); }
  std::vector<double> ticks() const {
    std::vector<double> all;
    if (is_log_) {
      const bool is_long = high_ - low_ > 3;
      const int first = static_cast<int>(std::floor(low_)), last = static_cast<int>(std::floor(high_));
      for (int decade = first; decade <= last; ++decade)
        for (const double step : {1.0, 2.0, 5.0})
          if (const double v = step * std::pow(10, decade);
              (step == 1 || !is_long) && to_line(v) >= low_ && to_line(v) <= high_)
            all.push_back(v);
      if (all.size() > 1) return all;
      all.clear();
    }
    const double rough = (high_ - low_) / 6, unit = std::pow(10, std::floor(std::log10(rough)));
    const double step = unit * (rough / unit < 1.5 ? 1 : rough / unit < 3.5 ? 2 : rough / unit < 7.5 ? 5 : 10);
    const auto first = static_cast<int64_t>(std::ceil(low_ / step)),
               last = static_cast<int64_t>(std::floor(high_ / step));
    for (int64_t i = first; i <= last; ++i) {
      const double v = static_cast<double>(i) * step;
      all.push_back(is_log_ ? std::pow(10, v) : v);
    }
    return all;
  }

 private:
  double to_line(double v) const { return is_log_ ? std::log10(v) : v; }
  bool is_log_;
  double first_, last_, low_ = INFINITY, high_ = -INFINITY;
};

std::string text_at(double x, double y, const std::string& anchor, const std::string& text, const char* extra = "") {
  return fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}'{}>{}</text>", x, y, anchor, extra,
                     html_escape(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* stroke, double width) {
  return fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='{}' stroke-width='{}'/>", x1, y1,
                     x2, y2, stroke, width);
}

std::string frame(const Plot& plot, const Axis& x, const Axis& y) {
  std::string out = text_at(kLeft, 18, "start", plot.title, " class='title'");
  for (const double t : x.ticks()) {
    out += line_at(x.pixel(t), kTop, x.pixel(t), kHeight - kBottom, "#ddd", 1);
    out += text_at(x.pixel(t), kHeight - kBottom + 16, "middle", fmt::format("{:.4g}", t));
  }
  for (const double t : y.ticks()) {
    out += line_at(kLeft, y.pixel(t), kWidth - kRight, y.pixel(t), "#ddd", 1);
    out += text_at(kLeft - 6, y.pixel(t) + 4, "end", fmt::format("{:.4g}", t));
  }
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", plot.x_label);
  out += fmt::format("<g transform='translate(14 {:.0f}) rotate(-90)'>{}</g>", (kTop + kHeight - kBottom) / 2,
                     text_at(0, 0, "middle", plot.y_label));
  return out;
}

struct Box {
  double left, top, right, bottom;
  bool overlaps(const Box& o) const { return left < o.right && o.left < right && top < o.bottom && o.top < bottom; }
};

/// Finds room for the labels of points, so that none covers another or a mark.
class Labels {
 public:
  void add_mark(double x, double y) { taken_.push_back({x - 4, y - 4, x + 4, y + 4}); }

  /// The label beside the point, or further off with a thin line to it; "" when there is no room.
  std::string place(double x, double y, const std::string& label) {
    const double width = 5.2 * static_cast<double>(label.size()) + 2;
    for (const double away : {0.0, 12.0, 24.0, 36.0, 50.0, 65.0, 80.0, 100.0})
      for (const double side : {1.0, -1.0})
        for (const double up : {-1.0, 1.0}) {
          const double at_x = x + side * (6 + away / 3), at_y = y + up * (4 + away);
          const double left = side > 0 ? at_x : at_x - width;
          const Box box{left, at_y - 6, left + width, at_y + 5};
          if (left < kLeft || box.right > kWidth || box.top < kTop - 10 || box.bottom > kHeight - kBottom) continue;
          if (box.right > kWidth - kRight + 8 && box.top < legend_bottom_) continue;
          if (std::ranges::any_of(taken_, [&](const Box& b) { return b.overlaps(box); })) continue;
          taken_.push_back(box);
          const std::string text = text_at(at_x, at_y + 3, side > 0 ? "start" : "end", label, " class='small'");
          return (away > 0 ? line_at(x, y, at_x, at_y, "#bbb", 0.7) : "") + text;
        }
    return "";
  }
  void set_legend(double bottom) { legend_bottom_ = bottom; }

 private:
  std::vector<Box> taken_;
  double legend_bottom_ = 0;
};

std::string draw(const PlotSeries& series, const Axis& x, const Axis& y, const char* stroke, Labels& labels) {
  std::string path, marks;
  for (const PlotPoint& p : series.points) {
    if (!x.accepts(p.x) || !y.accepts(p.y)) continue;
    const double px = x.pixel(p.x), py = y.pixel(p.y);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", px, py);
    if (p.error > 0 && y.accepts(p.y - p.error))
      marks += line_at(px, y.pixel(p.y - p.error), px, y.pixel(p.y + p.error), stroke, 1);
    if (series.has_marks)
      marks += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3.5' fill='{}'>{}</circle>", px, py, stroke,
                           p.label.empty() ? "" : "<title>" + html_escape(p.label) + "</title>");
    if (!p.label.empty()) marks += labels.place(px, py, p.label);
  }
  if (series.has_line && !path.empty())
    path = fmt::format("<path d='{}' fill='none' stroke='{}' stroke-width='1.6'/>", path, stroke);
  return (series.has_line ? path : "") + marks;
}

/// A cell of a heat map; share 0 (light) to 1 (dark).
std::string heat_cell(double x, double y, double share, const std::string& title) {
  constexpr std::array<std::array<double, 3>, 3> kShades = {{{236, 240, 248}, {242, 166, 90}, {150, 22, 40}}};
  const size_t below = share < 0.5 ? 0 : 1;
  const double part = 2 * share - static_cast<double>(below);
  std::array<double, 3> c{};
  for (size_t i = 0; i < 3; ++i) c[i] = kShades[below][i] + part * (kShades[below + 1][i] - kShades[below][i]);
  return fmt::format(
      "<rect x='{:.0f}' y='{:.0f}' width='19' height='19' fill='rgb({:.0f},{:.0f},{:.0f})'><title>{}</title></rect>", x,
      y, c[0], c[1], c[2], html_escape(title));
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

std::string Plot::svg() const {
  Axis x(log_x, kLeft, kWidth - kRight), y(log_y, kHeight - kBottom, kTop);
  for (const PlotSeries& s : series)
    for (const PlotPoint& p : s.points) {
      if (!x.accepts(p.x) || !y.accepts(p.y)) continue;
      x.include(p.x);
      for (const double v : {p.y, p.y - p.error, p.y + p.error}) y.include(v);
    }
  x.finish();
  y.finish();
  std::string out = fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role='img'>", kWidth, kHeight) + frame(*this, x, y);
  Labels labels;
  labels.set_legend(kTop + 10 + 18 * static_cast<double>(series.size()));
  for (const PlotSeries& s : series)
    for (const PlotPoint& p : s.points)
      if (x.accepts(p.x) && y.accepts(p.y)) labels.add_mark(x.pixel(p.x), y.pixel(p.y));
  for (size_t i = 0; i < series.size(); ++i) {
    out += draw(series[i], x, y, colour(i), labels);
    const double at = kTop + 10 + 18 * static_cast<double>(i);
    out += fmt::format("<rect x='{:.0f}' y='{:.0f}' width='10' height='10' fill='{}'/>", kWidth - kRight + 12, at - 9,
                       colour(i));
    out += text_at(kWidth - kRight + 27, at, "start", series[i].name, " class='small'");
  }
  return out + "</svg>\n";
}

std::string HeatMap::svg() const {
  constexpr double kCell = 20, kNames = 90;
  double low = INFINITY, high = -INFINITY;
  for (const auto& row : cells)
    for (const auto& v : row)
      if (v && *v > 0 && std::isfinite(*v)) low = std::min(low, std::log(*v)), high = std::max(high, std::log(*v));
  const double width = kNames + kCell * static_cast<double>(columns.size()) + 10,
               height = 80 + kCell * static_cast<double>(rows.size());
  std::string out =
      fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' style='max-width:{:.0f}px' role='img'>", width, height, width);
  out += text_at(0, 16, "start", title, " class='title'");
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = 28 + kCell * static_cast<double>(r);
    out += text_at(kNames - 6, y + 14, "end", rows[r], " class='small'");
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto& v = cells[r][c];
      if (!v || !(*v > 0)) continue;
      out +=
          heat_cell(kNames + kCell * static_cast<double>(c), y, high > low ? (std::log(*v) - low) / (high - low) : 0.5,
                    fmt::format("{} {}: {:.4g}", rows[r], columns[c], *v));
    }
  }
  if (high >= low) {  // the scale, below
    constexpr int kShades = 5;
    for (int i = 0; i < kShades; ++i) {
      const double share = high > low ? i / (kShades - 1.0) : 0.5,
                   value = std::exp(low + (high - low) * i / (kShades - 1.0));
      const double x = kNames + 76.0 * i;
      out += heat_cell(x, height - 28, share, "") +
             text_at(x + 24, height - 14, "start", fmt::format("{:.2g}", value), " class='small'");
    }
  }
  for (size_t c = 0; c < columns.size(); c += 5)
    out +=
        text_at(kNames + kCell * (static_cast<double>(c) + 0.5), height - 38, "middle", columns[c], " class='small'");
  return out + "</svg>\n";
}

}  // namespace lowbit::cli
