#pragma once
// A conversation: renders the model's template anew for every turn and keeps the part of the KV
// cache that is still right, so that a turn costs only its own tokens.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/model.h"

namespace lowbit::cli {

struct ChatStats {
  int64_t turns = 0, context_tokens = 0, context = 0, reused_tokens = 0, dropped_messages = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;  // of all turns
  double prefill_s = 0, decode_s = 0;
};

class ChatSession {
 public:
  /// Errors: kUnsupported when the model has no chat template.
  static Result<ChatSession> start(Model model, std::string system_text, GenerateOptions options);

  /// Adds the user's message and the model's answer. After an error the conversation is as before.
  Result<Generation> answer(const std::string& text, const std::function<bool(std::string_view)>& on_text);
  /// Forgets everything but the system text.
  void reset();

  /// The conversation and its part of the KV cache to a file, and back: it goes on where it was. A system text of its
  /// own takes the place of the file's. Errors: those of Session::save and load; kCorrupt (a file of another program).
  Status save(const std::string& path) const;
  Status load(const std::string& path);

  const std::vector<ChatMessage>& messages() const { return messages_; }
  const Model& model() const { return model_; }
  ChatStats stats() const;

 private:
  ChatSession(Model model, std::string system_text, GenerateOptions options);
  Result<std::vector<TokenId>> render() const;
  /// render(), after leaving out the oldest exchanges if the context has no room for an answer.
  Result<std::vector<TokenId>> render_to_fit();
  /// Appends what the cache lacks of `tokens` and generates.
  Result<Generation> generate(const std::vector<TokenId>& tokens, const std::function<bool(std::string_view)>& on_text);

  Model model_;
  Session sequence_;
  std::string system_text_;
  GenerateOptions options_;
  std::vector<ChatMessage> messages_;
  ChatStats stats_;
};

}  // namespace lowbit::cli
