// What every backend's program must give: the reference's bits, with taps and without, whole and in ranges.

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "backend/backend.h"
#include "base/rng.h"
#include "model/model_spec.h"
#include "model/random_model.h"
#include "runtime/forward.h"

namespace lowbit {
namespace {

struct Variant {
  const char* name;
  RandomModelSpec model;
  XPolicy x;
};

std::vector<Variant> variants() {
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
  s.format = FormatId::kInt8;
  s.down_hadamard = 32;
  all.push_back({"transform before down", s, {.group = 32}});
  s = {};
  s.model_type = "qwen2";
  s.layers = 3;
  s.window = 20;
  s.first_windowed = 1;
  all.push_back({"windows in some blocks", s, {.activation = Activation::kF32}});
  return all;
}

/// A model by hand: weights prepared, steps built.
struct Loaded {
  ModelSpec spec;
  ModelWeights weights;
  std::vector<Step> steps;
};

std::vector<float> vector_of(const MemorySource& source, const std::string& name) {
  const QTensor w = *source.load(name);
  std::vector<float> values(size_t(w.k));
  dequantize_rows(w, 0, 1, values.data());
  return values;
}

std::unique_ptr<Loaded> load(const MemorySource& source, const XPolicy& policy, Backend& backend) {
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

std::vector<KvGroup> groups_of(const ModelSpec& spec) {
  std::vector<KvGroup> groups;
  for (size_t l = 0; l < spec.blocks.size(); ++l) {
    const AttentionSpec& a = spec.blocks[l].attention;
    groups.push_back({.layers = {int(l)}, .kv_heads = a.kv_heads, .head_dim = a.head_dim, .window = a.window});
  }
  return groups;
}

using Seen = std::map<int, std::vector<float>>;

enum class How { kWhole, kObserved, kInRanges };

/// Logits of all rows of two sequences in two batches, prompts and then a token beside the rest of a prompt; and what taps saw.
std::vector<float> run(Backend& backend, const Loaded& model, How how, Seen& seen) {
  const auto program = *backend.compile(model.steps, {.taps = how != How::kWhole});
  const auto widths = slot_widths(model.spec);
  const auto work = *backend.workspace(model.steps, {widths, 64, 256});
  if (how != How::kWhole)
    work->set_observer([&](int tap, const float* x, int64_t m, int64_t k) -> Status {
      seen[tap].insert(seen[tap].end(), x, x + m * k);
      return {};
    });
  Rng rng(3);
  const int64_t vocab = model.spec.vocab_size;
  auto a = *KvCache::make(groups_of(model.spec), 128), b = *KvCache::make(groups_of(model.spec), 128);
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

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Program, EveryBackendGivesTheReferencesBits) {
  ThreadPool pool(2);
  for (const Variant& v : variants()) {
    const MemorySource source = make_random_model(v.model);
    const auto ref = make_ref_backend(pool);
    const auto by_definition = load(source, v.x, *ref);
    Seen wanted_rows, none;
    const std::vector<float> want = run(*ref, *by_definition, How::kWhole, none);
    EXPECT_TRUE(same_bits(run(*ref, *by_definition, How::kObserved, wanted_rows), want)) << v.name;
    EXPECT_EQ(wanted_rows.size(), by_definition->spec.blocks.size() * kInputRoles + 1) << v.name;
    for (int i = 0; i <= int(best_isa()); ++i) {
      if (!isa_available(Isa(i))) continue;
      const auto cpu = make_cpu_backend(Isa(i), pool, false);
      const auto model = load(source, v.x, *cpu);
      const std::string at = std::string(v.name) + ", " + isa_name(Isa(i));
      for (const How how : {How::kWhole, How::kObserved, How::kInRanges}) {
        Seen rows;
        EXPECT_TRUE(same_bits(run(*cpu, *model, how, rows), want)) << at << ", " << int(how);
        if (how == How::kWhole) continue;
        for (const auto& [tap, values] : wanted_rows)
          EXPECT_TRUE(same_bits(rows[tap], values)) << at << ", tap " << tap;
      }
    }
    Seen rows;
    EXPECT_TRUE(same_bits(run(*ref, *by_definition, How::kInRanges, rows), want)) << v.name;
  }
}

TEST(Program, AStepThatNobodyHasIsRefusedByName) {
  ThreadPool pool(1);
  const MemorySource source = make_random_model({});
  const auto ref = make_ref_backend(pool);
  const auto cpu = make_cpu_backend(best_isa(), pool, false);
  for (Backend* backend : {ref.get(), cpu.get()}) {
    auto model = load(source, {}, *backend);
    for (Step& step : model->steps)
      if (auto* glu = std::get_if<GluStep>(&step)) glu->glu = Glu::kGeluTanh;
    const auto refused = backend->compile(model->steps, {});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(refused.error().message().find("GELU"), std::string::npos) << refused.error().message();
  }
}

}  // namespace
}  // namespace lowbit
