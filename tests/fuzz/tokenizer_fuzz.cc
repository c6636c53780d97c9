// Three texts between bytes 0: tokenizer.json, tokenizer_config.json, a text. Loads, encodes, decodes, writes and loads
// again.

#include "fuzz_limits.h"
#include "lowbit/tokenizer.h"

namespace {

using lowbit::fuzz::require;

void use(const lowbit::Tokenizer& t, std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids = t.encode(text, {.parse_special = special});
    if (!ids) {
      require(!ids.error().where.empty(), "an error without a place");
      continue;
    }
    for (const lowbit::TokenId id : *ids)
      require(id >= 0 && static_cast<std::size_t>(id) < t.vocab_size(), "an id outside the vocabulary");
    const auto back = t.decode(*ids, {.skip_special = false});
    require(back.has_value(), "ids of encode that decode refuses");
    lowbit::StreamDecoder stream(t);
    for (const lowbit::TokenId id : *ids) require(stream.push(id).has_value(), "ids of encode that a stream refuses");
    stream.flush();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  std::string_view rest = lowbit::fuzz::text_of(data, size);
  const std::string_view json = lowbit::fuzz::next_part(rest), config = lowbit::fuzz::next_part(rest);
  auto spec = lowbit::spec_from_tokenizer_json(json, config);
  if (!spec) {
    require(!spec.error().where.empty(), "an error without a place");
    return 0;
  }
  const auto t = lowbit::Tokenizer::build(*spec);
  if (!t) return 0;
  use(*t, rest);
  const auto written = lowbit::to_tokenizer_json(*spec);
  require(written.has_value(), "a tokenizer that cannot be written");
  return 0;
}
