// Checks that a model on several devices gives the bits of one on the CPU, and the tokens that its sampler would
// choose. For tests with and without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "model/random_model.h"
#include "runtime/executor.h"
#include "runtime/program_checks.h"
#include "runtime/token_chooser.h"
#include "runtime/transformer.h"

namespace lowbit::stage_checks {

struct Placement {
  std::vector<int> gpus;
  int64_t layers = -1;
};

/// Logits and observed rows of a prompt in parts, of a fork, of tokens one by one, of two sequences together, of one
/// that was cut back.
struct Seen {
  std::vector<float> logits, rows;
};
inline Seen run_story(Transformer& model) {
  Seen seen;
  const int64_t vocab = model.spec().vocab_size;
  Rng rng(3);
  std::vector<int32_t> text(150);
  for (int32_t& t : text) t = int32_t(rng.below(uint64_t(vocab)));
  const std::span all(text);
  const auto pages = *model.make_pool(64, 8);
  KvCache cache(pages, 256);
  std::vector<float> last(static_cast<size_t>(vocab));
  const auto add = [&](std::span<const int32_t> tokens, KvCache& to) {
    EXPECT_TRUE(model.forward(tokens, to, LogitsWanted::last(), last));
    seen.logits.insert(seen.logits.end(), last.begin(), last.end());
  };
  model.set_observer([&](const std::string&, const float* x, int64_t m, int64_t k) {
    seen.rows.insert(seen.rows.end(), x, x + m * k);
  });
  add(all.first(30), cache);
  model.set_observer({});
  add(all.subspan(30, 70), cache);
  KvCache other = cache.fork();
  for (size_t i = 100; i < 112; ++i) add(all.subspan(i, 1), i % 2 == 0 ? cache : other);
  Executor executor(model);
  for (size_t i = 112; i < 118; ++i) {
    std::vector<float> both(static_cast<size_t>(2 * vocab));
    const std::span<float> room(both);
    const SequenceRequest requests[] = {
        {all.subspan(i, 1), &cache, LogitsWanted::last(), room.first(size_t(vocab)), nullptr},
        {all.subspan(i + 6, 1), &other, LogitsWanted::last(), room.last(size_t(vocab)), nullptr}};
    EXPECT_TRUE(executor.forward(requests));
    seen.logits.insert(seen.logits.end(), both.begin(), both.end());
  }
  EXPECT_TRUE(cache.truncate(90));
  add(all.subspan(20, 5), cache);
  return seen;
}

/// Texts that samplers write, each behind a prompt of its own.
class Writers {
 public:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr size_t kCount = 8, kTokens = 20, kWithLogprobs = 3;
  using Texts = std::vector<std::vector<int32_t>>;

  Writers(Transformer& model, bool by_device) : executor_(model), vocab_(size_t(model.spec().vocab_size)) {
    const std::vector<uint32_t> mask = {0x7ffffff0, 0xffff0fff, 0xfff};
    const SamplerOptions options[kCount] = {
        {.repeat_penalty = 1.3F, .seed = 8},  // never by the device
        {.temperature = 0},
        {.seed = 5},
        {.top_k = 0, .top_p = 0.9F, .seed = 6},
        {.temperature = 1.5F, .top_k = 0, .min_p = 0.1F, .seed = 7},
        {.repeat_penalty = 1.3F, .seed = 8},
        {.temperature = 0, .frequency_penalty = 0.6F, .presence_penalty = 0.4F, .repeat_window = 5},
        {.repeat_penalty = 1.1F,
         .repeat_window = 30,
         .seed = 9,
         .logit_bias = {{40, 1.0F}, {9, -kInfinity}, {40, 0.5F}},
         .token_mask = mask}};
    const auto pages = *model.make_pool(64, 8);
    for (size_t w = 0; w < kCount; ++w) {
      caches_.emplace_back(pages, 256);
      const auto top = w == kWithLogprobs ? std::optional<int64_t>(3) : std::nullopt;
      choosers_.emplace_back(*Sampler::make(options[w]), by_device && w > 0 ? &model : nullptr, top);
      EXPECT_EQ(choosers_[w].by_device(), by_device && w > 0);
      next_.push_back({int32_t(w), 5, 9});
    }
  }

  /// All in one batch, a token a call.
  Texts together() {
    for (size_t step = 0; step < kTokens; ++step) write(0, kCount, 1);
    return texts_;
  }
  /// Texts whose tokens the device chooses, many a call: a prompt first, then more tokens than one call chooses.
  Texts in_calls() {
    for (size_t step = 0; step < kTokens; ++step) write(0, 1, 1);
    write(1, kCount, 7);
    write(1, 3, kTokens - 7);
    write(3, kCount, kTokens - 7);
    for (const KvCache& cache : caches_) EXPECT_EQ(cache.length(), int64_t(2 + kTokens));
    return texts_;
  }

 private:
  void write(size_t first, size_t last, size_t count) {
    std::vector<float> logits(kCount * vocab_);
    std::vector<SequenceRequest> requests;
    for (size_t w = first; w < last; ++w) {
      SequenceRequest& r = requests.emplace_back();
      r.tokens = next_[w];
      r.cache = &caches_[w];
      r.wanted = choosers_[w].wanted(count);
      if (!choosers_[w].by_device()) r.logits = std::span(logits).subspan(w * vocab_, vocab_);
    }
    const auto status = executor_.forward(requests);
    ASSERT_TRUE(status) << status.error().message();
    for (size_t w = first; w < last; ++w)
      for (size_t i = 0; i < count; ++i) {
        const auto token = choosers_[w].token(requests[w - first].logits, i);
        ASSERT_TRUE(token) << token.error().message();
        choosers_[w].accept(*token);
        texts_[w].push_back(*token);
        if (w == kWithLogprobs) add_logprobs(requests[w - first].logits, *token, i);
        next_[w] = {*token};
      }
  }

  /// Their bits, as if they were tokens.
  void add_logprobs(std::span<const float> logits, int32_t token, size_t i) {
    std::vector<std::pair<int32_t, float>> top;
    auto& to = texts_[kWithLogprobs];
    to.push_back(std::bit_cast<int32_t>(choosers_[kWithLogprobs].logprobs(logits, token, i, top)));
    for (const auto& [id, logprob] : top) to.insert(to.end(), {id, std::bit_cast<int32_t>(logprob)});
  }

  Executor executor_;
  size_t vocab_;
  std::vector<KvCache> caches_;
  std::vector<TokenChooser> choosers_;
  Texts next_, texts_{kCount};
};

inline void check_placements(const RandomModelSpec& spec, const std::vector<Placement>& placements,
                             const std::string& kv) {
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.batch = 40;
  options.kv = *parse_kv_format(kv, 64);
  const auto cpu = *Transformer::load(source, options);
  const Seen wanted = run_story(*cpu);
  const Writers::Texts texts = Writers(*cpu, false).together();
  for (const Placement& p : placements) {
    std::string name = kv + ", gpus";
    for (const int gpu : p.gpus) name += " " + std::to_string(gpu);
    name += ", layers " + std::to_string(p.layers);
    options.gpus = p.gpus;
    options.gpu_layers = p.layers;
    const auto model = Transformer::load(source, options);
    ASSERT_TRUE(model.has_value()) << name << ": " << model.error().message();
    const Seen got = run_story(**model);
    EXPECT_TRUE(same_bits(got.logits, wanted.logits)) << name;
    EXPECT_TRUE(same_bits(got.rows, wanted.rows)) << name;
    EXPECT_EQ((*model)->chooses_tokens(), p.layers != 0) << name;
    EXPECT_EQ(Writers(**model, (*model)->chooses_tokens()).together(), texts) << name;
    if ((*model)->chooses_tokens()) {
      EXPECT_EQ(Writers(**model, true).in_calls(), texts) << name;
    }
  }
}

}  // namespace lowbit::stage_checks
