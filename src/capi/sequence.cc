#include "capi/sequence.h"

#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/try.h"
#include "capi/errors.h"
#include "capi/versioned.h"

namespace lowbit::capi {
namespace {

tl::unexpected<Error> null(const std::string& call, const char* wanted) {
  return fail(ErrorCode::kInvalidArgument, call, "NULL", wanted);
}

/// lb_generate_options of the first release: what lb_generate_options_init() may write.
constexpr size_t kFirstOptions = offsetof(lb_generate_options, user) + sizeof(lb_generate_options::user);

/// Reads the arrays that the options point to. Errors: kInvalidArgument.
Status read_arrays(const std::string& call, const lb_generate_options& o, GenerateOptions& options) {
  if ((o.bias_count > 0 && (o.bias_tokens == nullptr || o.bias_values == nullptr)) ||
      (o.token_mask_words > 0 && o.token_mask == nullptr) || (o.stop_count > 0 && o.stop_texts == nullptr))
    return null(call, "as many elements as the options count");
  for (const auto& [name, count] :
       {std::pair{" bias_count", o.bias_count}, std::pair{" token_mask_words", o.token_mask_words},
        std::pair{" stop_count", o.stop_count}})
    LOWBIT_TRY(check_count((call + name).c_str(), count, sizeof(uint64_t)));
  for (size_t i = 0; i < o.bias_count; ++i) options.sampler.logit_bias.emplace_back(o.bias_tokens[i], o.bias_values[i]);
  options.sampler.token_mask.assign(o.token_mask, o.token_mask + o.token_mask_words);
  for (size_t i = 0; i < o.stop_count; ++i) {
    if (o.stop_texts[i] == nullptr) return null(call, "stop texts");
    options.stop.emplace_back(o.stop_texts[i]);
  }
  return {};
}

GenerateOptions generate_options(const lb_generate_options& o) {
  GenerateOptions options;
  options.max_tokens = o.max_tokens;
  options.stop_at_eos = o.ignore_eos == 0;
  options.sampler.temperature = o.temperature;
  options.sampler.top_k = o.top_k;
  options.sampler.top_p = o.top_p;
  options.sampler.min_p = o.min_p;
  options.sampler.repeat_penalty = o.repeat_penalty;
  options.sampler.seed = o.seed;
  options.sampler.frequency_penalty = o.frequency_penalty;
  options.sampler.presence_penalty = o.presence_penalty;
  options.sampler.repeat_window = o.repeat_window;
  options.top_logprobs = o.top_logprobs;
  return options;
}

lb_generate_options default_generate_options() {
  const GenerateOptions options;
  lb_generate_options o{};
  o.struct_size = sizeof o;
  o.max_tokens = options.max_tokens;
  o.temperature = options.sampler.temperature;
  o.top_p = options.sampler.top_p;
  o.min_p = options.sampler.min_p;
  o.repeat_penalty = options.sampler.repeat_penalty;
  o.top_k = options.sampler.top_k;
  o.seed = options.sampler.seed;
  o.frequency_penalty = options.sampler.frequency_penalty;
  o.presence_penalty = options.sampler.presence_penalty;
  o.repeat_window = options.sampler.repeat_window;
  o.top_logprobs = options.top_logprobs;
  return o;
}

/// The defaults as a struct of `size` bytes; fields that are unknown here are zero.
Status init_options(lb_generate_options* options, size_t size) {
  if (options == nullptr) return null("lb_generate_options_init2", "a place for options");
  if (size < kFirstOptions || size > kLongestStruct)
    return fail(ErrorCode::kInvalidArgument, "lb_generate_options_init2 size", std::to_string(size),
                std::to_string(kFirstOptions) + " to " + std::to_string(kLongestStruct));
  lb_generate_options defaults = default_generate_options();
  defaults.struct_size = size;
  std::memset(static_cast<void*>(options), 0, size);
  std::memcpy(static_cast<void*>(options), &defaults, std::min(size, sizeof defaults));
  return {};
}

}  // namespace

Status prefill(const std::string& call, Session* sequence, const int32_t* tokens, size_t count) {
  if (sequence == nullptr || (tokens == nullptr && count > 0)) return null(call, "a sequence and tokens");
  LOWBIT_TRY(check_count((call + " count").c_str(), count, sizeof *tokens));
  LOWBIT_TRY(sequence->prefill({tokens, count}));
  return {};
}

Status logits(const std::string& call, const Session* sequence, const float** logits, size_t* count) {
  if (sequence == nullptr || logits == nullptr || count == nullptr) return null(call, "a sequence and places");
  const std::span<const float> found = sequence->logits();
  if (found.empty()) return fail(ErrorCode::kNotFound, call, "no token since the sequence began", "a token");
  *logits = found.data();
  *count = found.size();
  return {};
}

Status truncate(const std::string& call, Session* sequence, int64_t length) {
  return sequence == nullptr ? null(call, "a sequence") : sequence->truncate(length);
}

Status generate(const std::string& call, Session* sequence, std::span<const TokenId> prompt,
                const lb_generate_options* given, int32_t* tokens, size_t capacity, size_t* count) {
  if (sequence == nullptr || (prompt.data() == nullptr && !prompt.empty()) || (tokens == nullptr && capacity > 0))
    return null(call, "a sequence, a prompt and a place for tokens");
  LOWBIT_TRY(check_count((call + " prompt_count").c_str(), prompt.size(), sizeof(TokenId)));
  lb_generate_options o = default_generate_options();
  if (given != nullptr) LOWBIT_TRY(read_versioned("lb_generate_options", given, {kFirstOptions}, o));
  const auto on_text = [&o](std::string_view text) {
    return o.on_text == nullptr || o.on_text(o.user, text.data(), text.size()) == 0;
  };
  GenerateOptions options = generate_options(o);
  LOWBIT_TRY(read_arrays(call, o, options));
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  if (o.on_logprobs != nullptr)
    options.on_logprobs = [&](const TokenLogprobs& token) {
      top_tokens.clear();
      top_logprobs.clear();
      for (const auto& [id, logprob] : token.top) {
        top_tokens.push_back(id);
        top_logprobs.push_back(logprob);
      }
      const lb_token_logprobs heard{sizeof heard,      token.token,         token.logprob,
                                    top_tokens.data(), top_logprobs.data(), top_tokens.size()};
      o.on_logprobs(o.user, &heard);
    };
  LOWBIT_TRY_ASSIGN(const Generation made, sequence->generate(prompt, options, on_text));
  size_t ignored = 0;
  hand_over(made.tokens, tokens, capacity, count != nullptr ? count : &ignored);
  return {};
}

}  // namespace lowbit::capi

extern "C" {

void lb_generate_options_init(lb_generate_options* options) {
  if (options != nullptr) (void)lowbit::capi::init_options(options, lowbit::capi::kFirstOptions);
}

lb_status lb_generate_options_init2(lb_generate_options* options, size_t size) {
  return lowbit::capi::guarded([&] { return lowbit::capi::init_options(options, size); });
}

}  // extern "C"
