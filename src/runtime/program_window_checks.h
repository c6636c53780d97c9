#pragma once
// Test only: layers with a sliding window give the pages before it back, on every backend.

#include "runtime/program_checks.h"

namespace lowbit::program_checks {

/// Pages before a window go, as they do on the host, and nobody misses them: a prompt in parts, tokens behind it, and
/// what follows when it is cut back.
inline void expect_windows_give_pages_back(Backend& backend, ThreadPool& pool) {
  constexpr int64_t kRows = 64, kContext = 640;
  RandomModelSpec spec;
  spec.model_type = "mistral";
  spec.window = 40;
  const MemorySource source = make_random_model(spec);
  const auto ref = make_ref_backend(pool);
  std::vector<float> all[2];
  int64_t bytes[2] = {}, most[2] = {};
  Backend* const backends[] = {ref.get(), &backend};
  for (const int which : {0, 1}) {
    const auto model = load(source, {.activation = Activation::kF32}, *backends[which]);
    const auto program = *backends[which]->compile(model->steps, {});
    const auto widths = slot_widths(model->spec);
    const auto work = *backends[which]->workspace(model->steps, {widths, kRows, kContext});
    KvCache cache(*backends[which]->kv_pool(groups_of(model->spec), 20, 0), kContext);
    Rng rng(5);
    const auto pass = [&](int64_t rows) {
      std::vector<int32_t> tokens(size_t(rows), 0);
      for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(model->spec.vocab_size)));
      std::vector<float> logits(size_t(model->spec.vocab_size), NAN);
      EXPECT_TRUE(cache.reserve(rows) && cache.open(rows));
      const SequenceRows sequence = {&cache, cache.length(), 0, rows};
      const WantedRows wanted = {rows - 1, 1, logits.data()};
      const Status ran = program->run(*work, {tokens, {&sequence, 1}, {&wanted, 1}}, 0, program->steps());
      EXPECT_TRUE(ran.has_value()) << ran.error().message();
      cache.commit(rows);
      most[which] = std::max(most[which], cache.bytes());
      all[which].insert(all[which].end(), logits.begin(), logits.end());
    };
    for (int part = 0; part < 9; ++part) pass(kRows - 1);
    for (int token = 0; token < 8; ++token) pass(1);
    EXPECT_TRUE(cache.truncate(cache.length() - 200));
    for (int token = 0; token < 3; ++token) pass(1);
    pass(kRows);
    bytes[which] = cache.bytes();
  }
  EXPECT_TRUE(same_bits(all[1], all[0]));
  EXPECT_EQ(bytes[1], bytes[0]);
  EXPECT_EQ(most[1], most[0]);
  const auto whole = *backend.kv_pool(groups_of(*executable_spec_of(source)), 20, 0);
  int64_t page = 0;
  for (size_t g = 0; g < whole->groups().size(); ++g) page += whole->page_bytes(int(g));
  EXPECT_LT(most[1], 9 * page) << "of 9 whole pages";
}

}  // namespace lowbit::program_checks
