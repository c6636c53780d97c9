#pragma once
// The normalizer, pre_tokenizer and decoder sections of tokenizer.json, read and written.

#include <vector>

#include "lowbit/tokenizer.h"
#include "text/json_input.h"

namespace lowbit::text {

Result<std::vector<NormalizerStep>> read_normalizer(const Json& json);
Result<std::vector<PreTokenizerStep>> read_pre_tokenizer(const Json& json);
Result<std::vector<DecoderStep>> read_decoder(const Json& json);

Json write_normalizer(const std::vector<NormalizerStep>& steps);
Json write_pre_tokenizer(const std::vector<PreTokenizerStep>& steps);
Json write_decoder(const std::vector<DecoderStep>& steps);

}  // namespace lowbit::text
