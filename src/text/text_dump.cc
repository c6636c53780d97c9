// The program by which scripts compare lowbit's tokenizers and chat templates: reads texts, writes ids and texts. Not
// installed.
//
//   lowbit_text_dump convert FIELDS.json OUT_DIR   GGUF fields as JSON -> OUT_DIR/tokenizer{,_config}.json
//   lowbit_text_dump encode TOKENIZER.json [special] < texts > ids
//   lowbit_text_dump render < templates > texts    lines of JSON: a template as a text, {"text": ...} or {"error": ...}
//
// texts: 4 bytes of little-endian length, then the bytes, repeated. ids: one line per text; a line ends in " !" when
// decode does not give the text back.

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "lowbit/chat_template.h"
#include "lowbit/tokenizer.h"
#include "text/json_input.h"

namespace {

using lowbit::Result;
using lowbit::text::Json;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int complain(const lowbit::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

lowbit::GgufTokenizerFields read_fields(const Json& json) {
  lowbit::GgufTokenizerFields f;
  f.model = json.value("model", "");
  f.pre = json.value("pre", "");
  f.architecture = json.value("architecture", "");
  f.tokens = json.value("tokens", std::vector<std::string>());
  f.scores = json.value("scores", std::vector<float>());
  f.token_type = json.value("token_type", std::vector<std::int32_t>());
  f.merges = json.value("merges", std::vector<std::string>());
  const auto number = [&](const char* key, std::optional<std::int64_t>& to) {
    if (json.contains(key)) to = json[key].get<std::int64_t>();
  };
  number("bos_token_id", f.bos_token_id);
  number("eos_token_id", f.eos_token_id);
  number("unknown_token_id", f.unknown_token_id);
  number("padding_token_id", f.padding_token_id);
  const auto flag = [&](const char* key, std::optional<bool>& to) {
    if (json.contains(key)) to = json[key].get<bool>();
  };
  flag("add_bos_token", f.add_bos_token);
  flag("add_eos_token", f.add_eos_token);
  flag("add_space_prefix", f.add_space_prefix);
  f.chat_template = json.value("chat_template", "");
  return f;
}

int convert(const std::string& fields_path, const std::string& out_dir) {
  const auto json = lowbit::text::parse_json(read_file(fields_path), fields_path, 1u << 30, 8);
  if (!json) return complain(json.error());
  const auto spec = lowbit::spec_from_gguf_fields(read_fields(*json));
  if (!spec) return complain(spec.error());
  const auto tokenizer = lowbit::to_tokenizer_json(*spec);
  if (!tokenizer) return complain(tokenizer.error());
  const auto config = lowbit::to_tokenizer_config_json(*spec);
  if (!config) return complain(config.error());
  std::ofstream(out_dir + "/tokenizer.json") << *tokenizer;
  std::ofstream(out_dir + "/tokenizer_config.json") << *config;
  return 0;
}

int encode(const std::string& path, bool parse_special) {
  auto spec = lowbit::spec_from_tokenizer_json(read_file(path));
  if (!spec) return complain(spec.error());
  const auto tokenizer = lowbit::Tokenizer::build(std::move(*spec));
  if (!tokenizer) return complain(tokenizer.error());
  unsigned char head[4];
  while (std::cin.read(reinterpret_cast<char*>(head), 4)) {
    std::string text(head[0] | head[1] << 8 | head[2] << 16 | static_cast<std::size_t>(head[3]) << 24, '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    const auto ids = tokenizer->encode(text, {.add_special = false, .parse_special = parse_special});
    if (!ids) return complain(ids.error());
    std::string line;
    for (const lowbit::TokenId id : *ids) line += std::to_string(id) + ' ';
    const auto back = tokenizer->decode(*ids, {.skip_special = false});
    if (!back) return complain(back.error());
    if (*back != text) line += '!';
    std::cout << line << '\n';
  }
  return 0;
}

int render() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto source = lowbit::text::parse_json(line, "a line", 1u << 30, 8);
    if (!source) return complain(source.error());
    const auto* const text = source->get_ptr<const std::string*>();
    const auto parsed = lowbit::ChatTemplate::parse(text != nullptr ? *text : "");
    const auto rendered = parsed ? parsed->render_json("{}") : Result<std::string>(tl::unexpected(parsed.error()));
    Json answer = Json::object();
    answer[rendered ? "text" : "error"] = rendered ? *rendered : rendered.error().message();
    std::cout << answer.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 4 && std::strcmp(argv[1], "convert") == 0) return convert(argv[2], argv[3]);
  if (argc >= 3 && std::strcmp(argv[1], "encode") == 0)
    return encode(argv[2], argc > 3 && std::strcmp(argv[3], "special") == 0);
  if (argc == 2 && std::strcmp(argv[1], "render") == 0) return render();
  std::fprintf(stderr,
               "usage: lowbit_text_dump convert FIELDS.json OUT_DIR | encode TOKENIZER.json [special] | render\n");
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
