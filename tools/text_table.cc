#include "text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lowbit::cli {
namespace {

std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width || width < 5) return text;
  const size_t tail = (width - 2) / 2, head = width - 2 - tail;
  return text.substr(0, head) + ".." + text.substr(text.size() - tail);
}

}  // namespace

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

std::string perplexity_text(double ppl) { return ppl < 1e7 ? fmt::format("{:.4f}", ppl) : fmt::format("{:.4g}", ppl); }

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

std::string TextTable::str() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : rows_) {
    std::vector<std::string> cells;
    for (size_t c = 0; c < columns_.size(); ++c) {
      cells.push_back(shortened(printable(c < row.size() ? row[c] : ""), columns_[c].max_width));
      widths[c] = std::max(widths[c], cells[c].size());
    }
    rows.push_back(std::move(cells));
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (c) line += "  ";
      line += columns_[c].align == Align::kLeft ? fmt::format("{:<{}}", cells[c], widths[c])
                                                : fmt::format("{:>{}}", cells[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  std::vector<std::string> titles, rules;
  for (size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    rules.push_back(std::string(widths[c], '-'));
  }
  add_line(titles);
  add_line(rules);
  for (const auto& row : rows) add_line(row);
  return out;
}

std::string in_quotes(std::string_view piece) {
  try {
    return nlohmann::json(piece).dump();
  } catch (const nlohmann::json::type_error&) {
    std::string out = "\"";
    for (const unsigned char byte : piece) out += fmt::format("\\x{:02X}", byte);
    return out + "\"";
  }
}

}  // namespace lowbit::cli
