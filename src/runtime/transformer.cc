#include "runtime/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/try.h"

namespace lowbit {

const char* model_step_name(ModelStep step) {
  static constexpr std::array<const char*, static_cast<size_t>(ModelStep::kCount)> kNames = {
      "embed", "norm", "qkv", "rotate", "attention", "output", "gate_up", "down", "add", "head"};
  return kNames[static_cast<size_t>(step)];
}

std::vector<KvGroup> kv_groups_of(const ModelSpec& spec, const KvFormat& format, std::span<const int> kept) {
  std::vector<KvGroup> groups;
  for (size_t layer = 0; layer < spec.blocks.size(); ++layer) {
    const AttentionSpec& a = spec.blocks[layer].attention;
    const KvFormat own = std::ranges::find(kept, int(layer)) == kept.end() ? format : KvFormat{};
    const auto same = [&](const KvGroup& g) {
      return g.kv_heads == a.kv_heads && g.head_dim == a.head_dim && g.window == a.window && g.format == own;
    };
    auto group = std::ranges::find_if(groups, same);
    if (group == groups.end())
      group = groups.insert(
          group, {.layers = {}, .kv_heads = a.kv_heads, .head_dim = a.head_dim, .window = a.window, .format = own});
    group->layers.push_back(int(layer));
  }
  return groups;
}

Result<std::shared_ptr<KvPool>> Transformer::make_pool(int64_t max_pages, int64_t slab_pages) const {
  return stages_.make_pool(kv_groups(), max_pages, slab_pages);
}

Result<KvCache> Transformer::make_cache() const {
  LOWBIT_TRY_ASSIGN(auto pool, make_pool(ceil_div(context_, kKvPage), 0));
  return KvCache(std::move(pool), context_);
}

int64_t Transformer::resident_bytes() const {
  int64_t total = embedding_bytes_ + stages_.workspace_bytes();
  for (const WeightInfo& info : linears()) total += info.resident_bytes;
  return total;
}

std::vector<WeightInfo> Transformer::linears() const {
  std::vector<WeightInfo> all;
  for (const BlockWeights& block : weights_.blocks)
    for (const auto& weight : block.linears) all.push_back(weight->info());
  if (const Weight* head = weights_.head()) all.push_back(head->info());
  return all;
}

Status Transformer::check(std::span<const int32_t> tokens, const KvCache& cache, const LogitsWanted& wanted,
                          std::span<const float> logits) const {
  const int64_t n = int64_t(tokens.size());
  if (n == 0) return fail(ErrorCode::kInvalidArgument, "forward", "no tokens", "at least one");
  for (int32_t token : tokens)
    if (token < 0 || token >= spec_.vocab_size)
      return fail(ErrorCode::kInvalidArgument, "forward", fmt::format("token id {}", token),
                  fmt::format("0..{}", spec_.vocab_size - 1), "does the tokenizer belong to this model?");
  if (cache.pool().layers() != spec_.block_count())
    return fail(ErrorCode::kShapeMismatch, "forward kv cache", fmt::format("{} layers", cache.pool().layers()),
                fmt::format("{}", spec_.block_count()));
  for (int64_t layer = 0; layer < spec_.block_count(); ++layer) {
    const KvGroup& got = cache.group_of(layer);
    const AttentionSpec& want = spec_.blocks[size_t(layer)].attention;
    if (got.kv_heads != want.kv_heads || got.head_dim != want.head_dim)
      return fail(ErrorCode::kShapeMismatch, fmt::format("forward kv cache, layer {}", layer),
                  fmt::format("{} heads of {}", got.kv_heads, got.head_dim),
                  fmt::format("{} heads of {}", want.kv_heads, want.head_dim));
  }
  const int64_t positions = n + std::max<int64_t>(int64_t(wanted.choices.size()) - 1, 0);
  if (positions > context_ - cache.length())
    return fail(ErrorCode::kInvalidArgument, "forward", fmt::format("{} + {} positions", cache.length(), positions),
                fmt::format("at most {}", context_), "shorten the text or ask for a larger context (-c)");
  int64_t rows = wanted.kind == LogitsWanted::Kind::kLast ? 1 : 0;
  if (wanted.kind == LogitsWanted::Kind::kRange) {
    rows = wanted.count;
    if (wanted.first < 0 || rows < 0 || wanted.first > n || rows > n - wanted.first)
      return fail(ErrorCode::kInvalidArgument, "forward logits range",
                  fmt::format("{} rows from {}", rows, wanted.first), fmt::format("inside the {} tokens", n));
  }
  if (!wanted.choices.empty()) {
    if (wanted.kind == LogitsWanted::Kind::kLast && chooses_tokens()) return {};
    return fail(ErrorCode::kUnsupported, "forward", "a token to choose", "logits, from which the caller chooses");
  }
  if (wanted.sink == nullptr && int64_t(logits.size()) < rows * spec_.vocab_size)
    return fail(ErrorCode::kInvalidArgument, "forward logits", fmt::format("room for {} floats", logits.size()),
                fmt::format("{} x {}", rows, spec_.vocab_size));
  return {};
}

Status Transformer::forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted,
                            std::span<float> logits) {
  LOWBIT_TRY(check(tokens, cache, wanted, logits));
  if (wanted.choices.size() > 1)
    return fail(ErrorCode::kUnsupported, "forward", fmt::format("{} tokens to choose", wanted.choices.size()), "one",
                "an Executor makes the passes");
  const int64_t n = int64_t(tokens.size()), start = cache.length();
  const auto [want_begin, want_end] = wanted.rows_of(n);
  LOWBIT_TRY(cache.reserve(n));
  for (int64_t done = 0; done < n; done += batch_) {
    const int64_t m = std::min(batch_, n - done);
    const int64_t first = std::clamp<int64_t>(want_begin - done, 0, m);
    const int64_t last = std::clamp<int64_t>(want_end - done, first, m);
    const int64_t row = last > first ? done + first - want_begin : 0;  // of those that are wanted
    float* const out = wanted.sink == nullptr && wanted.choices.empty() && last > first
                           ? logits.data() + row * spec_.vocab_size
                           : nullptr;
    const BatchPart part{tokens.subspan(size_t(done), size_t(m)),
                         &cache,
                         first,
                         last - first,
                         out,
                         nullptr,
                         wanted.sink,
                         row,
                         wanted.choices.data()};
    if (auto status = run({&part, 1}); !status) {
      LOWBIT_TRY(cache.truncate(start));
      return status;
    }
  }
  return {};
}

Status Transformer::run(std::span<const BatchPart> batch, int64_t passes) {
  tokens_.clear();
  sequences_.clear();
  wanted_.clear();
  for (const BatchPart& part : batch) LOWBIT_TRY(part.cache->open(int64_t(part.tokens.size()) + passes - 1));
  for (const BatchPart& part : batch) {
    const auto row = int64_t(tokens_.size()), rows = int64_t(part.tokens.size());
    tokens_.insert(tokens_.end(), part.tokens.begin(), part.tokens.end());
    sequences_.push_back({part.cache, part.cache->length(), row, rows, part.adapter});
    if (part.count > 0)
      wanted_.push_back({row + part.first, part.count, part.logits, part.sink, part.sink_row, part.choice});
  }
  const bool traced = std::ranges::any_of(batch, [](const BatchPart& part) { return part.observer != nullptr; });
  if (traced) begin_trace(batch);
  const Status status = stages_.run({tokens_, sequences_, wanted_, passes}, traced || observer_ != nullptr);
  if (traced) stages_.set_observer(observer_);
  LOWBIT_TRY(status);
  for (const BatchPart& part : batch) {
    if (part.observer != nullptr && part.count > 0) part.observer->logits(part.logits, part.count, spec_.vocab_size);
    part.cache->commit(int64_t(part.tokens.size()) + passes - 1, part.tokens);
  }
  return {};
}

void Transformer::begin_trace(std::span<const BatchPart> batch) {
  for (const BatchPart& part : batch)
    if (part.observer != nullptr) part.observer->begin(part.cache->length(), part.tokens, part.first, part.count);
  stages_.set_observer(
      [this, batch, before = int64_t{0}](int tap, const float* x, int64_t m, int64_t k) mutable -> Status {
        if (observer_) LOWBIT_TRY(observer_(tap, x, m, k));
        const bool last = tap == tap_of(int(spec_.blocks.size()), InputRole::kAttention);
        int64_t row = 0;  // of the part, among the rows of this tap
        for (const BatchPart& part : batch) {
          const int64_t rows = last ? part.count : int64_t(part.tokens.size());
          const int64_t from = std::max(row, before), to = std::min(row + rows, before + m);
          if (part.observer != nullptr && from < to) part.observer->rows(tap, x + (from - before) * k, to - from, k);
          row += rows;
        }
        if (last) before += m;  // these come in parts
        return {};
      });
}

void Transformer::set_observer(LinearObserver observer) {
  observer_ = nullptr;
  if (!observer) return stages_.set_observer({});
  // The layers behind each tap, by the names of their weights.
  std::vector<std::vector<std::string>> names;
  for (size_t block = 0; block < spec_.blocks.size(); ++block)
    for (const InputSpec* input : inputs_of(spec_.blocks[block])) {
      names.emplace_back();
      for (const LinearSpec& reader : input->readers)
        names.back().push_back(weights_.blocks[block].of(reader.role)->info().name);
    }
  if (const Weight* head = weights_.head()) names.push_back({head->info().name});
  observer_ = [observer = std::move(observer), names = std::move(names)](int tap, const float* x, int64_t m,
                                                                         int64_t k) -> Status {
    for (const std::string& name : names[size_t(tap)]) observer(name, x, m, k);
    return {};
  };
  stages_.set_observer(observer_);
}

}  // namespace lowbit
