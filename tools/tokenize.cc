// lowbit tokenize: text to ids and pieces, or ids to text.

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "generation_options.h"
#include "lowbit/model.h"
#include "lowbit/quantize.h"
#include "option_values.h"
#include "text_file.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct TokenizeArguments {
  std::string model, text, file;
  std::vector<TokenId> ids;  // --decode
  bool decode = false;
  EncodeOptions encode;
};

Status tokenize_action(Console& console, TokenizeArguments& arguments) {
  std::string text = arguments.text;
  if (!arguments.file.empty()) {
    auto from_file = read_text(arguments.file);
    if (!from_file) return tl::unexpected(from_file.error());
    text = std::move(*from_file);
  }
  const auto path = resolve_model(arguments.model);
  if (!path) return tl::unexpected(path.error());
  const auto tokenizer = open_tokenizer(*path);
  if (!tokenizer) return tl::unexpected(tokenizer.error());
  warn_of(console, *tokenizer);

  std::vector<TokenId> ids = arguments.ids;
  if (arguments.decode) {
    const auto decoded = tokenizer->decode(ids, {false});
    if (!decoded) return tl::unexpected(decoded.error());
    text = *decoded;
    console.print("{}\n", text);
  } else {
    auto encoded = tokenizer->encode(text, arguments.encode);
    if (!encoded) return tl::unexpected(encoded.error());
    ids = std::move(*encoded);
  }
  std::vector<std::string> pieces;
  for (const TokenId id : ids) pieces.emplace_back(tokenizer->piece(id));
  if (console.json()) {
    console.put_json({{"ids", ids}, {"pieces", pieces}, {"text", text}});
  } else if (!arguments.decode) {
    std::string lines;
    for (size_t i = 0; i < ids.size(); ++i) lines += fmt::format("{:>8}  {}\n", ids[i], in_quotes(pieces[i]));
    console.print("{}", lines);
    console.note("{} tokens", ids.size());
  }
  return {};
}

}  // namespace

void add_tokenize_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<TokenizeArguments>();
  Verb* verb = app.add_subcommand("tokenize", "Text to token ids and pieces, or back");
  verb->add_option("MODEL", arguments->model,
                   "checkpoint or Hugging Face directory, GGUF file, tokenizer.json, or `default`")
      ->required()
      ->type_name("");
  Option* prompt = verb->add_option("-p,--prompt", arguments->text, "text")->type_name("TEXT");
  Option* file = verb->add_option("--file", arguments->file, "text from a file; - is stdin")->type_name("FILE");
  Option* decode =
      verb->add_option_function(
              "--decode", [arguments](const std::string& ids) { arguments->ids = parse_ids("--decode", ids); },
              "ids between commas to text")
          ->type_name("IDS");
  verb->add_flag_callback(
      "--no-special", [arguments] { arguments->encode.add_special = false; }, "do not put BOS or EOS around the text");
  verb->add_flag("--parse-special", arguments->encode.parse_special, "text such as <|im_end|> is that token");
  verb->callback([=, &invocation] {
    if (prompt->count() + file->count() + decode->count() != 1)
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit tokenize",
                        fmt::format("{} texts", prompt->count() + file->count() + decode->count()),
                        "one of -p TEXT, --file FILE and --decode IDS", ""}};
    arguments->decode = decode->count() > 0;
    invocation.action = [arguments](Console& console) { return tokenize_action(console, *arguments); };
  });
}

}  // namespace lowbit::cli
