// Session::generate(): tokens chosen one after the other, several per call where a device chooses them, and their text.

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/try.h"
#include "pipeline/session_impl.h"
#include "runtime/token_chooser.h"
#include "text/stop_texts.h"

namespace lowbit {
namespace {

constexpr double kMostWait = 0.01;  // seconds between a token and when it is shown, where several come at once

Status check(const GenerateOptions& options, size_t prompt, int64_t room) {
  if (options.max_tokens < 0)
    return fail(ErrorCode::kInvalidArgument, "max_tokens", std::to_string(options.max_tokens), "0 or more");
  if (options.top_logprobs < 0)
    return fail(ErrorCode::kInvalidArgument, "top_logprobs", std::to_string(options.top_logprobs), "0 or more");
  if (static_cast<int64_t>(prompt) > room)
    return fail(ErrorCode::kInvalidArgument, "prompt", std::to_string(prompt) + " tokens",
                "at most " + std::to_string(room), "shorten it, or ask for a larger context (-c)");
  return {};
}

/// The penalties' window is of the whole text, however it came here.
Result<Sampler> sampler_behind(std::span<const TokenId> before, std::span<const TokenId> prompt,
                               const SamplerOptions& options) {
  LOWBIT_TRY_ASSIGN(Sampler sampler, Sampler::make(options));
  const auto recent = static_cast<size_t>(std::max<int64_t>(options.repeat_window, 0));
  for (TokenId id : before.last(std::min(recent, before.size()))) sampler.accept(id);
  for (TokenId id : prompt) sampler.accept(id);
  return sampler;
}

/// From tokens to the text that is shown.
class TextOut {
 public:
  TextOut(const Tokenizer& tokenizer, StopTexts stops, std::string& text,
          const std::function<bool(std::string_view)>& on_text)
      : decoder_(tokenizer), stops_(std::move(stops)), text_(text), on_text_(on_text) {}

  /// Whether the listener wants to go on.
  Result<bool> push(TokenId token) {
    LOWBIT_TRY_ASSIGN(const std::string text, decoder_.push(token));
    return emit(stops_.push(text));
  }
  /// Emits the text that waited because a stop text might have begun in it.
  void finish() {
    std::string rest = stops_.push(decoder_.flush());
    rest += stops_.flush();
    if (!rest.empty()) emit(rest);
  }
  const std::string* stop_text() const { return stops_.found(); }

 private:
  bool emit(const std::string& text) {
    text_ += text;
    return !on_text_ || on_text_(text);
  }
  StreamDecoder decoder_;
  StopTexts stops_;
  std::string& text_;
  const std::function<bool(std::string_view)>& on_text_;
};

/// Handles each token of a generation: stops, text, probabilities.
class Tokens {
 public:
  Tokens(const Tokenizer& tokenizer, const GenerateOptions& options, const TokenChooser& chooser, TextOut& text,
         Generation& out)
      : tokenizer_(tokenizer), options_(options), chooser_(chooser), text_(text), out_(out) {}

  /// Whether the generation goes on; out.stop_reason says why not. The token is the i-th of its call, whose logits may
  /// be on the host.
  Result<bool> take(TokenId token, std::span<const float> logits, size_t i) {
    if (options_.stop_at_eos && tokenizer_.is_eos(token)) return stop("eos");
    out_.tokens.push_back(token);
    if (options_.on_logprobs) {
      logprobs_.token = token;
      logprobs_.logprob = chooser_.logprobs(logits, token, i, logprobs_.top);
      options_.on_logprobs(logprobs_);
    }
    LOWBIT_TRY_ASSIGN(const bool goes_on, text_.push(token));
    if (text_.stop_text() != nullptr) return stop("stop");
    if (!goes_on) return stop("callback");
    return left() > 0 ? true : stop("length");
  }
  bool stop(const char* reason) {
    out_.stop_reason = reason;
    return false;
  }
  int64_t left() const { return options_.max_tokens - static_cast<int64_t>(out_.tokens.size()); }

 private:
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  const TokenChooser& chooser_;
  TextOut& text_;
  Generation& out_;
  TokenLogprobs logprobs_;
};

}  // namespace

int64_t Session::Impl::tokens_at_once(int64_t wanted, double seconds_each) const {
  const int64_t most = model->transformer->passes_at_once(), timely = static_cast<int64_t>(kMostWait / seconds_each);
  const int64_t in_page = kKvPage - cache.length() % kKvPage;  // no page that one token would not need
  return std::max<int64_t>(1, std::min({most, wanted, timely, in_page, model->info.context - cache.length()}));
}

Status Session::Impl::keep(int64_t length) {
  if (length < cache.length()) LOWBIT_TRY(cache.truncate(length));
  return {};
}

Result<Generation> Session::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                     const std::function<bool(std::string_view)>& on_text) {
  Generation out;
  Impl& session = *impl_;
  LOWBIT_TRY(check(options, prompt.size(), context() - length()));
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  LOWBIT_TRY_ASSIGN(StopTexts stops, StopTexts::make(options.stop));
  LOWBIT_TRY_ASSIGN(Sampler sampler, sampler_behind(tokens(), prompt, options.sampler));
  TokenChooser chooser(std::move(sampler), session.chooses_tokens() ? session.model->transformer.get() : nullptr,
                       options.on_logprobs ? std::optional(options.top_logprobs) : std::nullopt);
  const std::span<float> logits = session.logits;
  TextOut text(session.model->tokenizer, std::move(stops), out.text, on_text);
  Tokens taken(session.model->tokenizer, options, chooser, text, out);

  session.has_logits = false;
  auto start = Clock::now();
  LOWBIT_TRY(session.forward(prompt, chooser.wanted(), logits));
  out.prefill_s = seconds_since(start);
  start = Clock::now();
  int64_t read = length(), at_once = 1;  // tokens that have been read when the first of `at_once` comes
  double seconds_each = 1;
  bool goes_on = taken.left() > 0 || taken.stop("length");
  while (goes_on) {
    for (int64_t i = 0; i < at_once && goes_on; ++i, ++read) {
      const auto token = chooser.token(logits, static_cast<size_t>(i));
      if (!token) {
        LOWBIT_TRY(session.keep(read));
        return tl::unexpected(token.error());
      }
      chooser.accept(*token);
      LOWBIT_TRY_ASSIGN(goes_on, taken.take(*token, logits, static_cast<size_t>(i)));
      if (!goes_on) LOWBIT_TRY(session.keep(read));
      if (goes_on && i + 1 < at_once) session.history.push_back(*token);  // the device has read it
    }
    if (goes_on && length() >= context()) goes_on = taken.stop("context");
    if (!goes_on) break;
    const TokenId last = out.tokens.back();
    at_once = chooser.by_device() ? session.tokens_at_once(taken.left(), seconds_each) : 1;
    read = length() + 1;
    const auto asked = Clock::now();
    LOWBIT_TRY(session.forward({&last, 1}, chooser.wanted(static_cast<size_t>(at_once)), logits));
    seconds_each = seconds_since(asked) / static_cast<double>(at_once);
  }
  text.finish();
  if (text.stop_text() != nullptr) {
    out.stop_reason = "stop";
    out.stop_text = *text.stop_text();
  }
  out.decode_s = seconds_since(start);
  return out;
}

}  // namespace lowbit
