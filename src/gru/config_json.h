#pragma once
// A configuration out of JSON that is already parsed.

#include "io/json_text.h"
#include "lowbit/gru.h"

namespace lowbit {

/// Members as in read_gru_config; `where` is for messages. Errors: kInvalidArgument.
Result<GruConfig> parse_gru_config(const nlohmann::json& json, const std::string& where, const GruConfig& base);

}  // namespace lowbit
