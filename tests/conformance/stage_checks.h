// What a model on several devices must give: the bits of one on the CPU, and the tokens that its sampler would choose.
// For tests with and without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/random_model.h"
#include "runtime/executor.h"
#include "runtime/program_checks.h"
#include "runtime/sampler.h"
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

/// Tokens that each sampler chooses behind a prompt, three sequences in one batch: by the device where it can.
inline std::vector<int32_t> write_tokens(Transformer& model, bool by_device) {
  Executor executor(model);
  const auto pages = *model.make_pool(64, 8);
  constexpr size_t kSequences = 3;
  const SamplerOptions options[kSequences] = {{.temperature = 0}, {.seed = 5}, {.top_k = 0, .top_p = 0.9F, .seed = 6}};
  const auto vocab = static_cast<size_t>(model.spec().vocab_size);
  std::vector<KvCache> caches;
  std::vector<Sampler> samplers;
  std::vector<std::vector<int32_t>> next;
  for (size_t s = 0; s < kSequences; ++s) {
    caches.emplace_back(pages, 256);
    samplers.push_back(*Sampler::make(options[s]));
    next.push_back({int32_t(s), 5, 9});
  }
  std::vector<int32_t> tokens;
  std::vector<float> logits(kSequences * vocab);
  for (int step = 0; step < 20; ++step) {
    TokenChoice choices[kSequences];
    std::vector<SequenceRequest> requests;
    for (size_t s = 0; s < kSequences; ++s) {
      SequenceRequest& r = requests.emplace_back();
      r.tokens = next[s];
      r.cache = &caches[s];
      // One of them wants logits now and then.
      const bool chooses = by_device && !(s == 2 && step % 5 == 0);
      if (chooses) choices[s].rule = samplers[s].next_rule();
      if (chooses) r.wanted = LogitsWanted::token(&choices[s]);
      if (!chooses) r.logits = std::span(logits).subspan(s * vocab, vocab);
    }
    const auto status = executor.forward(requests);
    EXPECT_TRUE(status) << status.error().message();
    for (size_t s = 0; s < kSequences; ++s) {
      const bool chosen = requests[s].wanted.choice != nullptr;
      next[s] = {chosen ? choices[s].token : *samplers[s].sample(requests[s].logits)};
      tokens.push_back(next[s][0]);
    }
  }
  return tokens;
}

inline void check_placements(const RandomModelSpec& spec, const std::vector<Placement>& placements,
                             const std::string& kv) {
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.batch = 40;
  options.kv = *parse_kv_format(kv, 64);
  const auto cpu = *Transformer::load(source, options);
  const Seen wanted = run_story(*cpu);
  const std::vector<int32_t> tokens = write_tokens(*cpu, false);
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
    EXPECT_EQ(write_tokens(**model, (*model)->chooses_tokens()), tokens) << name;
  }
}

}  // namespace lowbit::stage_checks
