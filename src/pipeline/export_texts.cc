#include "pipeline/export_texts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/try.h"
#include "io/json_text.h"
#include "lowbit/file.h"

namespace lowbit {

Status write_export_texts(const WeightSource& source, const nlohmann::json& quantization,
                          const std::string& directory) {
  LOWBIT_TRY_ASSIGN(nlohmann::json config, parse_json_object(source.config_json(), "config.json"));
  config["quantization_config"] = quantization;
  LOWBIT_TRY(write_text_file(directory + "/config.json", json_dump(config, 2) + "\n"));
  for (const auto& [name, text] : {std::pair("tokenizer.json", &source.tokenizer_json()),
                                   {"tokenizer_config.json", &source.tokenizer_config_json()},
                                   {"generation_config.json", &source.generation_config_json()}})
    if (!text->empty()) LOWBIT_TRY(write_text_file(fmt::format("{}/{}", directory, name), *text));
  return {};
}

}  // namespace lowbit
