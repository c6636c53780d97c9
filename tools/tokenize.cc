// lowbit tokenize: text to ids and pieces, or ids to text.

#include <fmt/compile.h>
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

// A token's piece as it is printed. A text of millions of tokens has few of them.
class Pieces {
 public:
  Pieces(const Tokenizer& tokenizer, std::string (*print)(std::string_view))
      : tokenizer_(tokenizer), print_(print), printed_(tokenizer.vocab_size()) {}

  const std::string& of(TokenId id) {
    std::string& printed = printed_[id];
    if (printed.empty()) printed = print_(tokenizer_.piece(id));
    return printed;
  }

 private:
  const Tokenizer& tokenizer_;
  std::string (*print_)(std::string_view);
  std::vector<std::string> printed_;  // by id
};

// stdout, a little at a time. Formats are compiled, since millions of tokens are printed.
class Output {
 public:
  explicit Output(Console& console) : console_(console) {}
  template <class Format, class... Args>
  void put(const Format& format, const Args&... args) {
    fmt::format_to(fmt::appender(buffer_), format, args...);
    if (buffer_.size() >= kFlushBytes) flush();
  }
  void flush() {
    console_.write_out({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }

 private:
  static constexpr size_t kFlushBytes = size_t{1} << 16;
  Console& console_;
  fmt::memory_buffer buffer_;
};

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// As Console::put_json prints it, without a tree of all tokens.
void write_json(Console& console, const Tokenizer& tokenizer, const std::vector<TokenId>& ids, std::string_view text) {
  Pieces pieces(tokenizer, json_text);
  Output out(console);
  const auto list = [&](const char* name, auto element) {
    out.put(FMT_COMPILE("  \"{}\": ["), name);
    for (size_t i = 0; i < ids.size(); ++i) out.put(FMT_COMPILE("{}\n    {}"), i == 0 ? "" : ",", element(ids[i]));
    out.put(FMT_COMPILE("{}],\n"), ids.empty() ? "" : "\n  ");
  };
  out.put(FMT_COMPILE("{{\n"));
  list("ids", [](TokenId id) { return id; });
  list("pieces", [&](TokenId id) -> const std::string& { return pieces.of(id); });
  out.put(FMT_COMPILE("  \"text\": {}\n}}\n"), json_text(text));
  out.flush();
}

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
  if (console.json()) {
    write_json(console, *tokenizer, ids, text);
  } else if (!arguments.decode) {
    Pieces pieces(*tokenizer, in_quotes);
    Output out(console);
    for (const TokenId id : ids) out.put(FMT_COMPILE("{:>8}  {}\n"), id, pieces.of(id));
    out.flush();
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
