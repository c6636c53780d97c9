// A probe of a block's parts against a change of all of them together.

#include "calibrate/block_probe.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "calibrate/layer_fit.h"
#include "model/random_model.h"

namespace lowbit {
namespace {

constexpr int64_t kContext = 64, kSequences = 4;

/// A model, a text and a probe of them.
struct Probed {
  RandomModelSpec spec;
  MemorySource source;
  Engine engine;
  std::unique_ptr<Calibration> text;
  std::unique_ptr<BlockProbe> probe;

  Probed() : source(make_random_model(spec)), engine(*Engine::make({})) {
    CalibrationOptions options;
    options.file = CalibrationOptions::kSelf;
    options.context = kContext;
    options.tokens = kContext * kSequences;
    Rng rng(5);
    for (int64_t i = 0; i < options.tokens; ++i)
      options.sequences.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(spec.vocab))));
    text = std::make_unique<Calibration>(*Calibration::start(source, options, false, engine));
    probe = std::make_unique<BlockProbe>(*BlockProbe::make(source, engine, *text));
  }

  /// Layers of some roles in another format; in f32, as they are.
  ChangedLayers changed(int64_t block, const std::vector<LinearRole>& roles, FormatId format) const {
    ChangedLayers out;
    QuantizeSpec to;
    to.format = format;
    to.fit = "lsq";
    for (const LinearSpec* layer : linears_of(text->spec().blocks[static_cast<size_t>(block)])) {
      if (std::ranges::find(roles, layer->role) == roles.end()) continue;
      const std::string name = weight_name(block, layer->name);
      if (format == FormatId::kF32) {
        out[layer->role] = *source.load(name);
        continue;
      }
      LayerFit fit;
      out[layer->role] = *fit_layer(name, *source.load(name), to, 0, {}, *engine.pool, fit);
    }
    return out;
  }
};

const std::vector<LinearRole> kFirst = {LinearRole::kQuery, LinearRole::kKey}, kLast = {LinearRole::kDown};

TEST(BlockProbe, LayersAsTheyAreCostNothing) {
  Probed p;
  for (const int64_t block : {0, 1}) {
    const auto costs = p.probe->divergences(
        block, {p.changed(block, kFirst, FormatId::kF32), p.changed(block, kLast, FormatId::kF32)});
    ASSERT_TRUE(costs) << costs.error().message();
    EXPECT_EQ(*costs, (std::vector<double>{0, 0})) << block;
  }
}

TEST(BlockProbe, SharesAddUpToWhatAllPartsCostTogether) {
  Probed p, alone;
  for (const int64_t block : {0, 1}) {
    const ChangedLayers first = p.changed(block, kFirst, FormatId::kInt3),
                        last = p.changed(block, kLast, FormatId::kInt3);
    ChangedLayers both = first;
    both.insert(last.begin(), last.end());
    const auto shares = p.probe->divergences(block, {first, last}), whole = alone.probe->divergences(block, {both});
    ASSERT_TRUE(shares && whole);
    ASSERT_GT((*whole)[0], 0);
    EXPECT_NEAR((*shares)[0] + (*shares)[1], (*whole)[0], 1e-12 * (*whole)[0]) << block;
    EXPECT_GT((*shares)[0], 0);
    EXPECT_GT((*shares)[1], 0);
  }
}

TEST(BlockProbe, ACoarserPartHasTheLargerShare) {
  Probed p, q;
  const auto coarse_last =
      p.probe->divergences(0, {p.changed(0, kFirst, FormatId::kInt8), p.changed(0, kLast, FormatId::kInt2Odd)});
  const auto coarse_first =
      q.probe->divergences(0, {q.changed(0, kFirst, FormatId::kInt2Odd), q.changed(0, kLast, FormatId::kInt8)});
  ASSERT_TRUE(coarse_last && coarse_first);
  EXPECT_GT((*coarse_last)[1], 20 * (*coarse_last)[0]);
  EXPECT_GT((*coarse_first)[0], 20 * (*coarse_first)[1]);
}

TEST(BlockProbe, ABlockSeesTheSourcesStatesWhateverWasProbedBefore) {
  Probed p, fresh;
  ASSERT_TRUE(
      p.probe->divergences(0, {p.changed(0, kFirst, FormatId::kTernary), p.changed(0, kLast, FormatId::kTernary)}));
  ASSERT_TRUE(fresh.probe->divergences(0, {}));
  const auto after = p.probe->divergences(1, {p.changed(1, kLast, FormatId::kInt3)}),
             alone = fresh.probe->divergences(1, {fresh.changed(1, kLast, FormatId::kInt3)});
  ASSERT_TRUE(after && alone);
  EXPECT_EQ(*after, *alone);
  EXPECT_GT((*alone)[0], 0);
}

}  // namespace
}  // namespace lowbit
