#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "base/cpu.h"
#include "base/rng.h"
#include "base/test_bits.h"
#include "model/random_model.h"
#include "runtime/sampler.h"

namespace lowbit {
namespace {

struct Variant {
  const char* name;
  FormatId format;
  Activation activation;
  int64_t activation_group;
};
constexpr Variant kVariants[] = {{"dense", FormatId::kBf16, Activation::kF32, 0},
                                 {"int4", FormatId::kInt4, Activation::kInt8, 32},
                                 {"ternary, int8-row", FormatId::kTernaryPacked, Activation::kInt8, 0}};

std::unique_ptr<Transformer> load(const Variant& variant, const RandomModelSpec& spec, int threads, int64_t batch,
                                  const KvFormat& kv = {}) {
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.x.activation = variant.activation;
  options.x.group = variant.activation_group;
  options.isa = best_isa();
  options.threads = threads;
  options.batch = batch;
  options.kv = kv;
  auto model = Transformer::load(source, options);
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
  return model ? std::move(*model) : nullptr;
}

/// A text of its own: a random prompt, then what the sampler takes; some forget their end and go on otherwise, some
/// leave a fork behind. Everything is derived from `seed`, so that it can be told again alone.
class Story {
 public:
  Story(Transformer& model, KvCache cache, uint64_t seed)
      : model_(&model),
        cache_(std::move(cache)),
        rng_(seed),
        sampler_(*Sampler::make({.seed = seed})),
        logits_(size_t(model.spec().vocab_size)) {}
  explicit Story(const Story& from)
      : model_(from.model_),
        cache_(from.cache_.fork()),
        rng_(from.rng_),
        sampler_(from.sampler_),
        logits_(from.logits_) {}

  template <class Forward>
  void run(int steps, const Forward& forward) {
    std::vector<int32_t> prompt(1 + rng_.below(90));
    for (int32_t& t : prompt) t = int32_t(rng_.below(uint64_t(model_->spec().vocab_size)));
    take(prompt, forward);
    for (int i = 0; i < steps; ++i) {
      const uint64_t what = rng_.below(12);
      if (what == 0 && cache_.length() > 2) {
        const auto status = cache_.truncate(1 + int64_t(rng_.below(uint64_t(cache_.length() - 1))));
        EXPECT_TRUE(status.has_value());
      }
      if (what == 1) {  // a fork that runs ahead and is dropped must not be felt
        Story other(*this);
        const int32_t token = int32_t(other.rng_.below(uint64_t(model_->spec().vocab_size)));
        other.take({&token, 1}, forward);
        other.take(prompt, forward);
      }
      const int32_t token = *sampler_.sample(logits_);
      take({&token, 1}, forward);
    }
  }
  const std::vector<float>& record() const { return record_; }

 private:
  template <class Forward>
  void take(std::span<const int32_t> tokens, const Forward& forward) {
    const Status status = forward(tokens, cache_, logits_);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
    record_.insert(record_.end(), logits_.begin(), logits_.end());
  }

  Transformer* model_;
  KvCache cache_;
  Rng rng_;
  Sampler sampler_;
  std::vector<float> logits_, record_;
};

std::vector<float> told_alone(Transformer& model, uint64_t seed, int steps) {
  Story story(model, *model.make_cache(), seed);
  story.run(steps, [&](std::span<const int32_t> tokens, KvCache& cache, std::span<float> logits) {
    return model.forward(tokens, cache, LogitsWanted::last(), logits);
  });
  return story.record();
}

// The promise that everything else stands on: whoever runs beside a sequence, its bits are those that it has alone.
TEST(Executor, ThirtyTwoSessionsAreEqualToThemselvesAlone) {
  constexpr int kSteps = 14;
  for (const Variant& variant : kVariants) {
    RandomModelSpec spec;
    spec.format = variant.format;
    spec.max_positions = 512;
    auto model = load(variant, spec, 2, 48);  // a batch that prompts must share
    ASSERT_TRUE(model);
    std::vector<std::vector<float>> alone;
    for (uint64_t seed = 0; seed < 32; ++seed) alone.push_back(told_alone(*model, seed, kSteps));
    Executor executor(*model);
    auto pool = KvPool::make(model->kv_groups(), 1000, 50);
    ASSERT_TRUE(pool.has_value());
    std::vector<std::unique_ptr<Story>> stories;
    for (uint64_t seed = 0; seed < 32; ++seed)
      stories.push_back(std::make_unique<Story>(*model, KvCache(*pool, 512), seed));
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = size_t(t); i < stories.size(); i += 8)
          stories[i]->run(kSteps, [&](std::span<const int32_t> tokens, KvCache& cache, std::span<float> logits) {
            return executor.forward(tokens, cache, LogitsWanted::last(), logits);
          });
      });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < stories.size(); ++i)
      EXPECT_TRUE(same_bits(stories[i]->record(), alone[i])) << variant.name << ", session " << i;
    stories.clear();
    EXPECT_EQ((*pool)->pages_in_use(), 0);
  }
}

// Batches put together at random on one thread: every mixture of prompt chunks and tokens, rows with and without
// logits.
TEST(Transformer, RaggedBatchesHaveTheBitsOfEachSequence) {
  for (const Variant& variant : kVariants) {
    RandomModelSpec spec;
    spec.format = variant.format;
    spec.max_positions = 256;
    auto model = load(variant, spec, 2, 64);
    ASSERT_TRUE(model);
    const int64_t vocab = model->spec().vocab_size;
    Rng rng(7);
    constexpr size_t kSequences = 9;
    std::vector<std::vector<int32_t>> texts(kSequences);
    std::vector<std::vector<float>> want(kSequences), got(kSequences);
    std::vector<KvCache> caches;
    for (size_t s = 0; s < kSequences; ++s) {
      texts[s].resize(2 + rng.below(150));
      for (int32_t& t : texts[s]) t = int32_t(rng.below(uint64_t(vocab)));
      want[s].resize(texts[s].size() * size_t(vocab));
      got[s].assign(want[s].size(), -1);
      auto cache = model->make_cache();
      ASSERT_TRUE(model->forward(texts[s], *cache, LogitsWanted::range(0, int64_t(texts[s].size())), want[s]));
      caches.push_back(*model->make_cache());
    }
    for (bool more = true; more;) {
      std::vector<BatchPart> batch;
      int64_t room = model->batch();
      for (size_t s = 0; s < kSequences; ++s) {
        const int64_t at = caches[s].length(), left = int64_t(texts[s].size()) - at;
        const int64_t rows =
            std::min({left, room, rng.below(3) == 0 ? int64_t(1 + rng.below(30)) : int64_t(rng.below(2))});
        if (rows <= 0) continue;
        room -= rows;
        ASSERT_TRUE(caches[s].reserve(rows));
        const auto first = int64_t(rng.below(uint64_t(rows + 1))),
                   count = int64_t(rng.below(uint64_t(rows - first + 1)));
        batch.push_back({std::span(texts[s]).subspan(size_t(at), size_t(rows)), &caches[s], first, count,
                         got[s].data() + (at + first) * vocab});
      }
      if (!batch.empty()) {
        ASSERT_TRUE(model->run(batch));
      }
      more = false;
      for (size_t s = 0; s < kSequences; ++s) more = more || caches[s].length() < int64_t(texts[s].size());
    }
    int64_t rows = 0;
    for (size_t s = 0; s < kSequences; ++s)
      for (size_t i = 0; i < texts[s].size(); ++i) {
        const float* row = got[s].data() + int64_t(i) * vocab;
        if (std::all_of(row, row + vocab, [](float l) { return l == -1; })) continue;  // not asked for
        ++rows;
        EXPECT_EQ(std::memcmp(row, want[s].data() + int64_t(i) * vocab, size_t(vocab) * sizeof(float)), 0)
            << variant.name << ", sequence " << s << ", row " << i;
      }
    EXPECT_GT(rows, 100);
  }
}

TEST(Executor, OneWithoutPagesFailsAndTheOthersGoOn) {
  RandomModelSpec spec;
  spec.max_positions = 512;
  auto model = load(kVariants[0], spec, 1, 64);
  ASSERT_TRUE(model);
  Executor executor(*model);
  auto pool = KvPool::make(model->kv_groups(), 3);
  ASSERT_TRUE(pool.has_value());
  std::vector<int32_t> text(100, 3);
  std::vector<float> logits(size_t(model->spec().vocab_size)), other(logits.size());
  KvCache a(*pool, 512), b(*pool, 512);
  ASSERT_TRUE(executor.forward(text, a, LogitsWanted::last(), logits));
  const Status status = executor.forward(text, b, LogitsWanted::last(), other);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(b.length(), 0);
  ASSERT_TRUE(executor.forward(std::span(text).first(1), a, LogitsWanted::last(), logits));
  a.clear();
  EXPECT_TRUE(executor.forward(text, b, LogitsWanted::last(), other));
}

/// Random texts, and logits of the rows that are wanted of each, computed alone.
struct Texts {
  Texts(Transformer& model, size_t count, uint64_t seed) {
    Rng rng(seed);
    const int64_t vocab = model.spec().vocab_size;
    for (size_t s = 0; s < count; ++s) {
      std::vector<int32_t> text(1 + rng.below(120));
      for (int32_t& t : text) t = int32_t(rng.below(uint64_t(vocab)));
      const auto first = int64_t(rng.below(text.size() + 1));
      const auto n = int64_t(rng.below(text.size() + 1 - size_t(first)));
      auto cache = model.make_cache();
      alone.emplace_back(size_t(n * vocab));
      EXPECT_TRUE(model.forward(text, *cache, LogitsWanted::range(first, n), alone.back()));
      texts.push_back(std::move(text));
      wanted.push_back(LogitsWanted::range(first, n));
    }
  }
  std::vector<std::vector<int32_t>> texts;
  std::vector<LogitsWanted> wanted;
  std::vector<std::vector<float>> alone;
};

/// Runs all of them by one call, every second one into a sink.
void run_together(Executor& executor, const std::shared_ptr<KvPool>& pool, const Texts& texts, int64_t vocab) {
  const size_t count = texts.texts.size();
  std::vector<KvCache> caches;
  std::vector<std::vector<float>> got;
  std::vector<std::vector<int>> calls(count);
  std::vector<LogitsSink> sinks(count);
  std::vector<SequenceRequest> requests;
  for (size_t s = 0; s < count; ++s) caches.emplace_back(pool, 512);
  for (size_t s = 0; s < count; ++s) {
    got.emplace_back(texts.alone[s].size(), -1.0f);
    calls[s].resize(size_t(texts.wanted[s].count));
    sinks[s] = [&, s, vocab](int64_t row, std::span<float> logits) {
      std::copy(logits.begin(), logits.end(), got[s].begin() + row * vocab);
      ++calls[s][size_t(row)];
      std::fill(logits.begin(), logits.end(), 0.0f);  // they are the sink's
    };
    LogitsWanted wanted = texts.wanted[s];
    if (s % 2 == 0) wanted.sink = &sinks[s];
    requests.push_back({texts.texts[s], &caches[s], wanted, s % 2 == 0 ? std::span<float>() : got[s], nullptr});
  }
  const Status status = executor.forward(requests);
  ASSERT_TRUE(status.has_value()) << status.error().message();
  for (size_t s = 0; s < count; ++s) {
    EXPECT_TRUE(same_bits(got[s], texts.alone[s])) << "sequence " << s;
    EXPECT_EQ(caches[s].length(), int64_t(texts.texts[s].size()));
    for (const int n : calls[s]) EXPECT_EQ(n, s % 2 == 0 ? 1 : 0);
  }
}

TEST(Executor, OneCallerRunsManySequencesAndSinksTakeTheirLogits) {
  for (const Variant& variant : kVariants)
    for (const bool reference : {false, true}) {
      RandomModelSpec spec;
      spec.format = variant.format;
      LoadOptions options;
      options.x.activation = variant.activation;
      options.x.group = variant.activation_group;
      options.isa = best_isa();
      options.threads = 3;
      options.reference = reference;
      auto model = Transformer::load(make_random_model(spec), options);
      ASSERT_TRUE(model.has_value());
      Executor executor(**model);
      auto pool = KvPool::make((*model)->kv_groups(), 1000, 50);
      for (const size_t count : {size_t{1}, size_t{2}, size_t{25}})
        run_together(executor, *pool, Texts(**model, count, count), spec.vocab);
      EXPECT_TRUE(executor.forward(std::span<const SequenceRequest>()));
      EXPECT_EQ((*pool)->pages_in_use(), 0);
    }
}

TEST(Executor, CallersOfManyAndOfOneRunTogether) {
  RandomModelSpec spec;
  auto model = load(kVariants[1], spec, 2, 48);
  ASSERT_TRUE(model);
  std::vector<Texts> texts;
  for (uint64_t t = 0; t < 4; ++t) texts.emplace_back(*model, t < 2 ? 12 : 1, 50 + t);
  Executor executor(*model);
  auto pool = KvPool::make(model->kv_groups(), 1000, 50);
  std::vector<std::thread> threads;
  for (const Texts& own : texts)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) run_together(executor, *pool, own, spec.vocab);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Executor, WhereOneOfManyFailsAllStayAsTheyWere) {
  RandomModelSpec spec;
  auto model = load(kVariants[0], spec, 1, 64);
  ASSERT_TRUE(model);
  Executor executor(*model);
  auto pool = KvPool::make(model->kv_groups(), 3);
  const std::vector<int32_t> text(60, 3);
  std::vector<float> logits(size_t(spec.vocab)), again(logits.size());
  KvCache a(*pool, 256), b(*pool, 256), c(*pool, 256);
  ASSERT_TRUE(executor.forward(std::span(text).first(10), a, LogitsWanted::last(), logits));
  const auto last = [&](KvCache& cache) {
    return SequenceRequest{text, &cache, LogitsWanted::last(), logits, nullptr};
  };
  const std::vector<SequenceRequest> three = {last(a), last(b), last(c)};  // two pages, one and one
  const Status status = executor.forward(three);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(a.length(), 10);
  EXPECT_EQ(b.length(), 0);
  EXPECT_EQ((*pool)->pages_in_use(), 1);
  const std::vector<SequenceRequest> twice = {last(b), last(b)};
  EXPECT_EQ(executor.forward(twice).error().code, ErrorCode::kInvalidArgument);
  const std::vector<SequenceRequest> bad = {last(a), {{}, &b, LogitsWanted::last(), logits, nullptr}};
  EXPECT_EQ(executor.forward(bad).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(executor.forward(std::span(three).first(2)));
  auto alone = model->make_cache();
  ASSERT_TRUE(model->forward(text, *alone, LogitsWanted::last(), again));
  EXPECT_TRUE(same_bits(logits, again));  // b's
}

// A prompt takes f16 pages as it goes where they will be packed. When there are none, whoever runs beside it must not
// feel it.
TEST(Executor, APromptThatGetsNoPagesFailsAlone) {
  RandomModelSpec spec;
  spec.max_positions = 1024;
  auto model = load(kVariants[0], spec, 1, 1024, *parse_kv_format("int4", 128));
  ASSERT_TRUE(model);
  Executor executor(*model);
  auto pool = KvPool::make(model->kv_groups(), 12);
  const std::vector<int32_t> text(1000, 3);  // 8 pages in advance, 16 in the end
  std::vector<float> logits(size_t(spec.vocab)), again(logits.size());
  KvCache holds(*pool, 1024), prompt(*pool, 1024), beside(*pool, 1024);
  std::atomic<int> started = 0;
  const LogitsSink waits = [&](int64_t, std::span<float>) {  // so that the next batch has both of the others
    while (started < 2) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  Status of_prompt, of_beside;
  std::vector<std::thread> threads;
  threads.emplace_back(
      [&] { EXPECT_TRUE(executor.forward(std::span(text).first(1), holds, LogitsWanted::range(0, 1, &waits), {})); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  threads.emplace_back([&] {
    ++started;
    of_prompt = executor.forward(text, prompt, LogitsWanted::none(), {});
  });
  threads.emplace_back([&] {
    ++started;
    of_beside = executor.forward(std::span(text).first(1), beside, LogitsWanted::last(), logits);
  });
  for (std::thread& thread : threads) thread.join();
  ASSERT_FALSE(of_prompt.has_value());
  EXPECT_EQ(of_prompt.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(prompt.length(), 0);
  EXPECT_TRUE(of_beside.has_value()) << of_beside.error().message();
  auto alone = model->make_cache();
  ASSERT_TRUE(model->forward(std::span(text).first(1), *alone, LogitsWanted::last(), again));
  EXPECT_TRUE(same_bits(logits, again));
}

// Restarts a sequence that is cut back further than its f16 pages reach, as a session does.
TEST(Executor, APackedSequenceIsComputedAgainBesideItself) {
  constexpr int64_t kLength = 900, kCut = 333;
  RandomModelSpec spec;
  spec.max_positions = 1024;
  auto model = load(kVariants[0], spec, 1, 64, *parse_kv_format("int4", 64));
  ASSERT_TRUE(model);
  Executor executor(*model);
  std::vector<int32_t> text(kLength);
  for (int64_t i = 0; i < kLength; ++i) text[size_t(i)] = int32_t(i * 7 % spec.vocab);
  std::vector<float> logits(size_t(spec.vocab)), again(logits.size());
  const auto first = [&](int64_t n) { return std::span<const int32_t>(text).first(size_t(n)); };
  auto pool = KvPool::make(model->kv_groups(), 40);
  KvCache cache(*pool, 1024);
  for (const int32_t token : text) ASSERT_TRUE(executor.forward({&token, 1}, cache, LogitsWanted::last(), logits));
  ASSERT_FALSE(cache.can_truncate(kCut));
  {
    KvCache other = cache.restarted(kCut);
    EXPECT_EQ(other.length(), 0);
    ASSERT_TRUE(executor.forward(first(kCut), other, LogitsWanted::none(), {}));
    ASSERT_TRUE(executor.forward({&text[kCut], 1}, other, LogitsWanted::last(), again));
  }
  auto alone = model->make_cache();
  ASSERT_TRUE(model->forward(first(kCut + 1), *alone, LogitsWanted::last(), logits));
  EXPECT_TRUE(same_bits(logits, again));
  // One that gets no pages leaves nothing behind, and the other goes on as if it had never been.
  std::vector<KvCache> others;
  while (true) {
    others.emplace_back(*pool, 1024);
    if (!executor.forward(first(64), others.back(), LogitsWanted::none(), {})) break;
  }
  const int64_t in_use = (*pool)->pages_in_use();
  {
    KvCache other = cache.restarted(kCut);
    EXPECT_FALSE(executor.forward(first(kCut), other, LogitsWanted::none(), {}));
  }
  EXPECT_EQ((*pool)->pages_in_use(), in_use);
  others.clear();
  ASSERT_TRUE(executor.forward({&text[0], 1}, cache, LogitsWanted::last(), logits));
  alone = model->make_cache();
  ASSERT_TRUE(model->forward(first(kLength), *alone, LogitsWanted::none(), {}));
  ASSERT_TRUE(model->forward({&text[0], 1}, *alone, LogitsWanted::last(), again));
  EXPECT_TRUE(same_bits(logits, again));
}

TEST(Executor, RefusesWhatAForwardRefuses) {
  RandomModelSpec spec;
  auto model = load(kVariants[0], spec, 1, 64);
  ASSERT_TRUE(model);
  Executor executor(*model);
  auto cache = model->make_cache();
  std::vector<float> logits(size_t(model->spec().vocab_size));
  const int32_t bad = -1, good = 1;
  EXPECT_FALSE(executor.forward({}, *cache, LogitsWanted::last(), logits));
  EXPECT_FALSE(executor.forward({&bad, 1}, *cache, LogitsWanted::last(), logits));
  EXPECT_FALSE(executor.forward({&good, 1}, *cache, LogitsWanted::last(), {}));
  EXPECT_FALSE(executor.forward({&good, 1}, *cache, LogitsWanted::range(1, 1), logits));
  EXPECT_TRUE(executor.forward({&good, 1}, *cache, LogitsWanted::none(), {}));
  const SequenceRequest adapted = {
      .tokens = {&good, 1}, .cache = &*cache, .wanted = LogitsWanted::none(), .logits = {}, .adapter = 3};
  const auto refused = executor.forward({&adapted, 1});
  ASSERT_TRUE(!refused && refused.error().code == ErrorCode::kUnsupported && cache->length() == 1);
  EXPECT_NE(refused.error().message().find("adapter 3"), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace lowbit
