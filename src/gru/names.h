#pragma once
// Spellings that files and options share.

#include <optional>
#include <string>

#include "lowbit/gru.h"

namespace lowbit {

const char* granularity_name(GruGranularity g);  // "tensor", "gate", "row"
const char* table_mode_name(GruTableMode m);     // "fused", "seed", "direct"
const char* rounding_name(GruRounding r);        // "nearest", "feedback"
std::optional<GruGranularity> parse_granularity(const std::string& name);
std::optional<GruTableMode> parse_table_mode(const std::string& name);
std::optional<GruRounding> parse_rounding(const std::string& name);
std::optional<GruTensor> parse_gru_tensor(const std::string& name);

}  // namespace lowbit
