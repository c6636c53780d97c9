#pragma once
// Test only: what every backend's program must give: models of all kinds by hand, run whole, observed and in ranges,
// and as sequences that fork and forget.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "backend/backend.h"
#include "base/rng.h"
#include "base/test_bits.h"
#include "model/model_spec.h"
#include "runtime/forward.h"
#include "runtime/program_cache_variants.h"

namespace lowbit::program_checks {

/// A model by hand: weights prepared, steps built.
struct Loaded {
  ModelSpec spec;
  ModelWeights weights;
  std::vector<Step> steps;
  KvFormat kv;
  std::vector<int> kept;  // layers with f16 pages
};

inline std::vector<float> vector_of(const MemorySource& source, const std::string& name) {
  const QTensor w = *source.load(name);
  std::vector<float> values(size_t(w.k));
  dequantize_rows(w, 0, 1, values.data());
  return values;
}

inline std::unique_ptr<Loaded> load(const MemorySource& source, const XPolicy& policy, Backend& backend) {
  auto loaded = std::make_unique<Loaded>();
  loaded->spec = *executable_spec_of(source);
  const ModelSpec& spec = loaded->spec;
  const auto prepare = [&](const std::string& name, const std::string& bias, WeightUse use) {
    const QTensor w = *source.load(name);
    auto weight = backend.prepare(name, w, bias.empty() ? std::vector<float>() : vector_of(source, bias),
                                  choose_x(w, policy), use);
    EXPECT_TRUE(weight.has_value()) << name;
    return std::move(*weight);
  };
  loaded->weights.embedding =
      prepare(weight_name(spec.embedding), "", spec.tied_head ? WeightUse::kBoth : WeightUse::kRows);
  if (!spec.tied_head) loaded->weights.own_head = prepare(weight_name(spec.head.name), "", WeightUse::kProducts);
  loaded->weights.final_norm = {vector_of(source, weight_name(spec.final_norm.name)), spec.final_norm.eps};
  loaded->weights.blocks.resize(spec.blocks.size());
  for (size_t b = 0; b < spec.blocks.size(); ++b) {
    BlockWeights& block = loaded->weights.blocks[b];
    const auto norm = [&](const std::optional<NormSpec>& of, Norm& to) {
      if (of) to = {vector_of(source, weight_name(int64_t(b), of->name)), of->eps};
    };
    for (const InputSpec* input : inputs_of(spec.blocks[b])) {
      norm(input->norm, block.norms[size_t(input->role)]);
      for (const LinearSpec& l : input->readers) norm(l.norm, block.linear_norms[size_t(l.role)]);
      for (const LinearSpec& l : input->readers)
        block.linears[size_t(l.role)] =
            prepare(weight_name(int64_t(b), l.name), l.bias ? bias_name(int64_t(b), l.name) : "", WeightUse::kProducts);
    }
    norm(spec.blocks[b].attention.q_norm, block.q_norm);
    norm(spec.blocks[b].attention.k_norm, block.k_norm);
  }
  loaded->steps = model_steps(spec, loaded->weights);
  return loaded;
}

inline std::vector<KvGroup> groups_of(const ModelSpec& spec, const KvFormat& kv = {}, std::span<const int> kept = {}) {
  std::vector<KvGroup> groups;
  for (size_t l = 0; l < spec.blocks.size(); ++l) {
    const AttentionSpec& a = spec.blocks[l].attention;
    groups.push_back(
        {.layers = {int(l)}, .kv_heads = a.kv_heads, .head_dim = a.head_dim, .window = a.window, .format = kv});
    if (std::ranges::count(kept, int(l)) > 0) groups.back().format = {};
  }
  return groups;
}

using Seen = std::map<int, std::vector<float>>;

enum class How { kWhole, kObserved, kInRanges };

/// Logits of all rows of two sequences in two batches, prompts and then a token beside the rest of a prompt; and what
/// taps saw.
inline std::vector<float> run(Backend& backend, const Loaded& model, How how, Seen& seen) {
  const auto program = *backend.compile(model.steps, {.taps = how != How::kWhole});
  const auto widths = slot_widths(model.spec);
  const auto work = *backend.workspace(model.steps, {widths, 64, 256});
  if (how != How::kWhole)
    work->set_observer([&](int tap, const float* x, int64_t m, int64_t k) -> Status {
      std::vector<float>& rows = seen[tap];
      const auto before = rows.size();
      rows.resize(before + size_t(m * k));
      auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(x));
      const Buffer shown = Buffer::borrow({bytes, size_t(m * k) * sizeof(float)}, nullptr);
      return backend.download(shown, 0, std::span(rows).subspan(before));
    });
  Rng rng(3);
  const int64_t vocab = model.spec.vocab_size;
  KvCache a(*backend.kv_pool(groups_of(model.spec), 2, 0), 128), b(*backend.kv_pool(groups_of(model.spec), 2, 0), 128);
  std::vector<float> all;
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{30, 34}, {1, 40}}) {
    std::vector<int32_t> tokens(static_cast<size_t>(m + n));
    for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(vocab)));
    EXPECT_TRUE(a.reserve(m) && b.reserve(n));
    const std::vector<SequenceRows> sequences = {{&a, a.length(), 0, m}, {&b, b.length(), m, n}};
    std::vector<float> logits(static_cast<size_t>((m + n) * vocab));
    const std::vector<WantedRows> wanted = {{0, m, logits.data()}, {m, n, logits.data() + m * vocab}};
    const Batch batch{tokens, sequences, wanted};
    if (how != How::kInRanges) {
      EXPECT_TRUE(program->run(*work, batch, 0, program->steps()));
    } else {
      int done = 0;
      for (size_t block = 0; block < model.spec.blocks.size(); ++block)
        for (size_t role = 0; role < kInputRoles; ++role) {
          const int step = 1 + int(block) * kBlockSteps + kInputSteps[role];
          EXPECT_TRUE(program->run(*work, batch, done, step));
          const Seen before = seen;
          const int tap = tap_of(int(block), static_cast<InputRole>(role));
          EXPECT_TRUE(program->show(*work, batch, step));
          EXPECT_GT(seen[tap].size(), before.contains(tap) ? before.at(tap).size() : 0);
          seen = before;  // it is shown again when the step runs
          done = step;
        }
      EXPECT_TRUE(program->run(*work, batch, done, program->steps()));
    }
    a.commit(m);
    b.commit(n);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

/// Logits of some sequences that grow, fork and forget, in random batches; the same calls for every backend.
inline std::vector<float> run_sessions(Backend& backend, const Loaded& model, int batches, uint64_t seed) {
  constexpr int64_t kRows = 48, kContext = 640;
  const auto program = *backend.compile(model.steps, {});
  const auto widths = slot_widths(model.spec);
  const auto work = *backend.workspace(model.steps, {widths, kRows, kContext});
  const auto pool = *backend.kv_pool(groups_of(model.spec, model.kv, model.kept), 100, 7);
  const int64_t vocab = model.spec.vocab_size;
  std::vector<KvCache> caches;
  for (int i = 0; i < 2; ++i) caches.emplace_back(pool, kContext);
  Rng rng(seed);
  const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
  std::vector<float> all;
  for (int batch = 0; batch < batches; ++batch) {
    if (below(3) == 0 && caches.size() < 6) caches.push_back(caches[size_t(below(int64_t(caches.size())))].fork());
    KvCache& forgets = caches[size_t(below(int64_t(caches.size())))];
    if (below(4) == 0 && &forgets != &caches.front()) {
      const int64_t length = below(forgets.length() + 1);
      EXPECT_TRUE(forgets.truncate(forgets.can_truncate(length) ? length : 0));
    }
    std::vector<int32_t> tokens;
    std::vector<SequenceRows> sequences;
    std::vector<WantedRows> wanted;
    int64_t rows_of_logits = 0;
    for (KvCache& cache : caches) {  // the first grows over several spans
      const auto row = int64_t(tokens.size());
      const int64_t asked = &cache == &caches.front() && batch < 8 ? 40 : below(4) == 0 ? 1 + below(24) : 1;
      const int64_t n = std::min({asked, kRows - row, kContext - cache.length()});
      if (n < 1 || (row > 0 && below(5) == 0)) continue;
      EXPECT_TRUE(cache.reserve(n));
      for (int64_t i = 0; i < n; ++i) tokens.push_back(int32_t(below(vocab)));
      sequences.push_back({&cache, cache.length(), row, n});
      const int64_t count = below(n + 1), first = below(n - count + 1);
      if (count > 0) wanted.push_back({row + first, count, nullptr});
      rows_of_logits += count;
    }
    std::vector<float> logits(size_t(rows_of_logits * vocab), NAN);
    float* to = logits.data();
    for (WantedRows& w : wanted) {
      w.logits = to;
      to += w.rows * vocab;
    }
    const Status ran = program->run(*work, {tokens, sequences, wanted}, 0, program->steps());
    EXPECT_TRUE(ran.has_value()) << ran.error().message();
    for (const SequenceRows& s : sequences) s.cache->commit(s.rows);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

/// Logits of sequences that decode side by side, a token each at a time, across borders of pages and spans: the same
/// kind of batch again and again, with some of another kind between them.
inline std::vector<float> run_decoding(Backend& backend, const Loaded& model, int batches, uint64_t seed) {
  constexpr int64_t kRows = 64, kContext = 640;
  const auto program = *backend.compile(model.steps, {});
  const auto widths = slot_widths(model.spec);
  const auto work = *backend.workspace(model.steps, {widths, kRows, kContext});
  const auto pool = *backend.kv_pool(groups_of(model.spec, model.kv, model.kept), 100, 7);
  const int64_t vocab = model.spec.vocab_size;
  Rng rng(seed);
  std::vector<float> all;
  std::vector<KvCache> caches;
  const auto pass = [&](std::span<const int> of, int64_t rows, bool wanted_all) {
    std::vector<int32_t> tokens;
    std::vector<SequenceRows> sequences;
    std::vector<WantedRows> wanted;
    std::vector<float> logits(of.size() * size_t(vocab), NAN);
    for (const int i : of) {
      KvCache& cache = caches[size_t(i)];
      EXPECT_TRUE(cache.reserve(rows));
      const auto row = int64_t(tokens.size());
      for (int64_t r = 0; r < rows; ++r) tokens.push_back(int32_t(rng.below(uint64_t(vocab))));
      sequences.push_back({&cache, cache.length(), row, rows});
      if (wanted_all || i % 2 == 0)
        wanted.push_back({row + rows - 1, 1, logits.data() + wanted.size() * size_t(vocab)});
    }
    const Status ran = program->run(*work, {tokens, sequences, wanted}, 0, program->steps());
    EXPECT_TRUE(ran.has_value()) << ran.error().message();
    for (const int i : of) caches[size_t(i)].commit(rows);
    logits.resize(wanted.size() * size_t(vocab));
    all.insert(all.end(), logits.begin(), logits.end());
  };
  for (const int64_t length : {int64_t{250}, int64_t{60}, int64_t{3}}) {
    caches.emplace_back(pool, kContext);
    const int own[] = {int(caches.size()) - 1};
    for (int64_t left = length; left > 0; left -= std::min(left, kRows)) pass(own, std::min(left, kRows), true);
  }
  const int three[] = {0, 1, 2}, one[] = {0}, four[] = {3, 0, 2, 1};
  for (int i = 0; i < batches; ++i) pass(three, 1, true);
  for (int i = 0; i < 4; ++i) pass(one, 1, true);
  caches.push_back(caches.front().fork());
  for (int i = 0; i < 5; ++i) pass(four, 1, i != 2);
  EXPECT_TRUE(caches[0].truncate(255));
  for (int i = 0; i < 4; ++i) pass(one, i == 1 ? 2 : 1, true);
  for (int i = 0; i < 3; ++i) pass(four, 1, true);
  return all;
}

/// A backend against the reference: logits, and rows at all taps.
inline void expect_reference(Backend& backend, const Variant& v, ThreadPool& pool) {
  const MemorySource source = make_random_model(v.model);
  const auto ref = make_ref_backend(pool);
  const auto wanted_model = load(source, v.x, *ref), model = load(source, v.x, backend);
  Seen wanted_rows, none;
  const std::vector<float> want = run(*ref, *wanted_model, How::kObserved, wanted_rows);
  for (const How how : {How::kWhole, How::kObserved, How::kInRanges}) {
    Seen rows;
    EXPECT_TRUE(same_bits(run(backend, *model, how, rows), want)) << v.name << ", " << int(how);
    if (how == How::kWhole) continue;
    for (const auto& [tap, values] : wanted_rows)
      EXPECT_TRUE(same_bits(rows[tap], values)) << v.name << ", " << int(how) << ", tap " << tap;
  }
}

/// The reference's bits also for sequences that share pages.
inline void expect_reference_sessions(Backend& backend, const Variant& v, ThreadPool& pool, int batches) {
  const MemorySource source = make_random_model(v.model);
  const auto ref = make_ref_backend(pool);
  const auto wanted_model = load(source, v.x, *ref), model = load(source, v.x, backend);
  wanted_model->kv = model->kv = v.kv;
  wanted_model->kept = model->kept = v.kept;
  const std::vector<float> want = run_sessions(*ref, *wanted_model, batches, 7);
  EXPECT_GT(want.size(), 0u);
  EXPECT_TRUE(same_bits(run_sessions(backend, *model, batches, 7), want)) << v.name;
}

/// The reference's bits also for sequences that decode.
inline void expect_reference_decoding(Backend& backend, const Variant& v, ThreadPool& pool, int batches) {
  const MemorySource source = make_random_model(v.model);
  const auto ref = make_ref_backend(pool);
  const auto wanted_model = load(source, v.x, *ref), model = load(source, v.x, backend);
  wanted_model->kv = model->kv = v.kv;
  wanted_model->kept = model->kept = v.kept;
  const std::vector<float> want = run_decoding(*ref, *wanted_model, batches, 11);
  EXPECT_TRUE(same_bits(run_decoding(backend, *model, batches, 11), want)) << v.name;
}

}  // namespace lowbit::program_checks
