#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lowbit/error.h"
#include "model/source.h"

namespace lowbit {

/// Writes config.json with `quantization` as its quantization_config, and the source's tokenizer and generation config,
/// to `directory`. Errors: kCorrupt, kIo.
Status write_export_texts(const WeightSource& source, const nlohmann::json& quantization, const std::string& directory);

}  // namespace lowbit
