#pragma once
// Test only: sequences of a quantized cache on a GPU that are appended to, forked, cut back and dropped at random,
// beside the same on the CPU: the same logits.

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "base/rng.h"
#include "base/test_bits.h"
#include "runtime/executor.h"

namespace lowbit::program_checks {

struct CacheCase {
  const char* kv = "int4";
  int64_t residual = 0, refresh = 0;
  const char *demote = "", *keep = "";
  int64_t window = 0, head_dim = 32;
};

/// All widths of codes, fp8, layers that keep f16, pages that age and positions that are computed again.
inline std::vector<CacheCase> cache_cases() {
  return {{"int4", 64, 0, "192:int2", "first"},
          {"k4v2", 0},
          {.kv = "int3", .refresh = 128, .keep = "last"},
          {"fp8", 0, 192, "256:k2v3"},
          {.kv = "int8", .residual = 64, .refresh = 180, .demote = "200:k3v2", .window = 250},
          {.kv = "int2", .residual = 128, .head_dim = 64}};
}

/// One sequence, on each device.
struct TwinSequence {
  std::vector<KvCache> caches;
  std::vector<int32_t> tokens;
};

inline void expect_same_sequences(const CacheCase& c, int steps, uint64_t seed) {
  constexpr int64_t kContext = 640;
  RandomModelSpec spec;
  spec.max_positions = kContext;
  spec.layers = 2;
  spec.head_dim = c.head_dim;
  spec.window = c.window;
  if (c.window > 0) spec.model_type = "mistral";
  const MemorySource source = make_random_model(spec);
  std::vector<std::unique_ptr<Transformer>> models;
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<std::shared_ptr<KvPool>> pools;
  for (const bool gpu : {false, true}) {
    LoadOptions options;
    options.x.activation = Activation::kF32;
    options.batch = 48;
    options.exact = true;
    if (gpu) options.gpus = {0};
    options.kv = *parse_kv_format(c.kv, c.residual);
    ASSERT_TRUE(set_kv_upkeep(c.refresh, c.demote, options.kv));
    options.kv_keep = c.keep;
    auto model = Transformer::load(source, options);
    ASSERT_TRUE(model.has_value()) << model.error().message();
    models.push_back(std::move(*model));
    executors.push_back(std::make_unique<Executor>(*models.back()));
    pools.push_back(*models.back()->make_pool(200, 16));
  }
  const auto vocab = size_t(spec.vocab);
  Rng rng(seed);
  const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
  std::vector<TwinSequence> all;
  const auto begin = [&] {
    TwinSequence twins;
    for (const auto& pool : pools) twins.caches.emplace_back(pool, kContext);
    all.push_back(std::move(twins));
  };
  const auto append = [&](size_t index) {  // and another sequence beside it, sometimes
    std::vector<size_t> who = {index};
    if (all.size() > 1 && below(3) == 0) who.push_back((index + 1) % all.size());
    std::vector<std::vector<int32_t>> tokens;
    for (const size_t i : who) {
      const auto room = kContext - int64_t(all[i].tokens.size());
      std::vector<int32_t>& more = tokens.emplace_back(size_t(std::min(1 + below(below(4) == 0 ? 200 : 20), room)));
      for (int32_t& t : more) t = int32_t(below(spec.vocab));
    }
    std::vector<std::vector<float>> logits(models.size());
    for (size_t m = 0; m < models.size(); ++m) {
      logits[m].assign(who.size() * vocab, NAN);
      std::vector<SequenceRequest> requests;
      for (size_t i = 0; i < who.size(); ++i) {
        if (tokens[i].empty()) continue;
        requests.push_back(
            {tokens[i], &all[who[i]].caches[m], LogitsWanted::last(), std::span(logits[m]).subspan(i * vocab, vocab)});
      }
      const Status ran = executors[m]->forward(requests);
      ASSERT_TRUE(ran.has_value()) << ran.error().message();
    }
    ASSERT_TRUE(same_bits(logits[1], logits[0])) << c.kv << " at " << all[index].tokens.size();
    for (size_t i = 0; i < who.size(); ++i)
      all[who[i]].tokens.insert(all[who[i]].tokens.end(), tokens[i].begin(), tokens[i].end());
  };
  for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) {
    if (all.empty()) begin();
    const auto index = size_t(below(int64_t(all.size())));
    TwinSequence& s = all[index];
    const int64_t what = below(10);
    if (what < 6) {
      append(index);
    } else if (what < 8) {
      const int64_t length = std::max<int64_t>(0, int64_t(s.tokens.size()) - below(what == 6 ? kContext : 150));
      const bool can = s.caches[0].can_truncate(length);
      for (KvCache& cache : s.caches) {
        ASSERT_EQ(cache.can_truncate(length), can);
        ASSERT_TRUE(cache.truncate(can ? length : 0));
      }
      s.tokens.resize(size_t(can ? length : 0));
    } else if (what == 8 && all.size() < 5) {
      TwinSequence other;
      for (const KvCache& cache : s.caches) other.caches.push_back(cache.fork());
      other.tokens = s.tokens;
      all.push_back(std::move(other));
    } else if (what == 9 && below(3) == 0) {
      all.erase(all.begin() + int64_t(index));
    }
  }
  all.clear();
  for (const auto& pool : pools) EXPECT_EQ(pool->pages_in_use(), 0);
}

/// Without `exact`: the logits behind a text are the same bits however it was cut into calls and whatever sequences
/// were beside it. From those of the CPU's order of sums they are a quarter as far, at the most, as these are from f16
/// pages: behind one layer some codes of the next one's keys and values are their neighbours. `refresh`: positions are
/// computed again whenever so many are complete; 0: never.
inline void expect_same_in_parts(const char* kv, int64_t head_dim, int64_t positions, int64_t refresh = 0) {
  RandomModelSpec spec;
  spec.max_positions = positions + 64;
  spec.layers = 2;
  spec.head_dim = head_dim;
  const MemorySource source = make_random_model(spec);
  Rng rng(7);
  std::vector<int32_t> tokens(static_cast<size_t>(positions));
  for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(spec.vocab)));
  const auto vocab = size_t(spec.vocab);
  const auto logits_of = [&](const char* format, bool exact, bool in_parts) {
    std::vector<float> logits(vocab);
    LoadOptions options;
    options.x.activation = Activation::kF32;
    options.batch = 160;
    options.exact = exact;
    options.gpus = {0};
    options.kv = *parse_kv_format(format, 64);
    EXPECT_TRUE(!options.kv.packed() || set_kv_upkeep(refresh, "", options.kv));
    const auto model = Transformer::load(source, options);
    EXPECT_TRUE(model.has_value()) << model.error().message();
    Executor executor(**model);
    const auto pool = *(*model)->make_pool(200, 16);
    KvCache cache(pool, spec.max_positions);
    for (int64_t at = 0, count = positions; at < positions; at += count) {
      if (in_parts) count = std::min<int64_t>(at + 30 > positions ? 1 : 1 + int64_t(rng.below(90)), positions - at);
      KvCache beside(pool, spec.max_positions);
      std::vector<float> other(vocab);
      std::vector<SequenceRequest> requests = {
          {std::span(tokens).subspan(size_t(at), size_t(count)), &cache, LogitsWanted::last(), logits}};
      if (in_parts && rng.below(3) == 0)
        requests.push_back({std::span(tokens).first(9), &beside, LogitsWanted::last(), other});
      const Status ran = executor.forward(requests);
      EXPECT_TRUE(ran.has_value()) << ran.error().message();
    }
    return logits;
  };
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double(a[i]) - b[i], 2);
    return std::sqrt(sum);
  };
  const std::vector<float> fast = logits_of(kv, false, false), exact = logits_of(kv, true, false);
  EXPECT_TRUE(same_bits(logits_of(kv, false, true), fast)) << kv;
  if (head_dim == 64 && kv != std::string_view("int8")) {  // every GPU has room for these
    EXPECT_GT(distance(fast, exact), 0) << kv << ": not another kernel";
  }
  EXPECT_LE(distance(fast, exact), 0.25 * distance(exact, logits_of("f16", true, false))) << kv;
}

}  // namespace lowbit::program_checks
