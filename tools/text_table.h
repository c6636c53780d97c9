#pragma once
// Tables of text that fit a terminal of 100 columns.

#include <string>
#include <string_view>
#include <vector>

namespace lowbit::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  size_t max_width = 100;  // longer cells lose their middle
};

class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  /// Header, rule and rows, each line ended; control characters shown as '?'.
  std::string str() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Text from a file made harmless for a terminal: control characters become '?'.
std::string printable(std::string text);

/// A token's piece between quotes; the bytes of one that is not whole characters as \\xNN.
std::string in_quotes(std::string_view piece);
/// "11.5 MB": 1 MB = 10^6 bytes.
std::string bytes_text(double bytes);
/// 23.4735; of a broken model 5.335e+100.
std::string perplexity_text(double ppl);

}  // namespace lowbit::cli
