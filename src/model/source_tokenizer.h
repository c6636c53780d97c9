#pragma once

#include <string>

#include "lowbit/error.h"
#include "lowbit/tokenizer.h"
#include "model/source.h"

namespace lowbit {

/// From the texts of tokenizer.json and tokenizer_config.json (which may be empty); `path` is for messages. Errors:
/// kNotFound (no tokenizer.json), kCorrupt, kUnsupported.
Result<Tokenizer> make_tokenizer(const std::string& json, const std::string& config, const std::string& path);

Result<Tokenizer> tokenizer_of(const WeightSource& source);

}  // namespace lowbit
