#pragma once
// For tests: a model with a tokenizer.

#include <string>
#include <utility>

#include "lowbit/tokenizer.h"
#include "model/random_model.h"

namespace lowbit {

/// A token for each character, one that begins a text and one that begins a turn.
inline TokenizerSpec characters(const std::string& chat_template) {
  TokenizerSpec spec;
  spec.tokens = {"<s>", "<user>"};
  for (char c = '!'; c < 127; ++c) spec.tokens.emplace_back(1, c);
  spec.types.assign(spec.tokens.size(), TokenType::kNormal);
  for (TokenId id = 0; id < 2; ++id) {
    spec.types[static_cast<size_t>(id)] = TokenType::kControl;
    spec.added_tokens.push_back({id, spec.tokens[static_cast<size_t>(id)], true});
  }
  spec.bos_id = 0;
  spec.add_bos = true;
  spec.chat_template = chat_template;
  return spec;
}

/// A random model whose tokens are characters.
class TalkingSource : public MemorySource {
 public:
  explicit TalkingSource(MemorySource model) : MemorySource(std::move(model)) {
    tokenizer_ = *to_tokenizer_json(characters(""));
    config_ = *to_tokenizer_config_json(characters(""));
  }
  const std::string& tokenizer_json() const override { return tokenizer_; }
  const std::string& tokenizer_config_json() const override { return config_; }

 private:
  std::string tokenizer_, config_;
};

}  // namespace lowbit
