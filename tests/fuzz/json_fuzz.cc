// One text: what reads config.json, recipes, indexes and encodings, and what reads tokenizer_config.json.

#include "fuzz_limits.h"
#include "io/json_text.h"
#include "text/json_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using lowbit::fuzz::require;
  const lowbit::fuzz::TimeLimit limit;
  const std::string_view text = lowbit::fuzz::text_of(data, size);
  const auto object = lowbit::parse_json_object(text, "fuzz");
  const auto tree = lowbit::text::parse_json(text, "fuzz", std::size_t{1} << 24, 64);
  if (!object) {
    require(!object.error().where.empty(), "an error without a place");
    return 0;
  }
  require(tree.has_value(), "an object that one reader takes and the other does not");
  require(*tree == *object, "two readers that differ");
  const std::string written = lowbit::json_dump(*object);
  const auto again = lowbit::parse_json_object(written, "fuzz");
  require(again && *again == *object, "an object that does not survive writing");
  return 0;
}
