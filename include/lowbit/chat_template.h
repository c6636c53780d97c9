#pragma once
// Chat templates: the subset of Jinja2 that the templates of real models use, evaluated under
// limits. Behaves as Hugging Face transformers sets Jinja up: trim_blocks, lstrip_blocks, loop
// controls, plain-JSON `tojson`.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

struct ChatMessage {
  std::string role;
  std::string content;
  std::string extra_json = {};  // more keys, a JSON object: {"tool_calls": [...]}; may replace role and content
};

struct ChatInput {
  std::vector<ChatMessage> messages = {};
  bool add_generation_prompt = true;
  std::string bos_token = {};
  std::string eos_token = {};
  std::string extra_json = {};  // more variables, a JSON object: {"tools": [...], "enable_thinking": false}
  std::optional<std::int64_t> now_unix_s = {};  // what strftime_now sees (UTC); empty = the clock, local time
};

/// Limits of a template's work; beyond them it fails with kInvalidArgument.
struct ChatLimits {
  std::size_t steps = 2'000'000;
  std::size_t output_bytes = std::size_t{16} << 20;
  std::size_t memory_bytes = std::size_t{128} << 20;  // all values ever made in one rendering
  int nesting = 400;                                  // expressions, statements and macro calls within each other
};

/// Immutable, thread safe.
class ChatTemplate {
 public:
  /// Errors: kInvalidArgument (syntax, with the line), kUnsupported (a tag, filter or test that
  /// lowbit lacks).
  static Result<ChatTemplate> parse(std::string_view source);

  /// Errors: kInvalidArgument: raise_exception (its text), a wrong type, a limit; each with the
  /// line.
  Result<std::string> render(const ChatInput& input, const ChatLimits& limits = {}) const;

  /// render() with all variables in one JSON object: {"messages": [...], "add_generation_prompt":
  /// true, ...}.
  Result<std::string> render_json(std::string_view variables_json, std::optional<std::int64_t> now_unix_s = {},
                                  const ChatLimits& limits = {}) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lowbit
