#pragma once
// The choices of a search and their reasons, as text and as JSON.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lowbit/quantize.h"

namespace lowbit::cli {

nlohmann::json choices_json(const std::vector<PartChoice>& parts);

/// One line per format: which layers have it, what they lose, and what the next smaller and larger sizes would.
std::string choices_table(const QuantizeReport& report);

/// Formats of embedding and head, which no budget counts; "" where nothing was chosen.
std::string embedding_head_text(const QuantizeReport& report);

}  // namespace lowbit::cli
