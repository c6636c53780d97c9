#include "lowbit/chat_template.h"

#include <fmt/format.h>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_json.h"
#include "text/jinja_parser.h"

namespace lowbit {
namespace {

using jinja::Value;

Result<Value> message_value(const ChatMessage& message, std::size_t index) {
  jinja::Dict dict;
  dict.set(Value(std::string("role")), Value(message.role));
  dict.set(Value(std::string("content")), Value(message.content));
  if (!message.extra_json.empty()) {
    const std::string where = fmt::format("chat message {}", index);
    LOWBIT_TRY_ASSIGN(const Value extra, jinja::from_json(message.extra_json, where));
    if (extra.dict() == nullptr) return fail(ErrorCode::kInvalidArgument, where, extra.type_name(), "a JSON object");
    for (const auto& [key, value] : extra.dict()->entries) dict.set(key, value);
  }
  return jinja::make_dict(std::move(dict));
}

// Keys of `json` become variables; the dictionary must outlive the rendering.
Result<Value> object_of(std::string_view json, std::string_view where) {
  LOWBIT_TRY_ASSIGN(Value value, jinja::from_json(json, where));
  if (value.dict() == nullptr)
    return fail(ErrorCode::kInvalidArgument, std::string(where), value.type_name(), "a JSON object");
  return value;
}

void define_all(jinja::Interpreter& interpreter, const Value& object) {
  for (const auto& [key, value] : object.dict()->entries) interpreter.define(key.text(), value);
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Block block;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  auto impl = std::make_shared<Impl>();
  LOWBIT_TRY_ASSIGN(impl->block, jinja::parse_template(source));
  return ChatTemplate(std::move(impl));
}

Result<std::string> ChatTemplate::render(const ChatInput& input, const ChatLimits& limits) const {
  std::vector<Value> messages;
  for (const ChatMessage& message : input.messages) {
    LOWBIT_TRY_ASSIGN(Value value, message_value(message, messages.size()));
    messages.push_back(std::move(value));
  }
  Value extra;
  if (!input.extra_json.empty()) {
    LOWBIT_TRY_ASSIGN(extra, object_of(input.extra_json, "chat variables"));
  }
  jinja::Interpreter interpreter(limits, input.now_unix_s);
  LOWBIT_TRY_ASSIGN(Value list, jinja::make_list(std::move(messages)));
  interpreter.define("messages", std::move(list));
  interpreter.define("add_generation_prompt", Value(input.add_generation_prompt));
  interpreter.define("bos_token", Value(input.bos_token));
  interpreter.define("eos_token", Value(input.eos_token));
  if (extra.dict() != nullptr) define_all(interpreter, extra);
  return interpreter.render(impl_->block);
}

Result<std::string> ChatTemplate::render_json(std::string_view variables_json, std::optional<std::int64_t> now_unix_s,
                                              const ChatLimits& limits) const {
  LOWBIT_TRY_ASSIGN(const Value variables, object_of(variables_json, "chat variables"));
  jinja::Interpreter interpreter(limits, now_unix_s);
  define_all(interpreter, variables);
  return interpreter.render(impl_->block);
}

}  // namespace lowbit
