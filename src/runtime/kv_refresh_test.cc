// Positions of a quantized cache that are computed once more: by definition, in any cut, beside others, and where
// something fails.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "base/cpu.h"
#include "base/rng.h"
#include "model/random_model.h"
#include "runtime/executor.h"

namespace lowbit {
namespace {

constexpr int64_t kContext = 1024;

KvFormat format_of(const char* name, int64_t residual, int64_t refresh, const char* demote = "") {
  KvFormat format = *parse_kv_format(name, residual);
  EXPECT_TRUE(set_kv_upkeep(refresh, demote, format));
  return format;
}

std::unique_ptr<Transformer> load(const KvFormat& kv, int threads = 2, int64_t window = 0) {
  RandomModelSpec spec;
  spec.max_positions = kContext;
  spec.window = window;
  if (window > 0) spec.model_type = "mistral";
  LoadOptions options;
  options.x.activation = Activation::kF32;
  options.isa = best_isa();
  options.threads = threads;
  options.batch = 48;
  options.kv = kv;
  auto model = Transformer::load(make_random_model(spec), options);
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
  return model ? std::move(*model) : nullptr;
}

std::vector<int32_t> some_tokens(const Transformer& model, int64_t n, uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(model.spec().vocab_size)));
  return tokens;
}

/// Logits of all tokens, by the words of the definition: block by block of `every` positions, each of which is computed
/// once more before the next.
std::vector<float> by_definition(Transformer& model, std::span<const int32_t> tokens, int64_t every) {
  auto cache = model.make_cache();
  std::vector<float> all(tokens.size() * size_t(model.spec().vocab_size));
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min(size_t(every), tokens.size() - at);
    const auto block = tokens.subspan(at, n);
    EXPECT_TRUE(model.forward(block, *cache, LogitsWanted::range(0, int64_t(n)),
                              std::span(all).subspan(at * size_t(model.spec().vocab_size))));
    at += n;
    if (at == tokens.size()) break;
    KvCache again = cache->refreshing();
    EXPECT_EQ(again.length(), int64_t(at) - every);
    EXPECT_TRUE(model.forward(block, again, LogitsWanted::none(), {}));
    again.finish_refresh();
    *cache = std::move(again);
  }
  return all;
}

/// The logits of all tokens from an executor, `call` tokens at a time.
std::vector<float> by_executor(Executor& executor, const Transformer& model, KvCache& cache,
                               std::span<const int32_t> tokens, int64_t call) {
  const auto vocab = size_t(model.spec().vocab_size);
  std::vector<float> all(tokens.size() * vocab);
  for (size_t at = 0; at < tokens.size(); at += size_t(call)) {
    const size_t n = std::min(size_t(call), tokens.size() - at);
    EXPECT_TRUE(executor.forward(tokens.subspan(at, n), cache, LogitsWanted::range(0, int64_t(n)),
                                 std::span(all).subspan(at * vocab, n * vocab)));
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(KvRefresh, IsWhatItsDefinitionSaysInAnyCut) {
  const struct {
    const char* kv;
    int64_t residual, refresh, window;
    const char* demote;
  } cases[] = {{"int2", 0, 128, 0, ""},
               {"int4", 64, 192, 0, ""},
               {"k4v2", 128, 256, 250, ""},
               {"fp8", 0, 128, 0, "128:int2"},
               {"int8", 64, 180, 0, "200:k3v2"}};
  for (const auto& c : cases) {
    const KvFormat format = format_of(c.kv, c.residual, c.refresh, c.demote);
    auto model = load(format, 2, c.window);
    ASSERT_TRUE(model);
    Executor executor(*model);
    const auto tokens = some_tokens(*model, 600);
    const auto want = by_definition(*model, tokens, format.refresh);
    for (const int64_t call : {600, 1, 77, 128}) {
      auto cache = model->make_cache();
      EXPECT_TRUE(same_bits(by_executor(executor, *model, *cache, tokens, call), want)) << c.kv << " " << call;
      EXPECT_LE(cache->bytes(), cache->pool().bytes_of(600)) << c.kv << " " << call;
    }
    // The result differs from that without refresh.
    KvFormat never = format;
    never.refresh = 0;
    auto plain = load(never, 2, c.window);
    auto cache = plain->make_cache();
    std::vector<float> other(want.size());
    ASSERT_TRUE(plain->forward(tokens, *cache, LogitsWanted::range(0, 600), other));
    const auto first = size_t(format.refresh * model->spec().vocab_size);
    EXPECT_EQ(std::memcmp(other.data(), want.data(), first * sizeof(float)), 0) << c.kv;  // the first block is the same
    EXPECT_FALSE(same_bits(other, want)) << c.kv;
  }
}

TEST(KvRefresh, PositionsReadEachOtherAsF16) {
  // The first block, computed once more, holds what it holds where nothing is packed yet.
  auto model = load(format_of("int2", 0, 256)), exact = load(format_of("int2", kContext, 0));
  ASSERT_TRUE(model && exact);
  Executor executor(*model);
  const auto tokens = some_tokens(*model, 257);
  auto cache = model->make_cache(), whole = exact->make_cache();
  by_executor(executor, *model, *cache, tokens, 257);
  ASSERT_TRUE(exact->forward(tokens, *whole, LogitsWanted::none(), {}));
  const int64_t last = model->spec().block_count() - 1, d = cache->group_of(last).head_dim;
  for (const int64_t page : {0, 1, 2, 3}) {
    ASSERT_TRUE(cache->holds_f16(last, page));
    const auto bytes = size_t(2 * d * kKvPage);
    EXPECT_EQ(std::memcmp(cache->keys_f16(last, 0, page), whole->keys_f16(last, 0, page), bytes), 0) << page;
    EXPECT_EQ(std::memcmp(cache->values_f16(last, 0, page), whole->values_f16(last, 0, page), bytes), 0) << page;
  }
}

TEST(KvRefresh, ForksAndTruncationsGoOnAsIfFresh) {
  const KvFormat format = format_of("int4", 64, 192, "256:int2");
  auto model = load(format);
  ASSERT_TRUE(model);
  Executor executor(*model);
  auto pool = KvPool::make(model->kv_groups(), 1000);
  ASSERT_TRUE(pool);
  {
    KvCache cache(*pool, kContext);
    std::vector<int32_t> tokens;
    Rng rng(5);
    int cut = 0, again = 0;
    for (int step = 0; step < 40; ++step) {
      const auto more = some_tokens(*model, 1 + int64_t(rng.below(90)), rng.next());
      if (int64_t(tokens.size() + more.size()) > kContext) {
        cache.clear();
        tokens.clear();
      }
      KvCache fork = cache.fork();
      const auto got = by_executor(executor, *model, cache, more, 1 + int64_t(rng.below(90)));
      EXPECT_TRUE(same_bits(by_executor(executor, *model, fork, more, 1 + int64_t(rng.below(90))), got)) << step;
      tokens.insert(tokens.end(), more.begin(), more.end());
      if (step % 4 == 0) {
        const auto want = by_definition(*model, tokens, format.refresh);
        const size_t n = got.size();
        EXPECT_TRUE(same_bits(got, {want.end() - std::ptrdiff_t(n), want.end()})) << step;
      }
      if (step % 3 != 0) continue;
      const auto length = int64_t(tokens.size() - rng.below(std::min<uint64_t>(tokens.size(), 300)));
      tokens.resize(size_t(length));
      if (cache.can_truncate(length)) {
        ASSERT_TRUE(cache.truncate(length));
        ++cut;
      } else {
        ASSERT_FALSE(cache.truncate(length));
        KvCache other = cache.restarted(length);
        ASSERT_TRUE(executor.forward(tokens, other, LogitsWanted::none(), {}));
        cache = std::move(other);
        ++again;
      }
    }
    EXPECT_GT(cut, 2);
    EXPECT_GT(again, 2);
  }
  EXPECT_EQ((*pool)->pages_in_use(), 0);
}

TEST(KvRefresh, ManySequencesInTheirOwnPhases) {
  const KvFormat format = format_of("int2", 0, 128);
  auto model = load(format);
  ASSERT_TRUE(model);
  Executor executor(*model);
  std::vector<std::vector<float>> want, got(8);
  std::vector<std::vector<int32_t>> tokens;
  for (uint64_t i = 0; i < 8; ++i) {
    tokens.push_back(some_tokens(*model, 200 + int64_t(i) * 37, i));
    want.push_back(by_definition(*model, tokens.back(), 128));
  }
  auto pool = KvPool::make(model->kv_groups(), 1000);
  ASSERT_TRUE(pool);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      KvCache cache(*pool, kContext);
      got[i] = by_executor(executor, *model, cache, tokens[i], 1 + int64_t(i) * 30);
    });
  // And of one caller.
  std::vector<KvCache> caches;
  std::vector<SequenceRequest> requests;
  for (size_t i = 4; i < 8; ++i) caches.emplace_back(*pool, kContext);
  for (size_t i = 4; i < 8; ++i) {
    got[i].resize(want[i].size());
    requests.push_back({tokens[i], &caches[i - 4], LogitsWanted::range(0, int64_t(tokens[i].size())), got[i]});
  }
  EXPECT_TRUE(executor.forward(requests));
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << i;
  caches.clear();
  EXPECT_EQ((*pool)->pages_in_use(), 0);
}

/// All pages that a pool has left.
std::vector<std::vector<KvPool::Page>> take_all(KvPool& pool) {
  std::vector<std::vector<KvPool::Page>> taken(size_t(pool.stores()));
  for (size_t store = 0; store < taken.size(); ++store) {
    std::vector<int64_t> counts(taken.size());
    counts[store] = 1;
    while (pool.page_bytes(int(store)) > 0 && pool.take(counts, taken)) continue;
  }
  return taken;
}

TEST(KvRefresh, ACallThatFailsLeavesItAsItWas) {
  auto model = load(format_of("int4", 0, 128, "128:int2"));
  ASSERT_TRUE(model);
  Executor executor(*model);
  const auto tokens = some_tokens(*model, 700);
  const auto want = by_definition(*model, tokens, 128);
  const auto vocab = size_t(model->spec().vocab_size);
  auto pool = KvPool::make(model->kv_groups(), 40);
  ASSERT_TRUE(pool);
  KvCache cache(*pool, kContext);
  by_executor(executor, *model, cache, std::span(tokens).first(150), 150);
  const int64_t in_use = (*pool)->pages_in_use();
  // Others take what is left while it runs: the next refresh gets no pages. Rows reach the sink from many threads.
  std::vector<std::vector<KvPool::Page>> taken;
  std::once_flag once;
  const LogitsSink sink = [&](int64_t, std::span<float>) { std::call_once(once, [&] { taken = take_all(**pool); }); };
  const Status failed = executor.forward(std::span(tokens).subspan(150), cache, LogitsWanted::range(0, 550, &sink), {});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(cache.length(), 150);
  for (size_t store = 0; store < taken.size(); ++store)
    for (const KvPool::Page& page : taken[store]) (*pool)->give_back(int(store), page.id);
  EXPECT_EQ((*pool)->pages_in_use(), in_use);
  const auto more = by_executor(executor, *model, cache, std::span(tokens).subspan(150, 200), 30);
  EXPECT_EQ(std::memcmp(more.data(), want.data() + 150 * vocab, more.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace lowbit
