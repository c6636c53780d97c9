// Two texts around a byte 0: a chat template, and a JSON object of variables.

#include "fuzz_limits.h"
#include "lowbit/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using lowbit::fuzz::require;
  const lowbit::fuzz::TimeLimit limit;
  std::string_view rest = lowbit::fuzz::text_of(data, size);
  const auto parsed = lowbit::ChatTemplate::parse(lowbit::fuzz::next_part(rest));
  if (!parsed) {
    require(!parsed.error().where.empty(), "an error without a place");
    return 0;
  }
  const auto text = parsed->render_json(rest, 0);
  if (!text) require(!text.error().where.empty(), "an error without a place");
  lowbit::ChatInput input;
  input.messages = {{"system", "be brief"}, {"user", "hi"}, {"assistant", "yes"}, {"user", std::string(rest)}};
  input.bos_token = "<s>";
  input.now_unix_s = 0;
  const auto chat = parsed->render(input);
  if (!chat) require(!chat.error().where.empty(), "an error without a place");
  if (chat) require(chat->size() <= lowbit::ChatLimits().output_bytes, "an output over the limit");
  return 0;
}
