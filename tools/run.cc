// lowbit run: continues a prompt.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "generation_options.h"
#include "interrupt.h"
#include "lowbit/model.h"
#include "option_values.h"
#include "text_file.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct RunArguments {
  std::string model, prompt, file, trace, prompt_cache;
  bool parse_special = false, ignore_eos = false, logprobs = false, read_only_cache = false;
  ModelOptions model_options;
  GenerateOptions generate;
};

/// The prompt's tokens; for an empty prompt the token that starts a text.
Result<std::vector<TokenId>> prompt_tokens(const Tokenizer& tokenizer, const std::string& text, bool parse_special) {
  auto tokens = tokenizer.encode(text, {true, parse_special});
  if (!tokens || !tokens->empty()) return tokens;
  if (tokenizer.spec().bos_id) return std::vector<TokenId>{*tokenizer.spec().bos_id};
  return fail(ErrorCode::kInvalidArgument, "-p", "an empty prompt", "some text",
              "this model's tokenizer has no token that starts a text");
}

/// The tokens that the session takes from a prompt cache and leaves in it: all of the prompt but its last token, which
/// generation goes on from.
class PromptCache {
 public:
  explicit PromptCache(const RunArguments& arguments)
      : path_(arguments.prompt_cache), read_only_(arguments.read_only_cache) {}

  /// How many tokens of the prompt came from the file.
  Result<int64_t> read(Session& session, std::span<const TokenId> prompt) {
    if (path_.empty()) return 0;
    std::error_code ignored;
    if (!read_only_ && !std::filesystem::exists(path_, ignored)) return 0;
    if (const auto loaded = session.load(path_); !loaded) return tl::unexpected(loaded.error());
    const std::span<const TokenId> saved = session.tokens();
    const auto [differs, unused] = std::mismatch(prompt.begin(), prompt.end() - 1, saved.begin(), saved.end());
    whole_ = static_cast<size_t>(differs - prompt.begin()) == prompt.size() - 1;
    if (const Status cut = session.truncate(differs - prompt.begin()); !cut) return tl::unexpected(cut.error());
    return session.length();
  }
  /// Reads the prompt on, but for its last token. The seconds that took.
  Result<double> write(Session& session, std::span<const TokenId> prompt) const {
    if (path_.empty() || read_only_ || whole_) return 0.0;
    const auto start = std::chrono::steady_clock::now();
    const auto rest = prompt.first(prompt.size() - 1).subspan(static_cast<size_t>(session.length()));
    if (!rest.empty())
      if (const auto logits = session.prefill(rest); !logits) return tl::unexpected(logits.error());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (const Status saved = session.save(path_); !saved) return tl::unexpected(saved.error());
    return seconds.count();
  }

 private:
  std::string path_;
  bool read_only_, whole_ = false;
};

void report(Console& console, const Model& model, const Generation& generation) {
  const ModelInfo& info = model.info();
  console.debug("model: {} ({}, {:.1f} M parameters), activations {}, {} with {} threads", info.path, info.kind,
                static_cast<double>(info.parameters) / 1e6, info.activation, info.isa, info.threads);
  console.note(
      "load {:.2f} s; prompt {} tokens, {:.1f} tok/s; generated {} tokens, {:.1f} tok/s; peak "
      "{:.0f} MB; "
      "stopped by {}",
      info.load_s, generation.prompt_tokens, generation.prefill_tok_s(), generation.tokens.size(),
      generation.decode_tok_s(), static_cast<double>(peak_memory_bytes()) / 1e6, generation.stop_reason);
}

/// null where a number is not finite.
nlohmann::json to_json(const TokenLogprobs& token) {
  nlohmann::json top = nlohmann::json::array();
  for (const auto& [id, logprob] : token.top) top.push_back({{"token", id}, {"logprob", logprob}});
  return {{"token", token.token}, {"logprob", token.logprob}, {"top", std::move(top)}};
}

nlohmann::json report_json(const Model& model, const Session& session, const Generation& generation) {
  const ModelInfo& info = model.info();
  return {{"model", info.path},
          {"text", generation.text},
          {"tokens", generation.tokens},
          {"prompt_tokens", generation.prompt_tokens},
          {"prefill_tok_s", generation.prefill_tok_s()},
          {"decode_tok_s", generation.decode_tok_s()},
          {"load_s", info.load_s},
          {"peak_bytes", peak_memory_bytes()},
          {"weight_bytes", info.weight_bytes},
          {"device_bytes", model.device_bytes()},
          {"kv", info.kv},
          {"kv_bytes", info.kv_bytes},
          {"kv_used_bytes", session.kv_bytes()},
          {"activation", info.activation},
          {"isa", info.isa},
          {"threads", info.threads},
          {"stop_reason", generation.stop_reason},
          {"stop_text", generation.stop_reason == "stop" ? nlohmann::json(generation.stop_text) : nlohmann::json()}};
}

Status run_action(Console& console, RunArguments& arguments, const Compute& compute) {
  std::string text = arguments.prompt;
  if (!arguments.file.empty()) {
    auto from_file = read_text(arguments.file);
    if (!from_file) return tl::unexpected(from_file.error());
    text = std::move(*from_file);
  }
  auto model = open_model(console, arguments.model, compute, arguments.model_options);
  if (!model) return tl::unexpected(model.error());
  const auto prompt = prompt_tokens(model->tokenizer(), text, arguments.parse_special);
  if (!prompt) return tl::unexpected(prompt.error());

  Session session = model->session();
  PromptCache cache(arguments);
  const auto cached = cache.read(session, *prompt);
  if (!cached) return tl::unexpected(cached.error());
  const auto read_s = cache.write(session, *prompt);
  if (!read_s) return tl::unexpected(read_s.error());
  if (!arguments.trace.empty())
    if (Status started = session.start_trace(arguments.trace); !started) return started;
  InterruptFlag interrupt;
  arguments.generate.stop_at_eos = !arguments.ignore_eos;
  nlohmann::json logprobs = nlohmann::json::array();
  if (arguments.logprobs)
    arguments.generate.on_logprobs = [&](const TokenLogprobs& token) { logprobs.push_back(to_json(token)); };
  const auto rest = std::span(*prompt).subspan(static_cast<size_t>(session.length()));
  auto generation = session.generate(rest, arguments.generate, [&](std::string_view piece) {
    const bool heard = console.json() || console.write_out(piece);
    return heard && !InterruptFlag::is_raised();
  });
  // Also when the run has failed: its trace may say why.
  const Status traced = arguments.trace.empty() || InterruptFlag::is_raised() ? Status() : session.finish_trace();
  if (!generation) return tl::unexpected(generation.error());
  generation->prompt_tokens = static_cast<int64_t>(prompt->size()) - *cached;
  generation->prefill_s += *read_s;
  console.print("\n");
  if (InterruptFlag::is_raised()) return fail(ErrorCode::kCancelled, "lowbit run", "an interrupt");
  if (!traced) return traced;
  if (console.json()) {
    nlohmann::json document = report_json(*model, session, *generation);
    if (!arguments.prompt_cache.empty()) document["prompt_cached_tokens"] = *cached;
    if (arguments.logprobs) document["logprobs"] = std::move(logprobs);
    console.put_json(document);
  }
  report(console, *model, *generation);
  return {};
}

}  // namespace

void add_run_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<RunArguments>();
  Verb* verb = app.add_subcommand("run", "Continue a prompt");
  add_model_argument(*verb, arguments->model);
  Option* prompt =
      verb->add_option("-p,--prompt", arguments->prompt, "prompt; \"\" starts a text from nothing")->type_name("TEXT");
  Option* file = verb->add_option("--file", arguments->file, "prompt from a file; - is stdin")->type_name("FILE");
  prompt->excludes(file);
  verb->add_flag("--parse-special", arguments->parse_special, "text such as <|im_end|> in the prompt is that token");
  verb->add_flag("--ignore-eos", arguments->ignore_eos, "go on after the end of the text");
  verb->add_option("--trace", arguments->trace, "write the rows of every layer's input, and logits, for `lowbit trace`")
      ->type_name("FILE");
  Option* prompt_cache =
      verb->add_option(
              "--prompt-cache", arguments->prompt_cache,
              "a file with keys and values of a prompt: what this one has in common with it is not computed again; "
              "written where it lacks some of this one")
          ->type_name("FILE")
          ->excludes("--trace");
  verb->add_flag("--prompt-cache-ro", arguments->read_only_cache, "read it alone")->needs(prompt_cache);
  Option* logprobs =
      add_count_option(*verb, "--logprobs", arguments->generate.top_logprobs, {0, 1 << 20},
                       "log-probabilities of each token and of the K likeliest, in the document of --json");
  add_generation_options(*verb, arguments->generate);
  add_model_options(*verb, arguments->model_options);
  verb->callback([=, &invocation] {
    if (prompt->count() + file->count() == 0)
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit run", "no prompt", "-p TEXT or --file FILE", ""}};
    arguments->logprobs = logprobs->count() > 0;
    invocation.action = [arguments, &invocation](Console& console) {
      if (arguments->logprobs && !console.json())
        throw UsageError{{ErrorCode::kInvalidArgument, "--logprobs", "no --json", "both", ""}};
      return run_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
