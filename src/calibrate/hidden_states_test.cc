// Hidden states in batches and in stops, against whole blocks run by the reference, one sequence after the other.

#include "calibrate/hidden_states.h"

#include <gtest/gtest.h>

#include <array>

#include "base/rng.h"
#include "base/test_bits.h"
#include "model/model_spec.h"
#include "model/random_model.h"

namespace lowbit {
namespace {

constexpr int64_t kStateSequences = 5, kStateContext = 70;
using RowsByRole = std::array<std::vector<float>, kInputRoles>;

struct Variant {
  const char* name;
  RandomModelSpec model;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  RandomModelSpec s;
  all.push_back({"dense", s});
  s.attention_bias = s.mlp_bias = true;
  s.down_hadamard = 32;
  all.push_back({"biases, a transform before down", s});
  s = {};
  s.model_type = "qwen3";
  s.head_dim = 24;
  s.format = FormatId::kInt8;
  all.push_back({"norms of heads, int8", s});
  s = {};
  s.model_type = "qwen2";
  s.window = 20;
  all.push_back({"windows", s});
  return all;
}

std::vector<float> random_states(const RandomModelSpec& spec, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(kStateSequences * kStateContext * spec.hidden));
  for (float& v : x) v = rng.normal();
  return x;
}

/// Other weights for the block's layers, as quantizing gives them.
MemorySource changed_model(RandomModelSpec spec) {
  spec.format = FormatId::kInt4;
  spec.seed = 77;
  return make_random_model(spec);
}

/// A block of a source on a backend.
struct Loaded {
  Loaded(const MemorySource& source, int64_t index, Backend& backend, ThreadPool& pool)
      : block(*SourceBlock::load(source, *executable_spec_of(source), index, backend, pool)),
        program(block, backend, pool) {}
  std::unique_ptr<BatchRoom> room(Backend& backend, int64_t bytes) const {
    return *BatchRoom::make(backend, {&block, 1}, kStateContext, kStateSequences,
                            {kStateSequences * kStateContext, bytes});
  }
  Status replace(const MemorySource& by, InputRole role) {
    for (const LinearSpec& reader : inputs_of(block->block())[static_cast<size_t>(role)]->readers)
      if (auto status = program.replace(reader, by.weights.at(block->name(reader))); !status) return status;
    return {};
  }
  std::shared_ptr<const SourceBlock> block;
  BlockProgram program;
};

/// By definition: the reference, the whole block at once, or steps [0, last). What comes out, and what its layers saw.
std::vector<float> whole_block(Loaded& loaded, Backend& ref, std::vector<float> x, RowsByRole& seen,
                               int last = kBlockSteps) {
  const int64_t floats = int64_t(x.size()) / kStateSequences;
  const auto widths = slot_widths(loaded.block->spec());
  const auto work = *ref.workspace(loaded.program.steps(), {widths, kStateContext, kStateContext});
  work->set_observer([&](int tap, const float* rows, int64_t m, int64_t k) -> Status {
    auto& to = seen[static_cast<size_t>(tap)];
    to.insert(to.end(), rows, rows + m * k);
    return {};
  });
  const AttentionSpec& a = loaded.block->block().attention;
  for (int64_t i = 0; i < kStateSequences; ++i) {
    KvCache cache = *KvCache::make(uniform_kv_groups(1, a.kv_heads, a.head_dim, a.window), kStateContext);
    EXPECT_TRUE(cache.reserve(kStateContext));
    EXPECT_TRUE(work->write(kStream, 0, kStateContext, x.data() + i * floats));
    const SequenceRows sequence{&cache, 0, 0, kStateContext};
    EXPECT_TRUE((*loaded.program.compiled())->run(*work, Batch{{}, {&sequence, 1}, {}}, 0, last));
    EXPECT_TRUE(work->read(kStream, 0, kStateContext, x.data() + i * floats));
  }
  return x;
}

HiddenStates states_of(Backend& backend, const std::vector<float>& x, int64_t most_between = HiddenStates::kAnyBytes) {
  const auto hidden = int64_t(x.size()) / (kStateSequences * kStateContext);
  HiddenStates states = *HiddenStates::make(backend, kStateSequences, kStateContext, hidden, most_between);
  EXPECT_TRUE(states.write(0, x));
  return states;
}

std::vector<float> rows_of(const HiddenStates& states, size_t floats) {
  std::vector<float> rows(floats);
  EXPECT_TRUE(states.read(0, rows));
  return rows;
}

RowUse append_to(RowsByRole& seen) {
  return [&seen](InputRole role, const float* x, int64_t m, int64_t k) -> Status {
    auto& to = seen[static_cast<size_t>(role)];
    to.insert(to.end(), x, x + m * k);
    return {};
  };
}

/// Parts of a sequence, one sequence, some, all: by the bytes of a workspace.
constexpr std::array<int64_t, 4> kRoom = {1, 200 << 10, 500 << 10, 32 << 20};
/// Bytes of rows inside a block: three sequences of attention's or two of the gated product's.
constexpr int64_t kSomeBetween = 2 * kStateContext * 96 * int64_t(sizeof(float));
struct Room {
  int64_t bytes, between;
};
constexpr std::array<Room, 6> kRooms = {{{kRoom[0], HiddenStates::kAnyBytes},
                                         {kRoom[0], kSomeBetween},
                                         {kRoom[1], 0},
                                         {kRoom[2], kSomeBetween},
                                         {kRoom[3], kSomeBetween},
                                         {kRoom[3], HiddenStates::kAnyBytes}}};

template <class Check>
void on_every_backend(const Check& check) {
  ThreadPool pool(2);
  check(*make_ref_backend(pool), pool, "ref");
  for (int i = 0; i <= int(best_isa()); ++i)
    if (isa_available(Isa(i))) check(*make_cpu_backend(Isa(i), pool, false), pool, isa_name(Isa(i)));
}

TEST(HiddenStates, RoomsDiffer) {
  ThreadPool pool(1);
  const auto cpu = make_cpu_backend(best_isa(), pool, false);
  const MemorySource source = make_random_model({});
  const Loaded loaded(source, 0, *cpu, pool);
  std::vector<size_t> batches;
  for (const int64_t bytes : kRoom) batches.push_back(loaded.room(*cpu, bytes)->batches(kStateSequences).size());
  EXPECT_EQ(batches, (std::vector<size_t>{25, 5, 2, 1}));
  const auto parts = loaded.room(*cpu, 1)->batches(2);
  ASSERT_EQ(parts.size(), 10u);
  EXPECT_EQ(parts[4].first, 64);
  EXPECT_EQ(parts[4].rows, 6);  // no batch has parts of two sequences
  EXPECT_EQ(parts[5].first, 70);
}

TEST(HiddenStates, BlocksGiveTheReferencesRows) {
  ThreadPool one(1);
  const auto ref = make_ref_backend(one);
  for (const Variant& v : variants()) {
    const MemorySource source = make_random_model(v.model);
    const std::vector<float> x = random_states(v.model, 5);
    Loaded by_definition(source, 1, *ref, one);
    RowsByRole want_rows;
    const std::vector<float> want = whole_block(by_definition, *ref, x, want_rows);
    on_every_backend([&](Backend& backend, ThreadPool& pool, const char* isa) {
      Loaded loaded(source, 1, backend, pool);
      for (const int64_t bytes : kRoom) {
        const std::string at = std::string(v.name) + ", " + isa + ", " + std::to_string(bytes);
        const auto room = loaded.room(backend, bytes);
        HiddenStates whole = states_of(backend, x);
        RowsByRole shown, seen;
        ASSERT_TRUE(whole.show_inputs(loaded.program, *room, {}, append_to(shown))) << at;
        EXPECT_TRUE(same_bits(rows_of(whole, x.size()), x)) << at << ": shown inputs change nothing";
        ASSERT_TRUE(whole.run(loaded.program, *room, kBlockSteps, {}, append_to(seen))) << at;
        EXPECT_TRUE(same_bits(rows_of(whole, x.size()), want)) << at;
        for (size_t role = 0; role < kInputRoles; ++role) {
          EXPECT_TRUE(same_bits(shown[role], want_rows[role])) << at << ", input " << role;
          EXPECT_TRUE(same_bits(seen[role], want_rows[role])) << at << ", input " << role;
        }
        for (const int64_t between : {int64_t{0}, kSomeBetween, HiddenStates::kAnyBytes}) {
          for (const auto& steps : {std::vector<int>{2, 3, 4, kBlockSteps}, {2, 4, kBlockSteps}}) {
            HiddenStates stops = states_of(backend, x, between);
            for (const int step : steps) {
              ASSERT_TRUE(stops.run(loaded.program, *room, step)) << at;
              HiddenStates other =
                  *HiddenStates::make(backend, kStateSequences, kStateContext, v.model.hidden, between);
              ASSERT_TRUE(other.copy_from(stops)) << at;
              EXPECT_EQ(other.step(), step % kBlockSteps);
              stops = std::move(other);
            }
            EXPECT_TRUE(same_bits(rows_of(stops, x.size()), want)) << at << ", in stops, " << between;
          }
        }
      }
    });
  }
}

/// States in bf16 are rounded behind attention and behind the block: the same bits however the block is cut into runs,
/// and however many rows are kept in between.
TEST(HiddenStates, RoundedStatesDoNotDependOnStops) {
  ThreadPool one(1);
  const auto ref = make_ref_backend(one);
  const auto rounded = [](std::vector<float> x) {
    for (float& v : x) v = as_kept(RowFormat::kBf16, v);
    return x;
  };
  for (const Variant& v : variants()) {
    const MemorySource source = make_random_model(v.model);
    const std::vector<float> x = random_states(v.model, 8);
    Loaded by_definition(source, 1, *ref, one);
    RowsByRole seen;
    const auto widths = slot_widths(by_definition.block->spec());
    const int mlp = kInputSteps[static_cast<size_t>(InputRole::kMlp)];
    const std::vector<float> middle = rounded(whole_block(by_definition, *ref, rounded(x), seen, mlp));
    std::vector<float> want(x.size());
    {
      const auto work = *ref->workspace(by_definition.program.steps(), {widths, kStateContext, kStateContext});
      const int64_t floats = int64_t(x.size()) / kStateSequences;
      for (int64_t i = 0; i < kStateSequences; ++i) {
        const SequenceRows sequence{nullptr, 0, 0, kStateContext};
        ASSERT_TRUE(work->write(kStream, 0, kStateContext, middle.data() + i * floats));
        ASSERT_TRUE((*by_definition.program.compiled())->run(*work, Batch{{}, {&sequence, 1}, {}}, mlp, kBlockSteps));
        ASSERT_TRUE(work->read(kStream, 0, kStateContext, want.data() + i * floats));
      }
    }
    want = rounded(want);
    on_every_backend([&](Backend& backend, ThreadPool& pool, const char* isa) {
      Loaded loaded(source, 1, backend, pool);
      for (const auto& [bytes, between] : kRooms)
        for (const auto& steps : {std::vector<int>{kBlockSteps}, {2, 3, 4, kBlockSteps}, {4, kBlockSteps}}) {
          const auto room = loaded.room(backend, bytes);
          HiddenStates states =
              *HiddenStates::make(backend, kStateSequences, kStateContext, v.model.hidden, between, RowFormat::kBf16);
          ASSERT_TRUE(states.write(0, x));
          for (const int step : steps) ASSERT_TRUE(states.run(loaded.program, *room, step));
          HiddenStates other =
              *HiddenStates::make(backend, kStateSequences, kStateContext, v.model.hidden, between, RowFormat::kBf16);
          ASSERT_TRUE(other.copy_from(states));
          EXPECT_TRUE(same_bits(rows_of(other, x.size()), want))
              << v.name << ", " << isa << ", " << bytes << ", " << between;
        }
      // An input at a time, beside the source's states.
      Loaded ours(source, 1, backend, pool);
      const auto room = loaded.room(backend, kRoom[2]), other_room = loaded.room(backend, kRoom[2]);
      const auto states = [&] {
        return *HiddenStates::make(backend, kStateSequences, kStateContext, v.model.hidden, kSomeBetween,
                                   RowFormat::kBf16);
      };
      HiddenStates of_source = states(), of_quantized = states();
      ASSERT_TRUE(of_source.write(0, x));
      ASSERT_TRUE(of_quantized.write(0, x));
      for (const InputSpec* input : inputs_of(ours.block->block())) {
        const LinearSpec& reader = input->readers.front();
        const auto sum =
            *backend.hessian_sum(reader.k, HiddenStates::adds_to_stream(input->role) ? reader.n : reader.k);
        ASSERT_TRUE(HiddenStates::compare_inputs({of_source, ours.program, *room},
                                                 {of_quantized, loaded.program, *other_room}, input->role, {}, *sum));
      }
      ASSERT_TRUE(of_quantized.run(loaded.program, *other_room, kBlockSteps));
      EXPECT_TRUE(same_bits(rows_of(of_source, x.size()), want)) << v.name << ", " << isa;
      EXPECT_TRUE(same_bits(rows_of(of_quantized, x.size()), want)) << v.name << ", " << isa;
    });
  }
}

/// The loop of an asymmetric calibration: an input at a time, its readers replaced before the next one.
TEST(HiddenStates, InputsOfBothSidesAreCompared) {
  ThreadPool one(1);
  const auto ref = make_ref_backend(one);
  for (const Variant& v : variants()) {
    const MemorySource source = make_random_model(v.model), changed = changed_model(v.model);
    const std::vector<float> y = random_states(v.model, 6), x = random_states(v.model, 7);
    Loaded by_source(source, 0, *ref, one), by_changed(source, 0, *ref, one);
    for (size_t role = 0; role < kInputRoles; ++role)
      ASSERT_TRUE(by_changed.replace(changed, static_cast<InputRole>(role)));
    RowsByRole y_rows, x_rows, unused;
    const std::vector<float> want_y = whole_block(by_source, *ref, y, y_rows);
    const std::vector<float> want_x = whole_block(by_changed, *ref, x, x_rows);
    EXPECT_FALSE(same_bits(y_rows[1], x_rows[1]));
    // Inputs are compared; of o and down the streams behind them, while they are still the source's.
    RowsByRole compared_y = y_rows, compared_z = x_rows;
    Loaded but_o(source, 0, *ref, one), but_down(source, 0, *ref, one);
    ASSERT_TRUE(but_o.replace(changed, InputRole::kAttention));
    for (const InputRole role : {InputRole::kAttention, InputRole::kOutput, InputRole::kMlp})
      ASSERT_TRUE(but_down.replace(changed, role));
    const auto o = static_cast<size_t>(InputRole::kOutput), down = static_cast<size_t>(InputRole::kDown);
    compared_y[o] = whole_block(by_source, *ref, y, unused, kInputSteps[o] + 1);
    compared_z[o] = whole_block(but_o, *ref, x, unused, kInputSteps[o] + 1);
    compared_y[down] = want_y;
    compared_z[down] = whole_block(but_down, *ref, x, unused);
    on_every_backend([&](Backend& backend, ThreadPool& pool, const char* isa) {
      for (const auto& [bytes, between] : kRooms) {
        const std::string at =
            std::string(v.name) + ", " + isa + ", " + std::to_string(bytes) + ", " + std::to_string(between);
        Loaded ours(source, 0, backend, pool);
        BlockProgram theirs(ours.block, backend, pool);
        Loaded quantized(source, 0, backend, pool);
        const auto room = ours.room(backend, bytes), other_room = ours.room(backend, bytes);
        HiddenStates of_source = states_of(backend, y), of_quantized = states_of(backend, x, between);
        for (const InputSpec* input : inputs_of(ours.block->block())) {
          const auto role = static_cast<size_t>(input->role);
          const int64_t k = input->readers.front().k;
          const int64_t n = int64_t(compared_y[role].size()) / (kStateSequences * kStateContext);
          const auto sum = *backend.hessian_sum(k, n), want = *ref->hessian_sum(k, n);
          ASSERT_TRUE(HiddenStates::compare_inputs(
              {of_source, ours.program, *room}, {of_quantized, quantized.program, *other_room}, input->role, {}, *sum));
          ASSERT_TRUE(want->add(x_rows[role].data(), compared_y[role].data(), compared_z[role].data(),
                                kStateSequences * kStateContext));
          const InputHessian got_hessian = *sum->finish("input"), want_hessian = *want->finish("input");
          EXPECT_TRUE(same_bits(got_hessian.h, want_hessian.h)) << at << ", input " << role;
          EXPECT_TRUE(same_bits(got_hessian.mismatch, want_hessian.mismatch)) << at << ", input " << role;
          ASSERT_TRUE(quantized.replace(changed, input->role));
        }
        EXPECT_EQ(of_source.step(), 0);
        ASSERT_TRUE(of_quantized.run(quantized.program, *other_room, kBlockSteps));
        EXPECT_TRUE(same_bits(rows_of(of_source, y.size()), want_y)) << at;
        EXPECT_TRUE(same_bits(rows_of(of_quantized, x.size()), want_x)) << at;
      }
    });
  }
}

TEST(SourceBlock, HandsItsTensorsOn) {
  ThreadPool pool(1);
  const auto cpu = make_cpu_backend(best_isa(), pool, false);
  RandomModelSpec spec;
  spec.attention_bias = true;
  MemorySource source = make_random_model(spec);
  Loaded loaded(source, 1, *cpu, pool);
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  ASSERT_NE(loaded.block->tensor(name), nullptr);
  EXPECT_EQ(loaded.block->tensor(name)->codes.data(), source.weights.at(name).codes.data());  // not decoded once more
  EXPECT_EQ(loaded.block->tensor("model.layers.0.self_attn.q_proj.weight"), nullptr);
  const LinearSpec& q = loaded.block->block().attention.qkv.readers.front();
  EXPECT_EQ(int64_t(loaded.block->bias_of(q).size()), q.n);
  const Status refused = loaded.program.replace(q, source.weights.at("model.layers.1.mlp.up_proj.weight"));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kShapeMismatch);
  EXPECT_NE(refused.error().message().find(name), std::string::npos) << refused.error().message();
  source.weights.erase(name);
  EXPECT_EQ(SourceBlock::load(source, *executable_spec_of(source), 1, *cpu, pool).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lowbit
