#include "chat_session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace lowbit::cli {
namespace {

constexpr int64_t kRoomForAnswer = 32;  // tokens

}  // namespace

ChatSession::ChatSession(Model model, std::string system_text, GenerateOptions options)
    : model_(std::move(model)),
      sequence_(model_.session()),
      system_text_(std::move(system_text)),
      options_(std::move(options)) {
  reset();
}

Result<ChatSession> ChatSession::start(Model model, std::string system_text, GenerateOptions options) {
  if (!model.chat_template())
    return fail(ErrorCode::kUnsupported, model.info().path, "no chat template", "a model trained for conversation",
                "use `lowbit run`");
  return ChatSession(std::move(model), std::move(system_text), std::move(options));
}

void ChatSession::reset() {
  messages_.clear();
  if (!system_text_.empty()) messages_.push_back({"system", system_text_});
}

Result<std::vector<TokenId>> ChatSession::render() const {
  const auto text = model_.chat_text({.messages = messages_});
  if (!text) return tl::unexpected(text.error());
  // The template writes the special tokens itself, BOS included.
  return model_.tokenizer().encode(*text, {.add_special = false, .parse_special = true});
}

Result<std::vector<TokenId>> ChatSession::render_to_fit() {
  const size_t first = system_text_.empty() ? 0 : 1;
  while (true) {
    auto tokens = render();
    if (!tokens) return tokens;
    const int64_t room = model_.info().context - static_cast<int64_t>(tokens->size());
    if (room >= std::min(kRoomForAnswer, options_.max_tokens)) return tokens;
    if (messages_.size() < first + 3)
      return fail(ErrorCode::kInvalidArgument, "message", std::to_string(tokens->size()) + " tokens",
                  "at most " + std::to_string(model_.info().context - kRoomForAnswer),
                  "a larger context: -c " + std::to_string(2 * tokens->size()));
    const auto oldest = messages_.begin() + static_cast<std::ptrdiff_t>(first);
    messages_.erase(oldest, oldest + 2);
    stats_.dropped_messages += 2;
  }
}

Result<Generation> ChatSession::generate(const std::vector<TokenId>& tokens,
                                         const std::function<bool(std::string_view)>& on_text) {
  if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "chat template", "an empty text", "a conversation");
  const std::span<const TokenId> cached = sequence_.tokens();
  const auto [differs, unused] = std::mismatch(tokens.begin(), tokens.end() - 1, cached.begin(), cached.end());
  const auto kept = differs - tokens.begin();  // at most all but the last: generation needs one token to go on from
  if (const Status status = sequence_.truncate(kept); !status) return tl::unexpected(status.error());
  stats_.reused_tokens += kept;

  GenerateOptions options = options_;
  options.max_tokens = std::min(options.max_tokens, model_.info().context - static_cast<int64_t>(tokens.size()));
  auto generation = sequence_.generate(std::span(tokens).subspan(static_cast<size_t>(kept)), options, on_text);
  if (!generation) sequence_.clear();
  return generation;
}

Result<Generation> ChatSession::answer(const std::string& text, const std::function<bool(std::string_view)>& on_text) {
  const std::vector<ChatMessage> before = messages_;
  messages_.push_back({"user", text});
  auto tokens = render_to_fit();
  auto generation = tokens ? generate(*tokens, on_text) : tl::unexpected(tokens.error());
  if (!generation) {
    messages_ = before;
    return generation;
  }
  messages_.push_back({"assistant", generation->text});
  ++stats_.turns;
  stats_.prompt_tokens += generation->prompt_tokens;
  stats_.generated_tokens += static_cast<int64_t>(generation->tokens.size());
  stats_.prefill_s += generation->prefill_s;
  stats_.decode_s += generation->decode_s;
  return generation;
}

Status ChatSession::save(const std::string& path) const {
  nlohmann::json messages = nlohmann::json::array();
  for (const ChatMessage& m : messages_) messages.push_back({{"role", m.role}, {"content", m.content}});
  // Text that is no UTF-8, which a model may write, is kept as far as JSON can.
  return sequence_.save(path, messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Status ChatSession::load(const std::string& path) {
  auto note = sequence_.load(path);
  if (!note) return tl::unexpected(note.error());
  const auto messages = nlohmann::json::parse(*note, nullptr, false);
  const auto is_message = [](const nlohmann::json& m) {
    return m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content") &&
           m["content"].is_string();
  };
  if (!messages.is_array() || !std::ranges::all_of(messages, is_message)) {
    sequence_.clear();
    return fail(ErrorCode::kCorrupt, path, "a session without a conversation", "one that `lowbit chat` saved");
  }
  messages_.clear();
  for (const nlohmann::json& m : messages) messages_.push_back({m["role"], m["content"]});
  const bool has_system = !messages_.empty() && messages_.front().role == "system";
  if (system_text_.empty()) {
    if (has_system) system_text_ = messages_.front().content;
    return {};
  }
  if (!has_system) messages_.insert(messages_.begin(), {"system", ""});
  messages_.front().content = system_text_;
  return {};
}

ChatStats ChatSession::stats() const {
  ChatStats stats = stats_;
  stats.context_tokens = sequence_.length();
  stats.context = model_.info().context;
  return stats;
}

}  // namespace lowbit::cli
