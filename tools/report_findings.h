#pragma once
// The findings that a report shows, from the JSON of `quantize`, `eval`, bench/quality and recovery.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/error.h"
#include "svg_plot.h"

namespace lowbit::cli {

double number_or(const nlohmann::json& object, const char* key, double otherwise);
std::string text_or(const nlohmann::json& object, const char* key, const std::string& otherwise);
/// The array of that name; empty when there is none.
const nlohmann::json& list_of(const nlohmann::json& object, const char* key);

/// The findings of all inputs, by kind.
struct Findings {
  PlotSeries own{"lowbit", {}, false, true};
  std::vector<PlotSeries> points;  // of tables: bits per weight against the ratio of perplexities
  std::map<std::string, std::map<std::string, double>> errors;      // by model, then by layer
  std::vector<std::pair<std::string, nlohmann::json>> comparisons;  // name of the model, a task `kld` or `drift`
  std::vector<std::pair<std::string, nlohmann::json>> agreements;   // the same, a task `agreement`
  std::vector<std::pair<std::string, nlohmann::json>> stages;       // name of the run, a stage of recovery
  std::string choices;                                              // rows of an HTML table
  int64_t documents = 0;

  bool empty() const {
    return points.empty() && errors.empty() && comparisons.empty() && agreements.empty() && stages.empty() &&
           choices.empty();
  }
};

/// A document of `eval`, of the model `name`.
void read_evaluation(const std::string& name, const nlohmann::json& document, Findings& out);
/// A directory with JSON files, or one such file. Errors: kIo, kCorrupt (not a JSON object).
Status read_findings(const std::string& input, Findings& out);

}  // namespace lowbit::cli
