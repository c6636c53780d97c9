// lowbit chat: a conversation on the terminal, or with lines from stdin.

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "chat_session.h"
#include "generation_options.h"
#include "interrupt.h"
#include "line_reader.h"
#include "lowbit/quantize.h"
#include "option_values.h"
#include "text_file.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct ChatArguments {
  std::string model, system_text, render, session;
  ModelOptions model_options;
  GenerateOptions generate;
};

constexpr const char* kHelp =
    "/help   this text\n"
    "/reset  forget the conversation, keep the system text\n"
    "/stats  tokens and speed\n"
    "/quit   leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

nlohmann::json to_json(const ChatStats& stats) {
  return {{"turns", stats.turns},
          {"context_tokens", stats.context_tokens},
          {"context", stats.context},
          {"reused_tokens", stats.reused_tokens},
          {"dropped_messages", stats.dropped_messages},
          {"prompt_tokens", stats.prompt_tokens},
          {"generated_tokens", stats.generated_tokens},
          {"prefill_tok_s", stats.prefill_s > 0 ? static_cast<double>(stats.prompt_tokens) / stats.prefill_s : 0},
          {"decode_tok_s", stats.decode_s > 0 ? static_cast<double>(stats.generated_tokens) / stats.decode_s : 0}};
}

void print_stats(Console& console, const ChatStats& stats) {
  const nlohmann::json rates = to_json(stats);
  console.print(
      "{} turn{}; {} of {} tokens of context used; {} tokens read at {:.1f} tok/s ({} more came from the cache), {} "
      "written at {:.1f} tok/s\n",
      stats.turns, stats.turns == 1 ? "" : "s", stats.context_tokens, stats.context, stats.prompt_tokens,
      rates["prefill_tok_s"].get<double>(), stats.reused_tokens, stats.generated_tokens,
      rates["decode_tok_s"].get<double>());
}

/// One terminal or script talking with one session.
class ChatLoop {
 public:
  ChatLoop(Console& console, ChatSession& session)
      : console_(console),
        session_(session),
        by_hand_(::isatty(STDIN_FILENO) == 1 && console.stdout_is_terminal() && !console.json()) {}

  Status run() {
    if (by_hand_) console_.print("{}\n", "/help explains the commands; Ctrl-D leaves.");
    std::string line;
    while (console_.stdout_status()) {
      InterruptFlag::lower();
      if (InterruptFlag::ends_program()) return interrupted();
      if (by_hand_) console_.print("> ");
      const LineReader::Outcome outcome = reader_.next(line);
      if (InterruptFlag::is_raised()) {
        if (!by_hand_ || InterruptFlag::ends_program()) return interrupted();
        console_.print("\n");
        continue;
      }
      if (outcome == LineReader::Outcome::kEnd) break;
      if (outcome == LineReader::Outcome::kInterrupted || line.empty()) continue;
      if (line == "/quit" || line == "/exit") return {};
      if (line[0] == '/')
        command(line);
      else if (const Status status = answer(line); !status)
        return status;
    }
    if (by_hand_) console_.print("\n");
    return {};
  }

 private:
  static Status interrupted() { return fail(ErrorCode::kCancelled, "lowbit chat", "an interrupt"); }

  void command(const std::string& line) {
    if (line == "/help") {
      console_.print("{}", kHelp);
    } else if (line == "/stats") {
      print_stats(console_, session_.stats());
    } else if (line == "/reset") {
      session_.reset();
      console_.note("The conversation is forgotten.");
    } else {
      console_.warn(fmt::format("{} is no command; /help lists them", line));
    }
  }

  Status answer(const std::string& line) {
    const int64_t dropped = session_.stats().dropped_messages;
    const auto generation = session_.answer(line, [this](std::string_view piece) {
      const bool heard = console_.json() || console_.write_out(piece);
      return heard && !InterruptFlag::is_raised();
    });
    if (!generation) {
      // At a terminal a message that is too long is no reason to leave.
      if (!by_hand_) return tl::unexpected(generation.error());
      console_.error(generation.error());
      return {};
    }
    console_.print("\n");
    if (session_.stats().dropped_messages > dropped)
      console_.note("(the context is full: the oldest {} messages are forgotten)",
                    session_.stats().dropped_messages - dropped);
    if (InterruptFlag::ends_program()) return interrupted();
    if (InterruptFlag::is_raised())
      console_.note("(stopped)");
    else if (generation->stop_reason == "length" || generation->stop_reason == "context")
      console_.note("(cut off: {})", generation->stop_reason == "length" ? "-n sets the limit" : "the context is full");
    return {};
  }

  Console& console_;
  ChatSession& session_;
  LineReader reader_;
  bool by_hand_;
};

Status chat_action(Console& console, ChatArguments& arguments, const Compute& compute) {
  auto model = open_model(console, arguments.model, compute, arguments.model_options);
  if (!model) return tl::unexpected(model.error());
  const std::string path = model->info().path;
  auto session = ChatSession::start(std::move(*model), arguments.system_text, arguments.generate);
  if (!session) return tl::unexpected(session.error());
  std::error_code ignored;
  if (!arguments.session.empty() && std::filesystem::exists(arguments.session, ignored)) {
    if (const Status loaded = session->load(arguments.session); !loaded) return loaded;
    console.note("Goes on with {} messages of {}.", session->messages().size(), arguments.session);
  }
  InterruptFlag interrupt;
  const Status status = ChatLoop(console, *session).run();
  // Also of a conversation that was interrupted: what was said before is whole.
  if (!arguments.session.empty())
    if (const Status saved = session->save(arguments.session); !saved) return saved;
  if (!status || !console.json()) return status;
  nlohmann::json messages = nlohmann::json::array();
  for (const ChatMessage& message : session->messages())
    messages.push_back({{"role", message.role}, {"content", message.content}});
  console.put_json({{"model", path}, {"messages", messages}, {"stats", to_json(session->stats())}});
  return {};
}

/// Renders the model's template with variables, a JSON object such as {"messages": [...]}. Needs the tokenizer's files
/// alone.
Status render_action(Console& console, const ChatArguments& arguments) {
  ChatInput input;
  auto variables = read_text(arguments.render);
  if (!variables) return tl::unexpected(variables.error());
  if (variables->empty())
    return fail(ErrorCode::kInvalidArgument, arguments.render, "nothing",
                R"({"messages": [{"role": "user", "content": "..."}]})");
  input.extra_json = std::move(*variables);
  const auto path = resolve_model(arguments.model);
  if (!path) return tl::unexpected(path.error());
  const auto tokenizer = open_tokenizer(*path);
  if (!tokenizer) return tl::unexpected(tokenizer.error());
  warn_of(console, *tokenizer);
  const TokenizerSpec& spec = tokenizer->spec();
  if (spec.chat_template.empty())
    return fail(ErrorCode::kUnsupported, *path, "no chat template", "a model trained for conversation");
  const auto parsed = ChatTemplate::parse(spec.chat_template);
  if (!parsed) return tl::unexpected(parsed.error());
  if (spec.bos_id) input.bos_token = spec.tokens.at(static_cast<size_t>(*spec.bos_id));
  if (spec.eos_id) input.eos_token = spec.tokens.at(static_cast<size_t>(*spec.eos_id));
  const auto rendered = parsed->render(input);
  if (!rendered) return tl::unexpected(rendered.error());
  if (console.json()) {
    console.put_json({{"model", *path}, {"text", *rendered}});
  } else {
    console.print("{}", *rendered);
  }
  return {};
}

}  // namespace

void add_chat_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<ChatArguments>();
  arguments->generate.max_tokens = 512;
  Verb* verb = app.add_subcommand("chat", "A conversation, on the terminal or from stdin");
  add_model_argument(*verb, arguments->model);
  Option* system_text =
      verb->add_option("--system", arguments->system_text, "what the model is told first")->type_name("TEXT");
  verb->add_option(
          "--render", arguments->render,
          "print what the chat template makes of {\"messages\": [...]} in this JSON file and leave; - is stdin")
      ->type_name("FILE")
      ->excludes(system_text);
  verb->add_option("--session", arguments->session,
                   "a file: the conversation in it goes on, with its keys and values, and is saved at the end")
      ->type_name("FILE");
  add_generation_options(*verb, arguments->generate);
  add_model_options(*verb, arguments->model_options);
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation](Console& console) {
      if (!arguments->render.empty()) return render_action(console, *arguments);
      return chat_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
