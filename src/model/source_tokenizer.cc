#include "model/source_tokenizer.h"

#include <utility>

#include "base/try.h"

namespace lowbit {

Result<Tokenizer> make_tokenizer(const std::string& json, const std::string& config, const std::string& path) {
  if (json.empty())
    return fail(ErrorCode::kNotFound, path, "no tokenizer",
                "tokenizer.json beside the weights, or tokenizer.ggml.* metadata",
                "copy tokenizer.json and tokenizer_config.json of the model it was made from into that directory");
  auto spec = spec_from_tokenizer_json(json, config);
  auto tokenizer = spec ? Tokenizer::build(std::move(*spec)) : Result<Tokenizer>(tl::unexpected(spec.error()));
  if (!tokenizer) tokenizer.error().where = path + ": " + tokenizer.error().where;
  return tokenizer;
}

Result<Tokenizer> tokenizer_of(const WeightSource& source) {
  LOWBIT_TRY(source.tokenizer_status());
  return make_tokenizer(source.tokenizer_json(), source.tokenizer_config_json(), source.path());
}

}  // namespace lowbit
