#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/try.h"
#include "pipeline/session_impl.h"
#include "runtime/token_chooser.h"
#include "runtime/token_logprobs.h"
#include "text/stop_texts.h"

namespace lowbit {

Status Session::Impl::run(KvCache& on, std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out) {
  return with_pages(most_wait, [&] { return model->executor.forward(tokens, on, wanted, out); });
}

Status Session::Impl::forward(std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out) {
  const int64_t start = cache.length();
  const Status ran = with_pages(most_wait, [&]() -> Status {
    Status status = model->executor.forward(tokens, cache, wanted, out, trace.get());
    if (trace != nullptr && !status) trace->file().drop();
    if (trace != nullptr && status) {
      status = trace->file().keep();
      if (!status) LOWBIT_TRY(cache.truncate(start));
    }
    return status;
  });
  if (ran) history.insert(history.end(), tokens.begin(), tokens.end());
  return ran;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Session Session::fork() const {
  auto other = std::make_unique<Impl>(impl_->model);
  other->cache = impl_->cache.fork();
  other->history = impl_->history;
  other->logits = impl_->logits;
  other->has_logits = impl_->has_logits;
  other->most_wait = impl_->most_wait;
  return Session(std::move(other));
}

void Session::wait_for_pages(std::chrono::milliseconds most) {
  impl_->most_wait =
      std::min<std::chrono::milliseconds>(most, std::chrono::years(1));  // a clock's end is not far beyond
}
int64_t Session::length() const { return impl_->cache.length(); }
std::span<const TokenId> Session::tokens() const { return impl_->history; }
int64_t Session::kv_bytes() const { return impl_->cache.bytes(); }
int64_t Session::context() const { return impl_->model->info.context; }

Status Session::truncate(int64_t length) {
  KvCache& cache = impl_->cache;
  const bool refused = length < 0 || length > cache.length();
  if (refused || cache.can_truncate(length)) {
    LOWBIT_TRY(cache.truncate(length));
    impl_->has_logits = false;
    impl_->history.resize(std::min(impl_->history.size(), static_cast<size_t>(length)));
    return {};
  }
  KvCache again = cache.restarted(length);
  LOWBIT_TRY(impl_->run(again, std::span(impl_->history).first(static_cast<size_t>(length)), LogitsWanted::none(), {}));
  cache = std::move(again);
  impl_->has_logits = false;
  impl_->history.resize(static_cast<size_t>(length));
  return {};
}

Status Session::start_trace(const std::string& path) {
  const ModelInfo& info = impl_->model->info;
  TraceHeader header{{path, version(), info.path, info.architecture, info.activation, info.isa, "cpu"}, {}};
  for (const TapName& tap : tap_names(impl_->model->transformer->spec()))
    header.taps.push_back({tap.name, tap.width, false});
  header.taps.back().wanted = true;  // the head's input
  header.taps.push_back({"logits", info.vocab_size, true});
  LOWBIT_TRY_ASSIGN(TraceFileWriter file, TraceFileWriter::create(path, header));
  impl_->trace = std::make_unique<TraceRecorder>(std::move(file));
  return {};
}

Status Session::finish_trace() {
  if (impl_->trace == nullptr)
    return fail(ErrorCode::kInvalidArgument, "finish_trace", "no trace", "start_trace first");
  const std::unique_ptr<TraceRecorder> trace = std::move(impl_->trace);
  return trace->file().finish();
}

Result<std::span<const float>> Session::prefill(std::span<const TokenId> tokens) {
  LOWBIT_TRY(impl_->forward(tokens, LogitsWanted::last(), impl_->logits));
  impl_->has_logits = true;
  return logits();
}

std::span<const float> Session::logits() const {
  return impl_->has_logits ? std::span<const float>(impl_->logits) : std::span<const float>();
}

Status Session::logits_of_all(std::span<const TokenId> tokens, int64_t first, std::vector<float>& out) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (first < 0 || first > n)
    return fail(ErrorCode::kInvalidArgument, "logits_of_all", "first row " + std::to_string(first),
                "0 to " + std::to_string(n));
  out.resize(static_cast<size_t>((n - first) * impl_->model->info.vocab_size));
  impl_->has_logits = false;
  return impl_->forward(tokens, LogitsWanted::range(first, n - first), out);
}

namespace {

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
  /// What was held back.
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

}  // namespace

Result<Generation> Session::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                     const std::function<bool(std::string_view)>& on_text) {
  Generation out;
  LOWBIT_TRY(check(options, prompt.size(), impl_->model->info.context - length()));
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  LOWBIT_TRY_ASSIGN(StopTexts stops, StopTexts::make(options.stop));
  LOWBIT_TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler));
  // The penalties' window is of the whole text, however it came here.
  const auto recent = static_cast<size_t>(std::max<int64_t>(options.sampler.repeat_window, 0));
  for (TokenId id : tokens().last(std::min(recent, tokens().size()))) sampler.accept(id);
  for (TokenId id : prompt) sampler.accept(id);
  TokenChooser chooser(std::move(sampler), impl_->chooses_tokens() && !options.on_logprobs);
  const std::span<float> logits = chooser.by_device() ? std::span<float>() : impl_->logits;
  impl_->has_logits = false;
  auto start = Clock::now();
  LOWBIT_TRY(impl_->forward(prompt, chooser.wanted(), logits));
  out.prefill_s = seconds_since(start);

  TextOut text(impl_->model->tokenizer, std::move(stops), out.text, on_text);
  TokenLogprobs logprobs;
  start = Clock::now();
  out.stop_reason = "length";
  while (static_cast<int64_t>(out.tokens.size()) < options.max_tokens) {
    LOWBIT_TRY_ASSIGN(const TokenId token, chooser.token(logits));
    if (options.stop_at_eos && impl_->model->tokenizer.is_eos(token)) {
      out.stop_reason = "eos";
      break;
    }
    chooser.accept(token);
    out.tokens.push_back(token);
    if (options.on_logprobs) {
      logprobs.token = token;
      logprobs.logprob = token_logprobs(logits, token, options.top_logprobs, logprobs.top);
      options.on_logprobs(logprobs);
    }
    LOWBIT_TRY_ASSIGN(const bool goes_on, text.push(token));
    if (text.stop_text() != nullptr) break;
    if (!goes_on) {
      out.stop_reason = "callback";
      break;
    }
    if (static_cast<int64_t>(out.tokens.size()) == options.max_tokens) break;  // its successor is not needed
    if (length() >= impl_->model->info.context) {
      out.stop_reason = "context";
      break;
    }
    LOWBIT_TRY(impl_->forward({&token, 1}, chooser.wanted(), logits));
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
