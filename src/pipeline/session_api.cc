#include <algorithm>
#include <utility>

#include "base/try.h"
#include "pipeline/session_impl.h"

namespace lowbit {

Status Session::Impl::run(KvCache& on, std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out) {
  return with_pages(most_wait, [&] { return model->executor.forward(tokens, on, wanted, out); });
}

Status Session::Impl::forward(std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out) {
  const int64_t start = cache.length();
  std::optional<KvCache> before;
  if (trace != nullptr) before = cache.copy_before(int64_t(tokens.size()));
  const Status ran = with_pages(most_wait, [&]() -> Status {
    Status status = model->executor.forward(tokens, cache, wanted, out, trace.get());
    if (trace != nullptr && !status) trace->file().drop();
    if (trace != nullptr && status) {
      status = trace->file().keep();
      if (!status) LOWBIT_TRY(cache.go_back(start, before));
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

}  // namespace lowbit
