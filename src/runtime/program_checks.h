#pragma once
// Test only: what every backend's program must give: models of all kinds by hand, run whole, observed and in ranges,
// and as sequences that fork and forget.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/backend.h"
#include "base/rng.h"
#include "base/test_bits.h"
#include "kernels/fp8_api.h"
#include "model/model_spec.h"
#include "model/random_model.h"
#include "runtime/forward.h"

namespace lowbit::program_checks {

struct Variant {
  const char* name;
  RandomModelSpec model;
  XPolicy x;
  KvFormat kv = {};
};

inline std::vector<Variant> variants() {
  std::vector<Variant> all;
  RandomModelSpec s;
  all.push_back({"dense", s, {.activation = Activation::kF32}});
  s.model_type = "qwen3";
  s.tied = true;
  s.head_dim = 24;
  all.push_back({"norms of heads, tied head", s, {.activation = Activation::kF32}});
  s = {};
  s.attention_bias = s.mlp_bias = true;
  s.format = FormatId::kInt4;
  all.push_back({"int4, biases", s, {.group = 32}});
  all.push_back({"int4, a scale per row", s, {.group = 0}});
  all.push_back({"int4, clipped", s, {.group = 0, .rounding = {127, 0.01}}});
  s = {};
  s.format = FormatId::kCodebook4;
  s.group = 40;
  all.push_back({"codebook4", s, {.group = 32}});
  s.format = FormatId::kTernaryPacked;
  s.group = Scaling::kAll;
  all.push_back({"ternary, as trained", s, {.group = 32, .as_trained = true}});
  s = {};
  s.model_type = "bitnet";
  all.push_back({"bitnet, dense", s, {.activation = Activation::kF32}});
  s.tied = true;
  s.format = FormatId::kTernary;
  s.group = Scaling::kAll;
  all.push_back({"bitnet, as trained", s, {.group = 32, .as_trained = true}});
  s.format = FormatId::kInt4;  // codes of x behind the norm of the gated product, per 32
  s.group = 32;
  s.hidden = 72;
  s.intermediate = 100;
  all.push_back({"bitnet, int4, odd sizes", s, {.group = 32}});
  s = {};
  s.linear_norms = s.attention_bias = true;
  all.push_back({"norms of single layers", s, {.activation = Activation::kF32}});
  s.model_type = "bitnet";
  s.format = FormatId::kTernary;
  s.group = Scaling::kAll;
  all.push_back({"bitnet, norms of single layers", s, {.group = 32, .as_trained = true}});
  s = {};
  s.format = FormatId::kInt8;
  s.linear_norms = true;
  s.down_hadamard = 32;
  all.push_back({"norms of single layers behind a transform", s, {.group = 32}});
  s = {};
  s.format = FormatId::kInt8;
  s.down_hadamard = 32;
  all.push_back({"transform before down", s, {.group = 32}});
  // What tensor cores do not take, so that a GPU has these bits, too.
  all.push_back({"int8 by bf16", s, {.activation = Activation::kF32, .rounding = {.halves = Halves::kBf16}}});
  s = {};
  s.format = FormatId::kCodebook4;
  s.group = 40;
  all.push_back({"codebook4 by f16", s, {.activation = Activation::kF32, .rounding = {.halves = Halves::kF16}}});
  s = {};
  s.model_type = "qwen2";
  s.layers = 3;
  s.window = 20;
  s.first_windowed = 1;
  all.push_back({"windows in some blocks", s, {.activation = Activation::kF32}});
  return all;
}

/// Quantized caches: all widths of codes, groups of heads, blocks of values of all sizes, windows.
inline std::vector<Variant> packed_variants() {
  std::vector<Variant> all;
  const XPolicy f32 = {.activation = Activation::kF32};
  RandomModelSpec s;
  s.max_positions = 640;
  s.layers = 2;
  const auto add = [&](const char* name, int64_t heads, int64_t kv_heads, int64_t head_dim, KvFormat kv) {
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dim = head_dim;
    all.push_back({name, s, f32, kv});
  };
  add("int4 cache, heads of 16", 4, 2, 16, {4, 4, 0});
  add("k8v2 cache, heads of 64", 3, 1, 64, {8, 2, 64});
  add("int8 cache, heads of 80", 2, 2, 80, {8, 8, 0});
  add("int4 cache, heads of 128", 4, 1, 128, {4, 4, 0});
  add("k4v2 cache, heads of 128", 6, 2, 128, {4, 2, 64});
  add("int2 cache, heads of 128", 2, 1, 128, {2, 2, 128});
  add("k2v4 cache, heads of 128", 5, 1, 128, {2, 4, 128});
  s.model_type = "qwen2";
  s.window = 150;
  s.first_windowed = 1;
  add("int2 cache, windows", 9, 1, 32, {2, 2, 0});
  add("int4 cache, heads of 64, windows", 9, 3, 64, {4, 4, 64});
  return all;
}

/// FP8 by FP8 as a GPU takes it, too. Tensor cores round sums their own way where `rows` is no 1.
inline Variant fp8_variant(int64_t rows) {
  RandomModelSpec s;
  s.format = FormatId::kFp8;
  s.hidden = 192;  // a block of 128 columns and a short one
  s.intermediate = 320;
  s.heads = 4;
  s.attention_bias = true;
  s.group = 128;
  s.group_rows = rows;
  return {rows == 1 ? "fp8 by fp8, 1 x 128" : "fp8 by fp8, blocks",
          s,
          {.activation = Activation::kFp8, .group = kFp8Block},
          {}};
}

/// Integers of few bits by x in 16: a GPU's tensor cores round sums their own way.
inline Variant halves_variant(Halves halves, FormatId format, int64_t group) {
  RandomModelSpec s;
  s.model_type = format == FormatId::kTernary ? "bitnet" : "llama";
  s.format = format;
  s.hidden = 192;
  s.intermediate = 320;
  s.group = group;
  s.attention_bias = true;
  const char* name = halves == Halves::kF16 ? "few bits by f16" : "few bits by bf16";
  return {name, s, {.activation = Activation::kF32, .rounding = {.halves = halves}}, {}};
}

/// With those that a GPU refuses, or gives other bits.
inline std::vector<Variant> host_variants() {
  std::vector<Variant> all = variants();
  all.push_back(halves_variant(Halves::kF16, FormatId::kInt4, 64));
  all.push_back(halves_variant(Halves::kBf16, FormatId::kTernary, Scaling::kAll));
  all.push_back(fp8_variant(128));
  all.push_back(fp8_variant(1));
  const XPolicy fp8 = {.activation = Activation::kFp8, .group = kFp8Block};
  RandomModelSpec s = fp8_variant(1).model;
  s.group = Scaling::kAll;
  s.down_hadamard = 64;
  all.push_back({"fp8 by fp8, a scale per row", s, fp8});
  s = {};
  s.model_type = "bitnet";
  s.format = FormatId::kFp8;
  s.group = 40;  // smaller than x's
  all.push_back({"fp8 by fp8, groups of 40", s, fp8});
  s.format = FormatId::kInt4;
  s.group = 32;
  all.push_back({"int4 by what was to be fp8", s, fp8});
  return all;
}

/// A model by hand: weights prepared, steps built.
struct Loaded {
  ModelSpec spec;
  ModelWeights weights;
  std::vector<Step> steps;
  KvFormat kv;
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

inline std::vector<KvGroup> groups_of(const ModelSpec& spec, const KvFormat& kv = {}) {
  std::vector<KvGroup> groups;
  for (size_t l = 0; l < spec.blocks.size(); ++l) {
    const AttentionSpec& a = spec.blocks[l].attention;
    groups.push_back(
        {.layers = {int(l)}, .kv_heads = a.kv_heads, .head_dim = a.head_dim, .window = a.window, .format = kv});
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
  const auto pool = *backend.kv_pool(groups_of(model.spec, model.kv), 100, 7);
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
  const auto pool = *backend.kv_pool(groups_of(model.spec, model.kv), 100, 7);
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

/// The same for sequences that share pages.
inline void expect_reference_sessions(Backend& backend, const Variant& v, ThreadPool& pool, int batches) {
  const MemorySource source = make_random_model(v.model);
  const auto ref = make_ref_backend(pool);
  const auto wanted_model = load(source, v.x, *ref), model = load(source, v.x, backend);
  wanted_model->kv = model->kv = v.kv;
  const std::vector<float> want = run_sessions(*ref, *wanted_model, batches, 7);
  EXPECT_GT(want.size(), 0u);
  EXPECT_TRUE(same_bits(run_sessions(backend, *model, batches, 7), want)) << v.name;
}

/// The same for sequences that decode.
inline void expect_reference_decoding(Backend& backend, const Variant& v, ThreadPool& pool, int batches) {
  const MemorySource source = make_random_model(v.model);
  const auto ref = make_ref_backend(pool);
  const auto wanted_model = load(source, v.x, *ref), model = load(source, v.x, backend);
  wanted_model->kv = model->kv = v.kv;
  const std::vector<float> want = run_decoding(*ref, *wanted_model, batches, 11);
  EXPECT_TRUE(same_bits(run_decoding(backend, *model, batches, 11), want)) << v.name;
}

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
