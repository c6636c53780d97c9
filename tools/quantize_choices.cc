#include "quantize_choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "text_table.h"

namespace lowbit::cli {
namespace {

/// "3 up_proj" of the names that end so, in the order in which they come.
std::string count_by_kind(const std::vector<std::string>& layers) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const std::string& layer : layers) {
    const std::string kind = layer.substr(layer.rfind('.') + 1);
    const auto it = std::ranges::find(kinds, kind, &std::pair<std::string, int>::first);
    if (it == kinds.end())
      kinds.emplace_back(kind, 1);
    else
      ++it->second;
  }
  std::vector<std::string> parts;
  for (const auto& [kind, count] : kinds) parts.push_back(fmt::format("{} {}", count, kind));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

nlohmann::json choices_json(const std::vector<PartChoice>& parts) {
  const auto size_json = [](const PartChoice::Size& size) {
    return nlohmann::json{
        {"format", size.format}, {"bits_per_weight", size.bits_per_weight}, {"divergence", size.divergence}};
  };
  nlohmann::json choices = nlohmann::json::array();
  for (const PartChoice& part : parts) {
    choices.push_back({{"layers", part.layers}, {"chosen", size_json(part.chosen)}, {"smaller", {}}, {"larger", {}}});
    if (part.smaller) choices.back()["smaller"] = size_json(*part.smaller);
    if (part.larger) choices.back()["larger"] = size_json(*part.larger);
  }
  return choices;
}

std::string embedding_head_text(const QuantizeReport& report) {
  std::string text;
  for (const PartChoice& end : report.embedding_head)
    text += fmt::format(
        "{}: {}, {:.3f} bits per weight beside these, divergence {:.4f}{}\n", fmt::join(end.layers, ", "),
        end.chosen.format, end.chosen.bits_per_weight, end.chosen.divergence,
        end.smaller ? fmt::format("; {} would cost {:.4f}", end.smaller->format, end.smaller->divergence) : "");
  return text;
}

std::string choices_table(const QuantizeReport& report) {
  struct Sum {
    std::vector<std::string> layers;
    double bits = 0, lost = 0, smaller = 0, larger = 0;
  };
  std::map<std::string, Sum> sums;
  for (const PartChoice& part : report.choices) {
    Sum& sum = sums[part.chosen.format];
    sum.layers.insert(sum.layers.end(), part.layers.begin(), part.layers.end());
    sum.bits = std::max(sum.bits, part.chosen.bits_per_weight);
    sum.lost += part.chosen.divergence;
    sum.smaller += part.smaller ? part.smaller->divergence : part.chosen.divergence;
    sum.larger += part.larger ? part.larger->divergence : part.chosen.divergence;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.second.bits > b.second.bits; });
  TextTable table({{"chosen", Align::kLeft, 24},
                   {"bits/weight", Align::kRight},
                   {"divergence", Align::kRight},
                   {"one size smaller", Align::kRight},
                   {"one larger", Align::kRight},
                   {"layers", Align::kLeft, 72}});
  for (const auto& [format, sum] : rows)
    table.add({format, fmt::format("{:.3f}", sum.bits), fmt::format("{:.4f}", sum.lost),
               fmt::format("{:.4f}", sum.smaller), fmt::format("{:.4f}", sum.larger), count_by_kind(sum.layers)});
  return table.str();
}

}  // namespace lowbit::cli
