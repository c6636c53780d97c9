#include "calibrate/embedding_head_sizes.h"

#include <gtest/gtest.h>

#include "arch/names.h"
#include "base/rng.h"
#include "model/random_model.h"

namespace lowbit {
namespace {

constexpr int64_t kEndContext = 64, kEndSequences = 4;

QuantizeSpec in(FormatId format) {
  QuantizeSpec spec;
  spec.format = format;
  return spec;
}

struct Chosen {
  RandomModelSpec model;
  QuantizeOptions options;
  Allocation allocation;

  explicit Chosen(bool tied) {
    model.tied = tied;
    options.embedding_head_candidates = {in(FormatId::kInt2Odd), in(FormatId::kInt4)};
    options.calibration.file = CalibrationOptions::kSelf;
    options.calibration.context = kEndContext;
    options.calibration.tokens = kEndContext * kEndSequences;
    Rng rng(5);
    for (int64_t i = 0; i < options.calibration.tokens; ++i)
      options.calibration.sequences.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(model.vocab))));
  }

  /// The formats of embedding and head, in this order.
  std::vector<std::string> run(double limit) {
    const MemorySource source = make_random_model(model);
    const Engine engine = *Engine::make({});
    Calibration text = *Calibration::start(source, options.calibration, false, engine);
    BlockProbe probe = *BlockProbe::make(source, engine, text);
    allocation = {};
    const Status done =
        choose_embedding_head(source, *Recipe::make(options), engine, options, probe, limit, allocation);
    EXPECT_TRUE(done) << done.error().message();
    std::vector<std::string> formats;
    for (const PartChoice& end : allocation.embedding_head)
      formats.push_back(format_info(allocation.specs.at(end.layers.front()).format).name);
    return formats;
  }
};

using Formats = std::vector<std::string>;

TEST(EmbeddingHeadSizes, TheSmallestThatCostsLittleEnough) {
  Chosen c(false);
  EXPECT_EQ(c.run(1e9), (Formats{"int2odd", "int2odd"}));
  EXPECT_EQ(c.run(-1), (Formats{"int8", "int8"}));
  for (const PartChoice& end : c.allocation.embedding_head) {
    ASSERT_TRUE(end.smaller);
    EXPECT_LT(end.chosen.divergence, end.smaller->divergence);
    EXPECT_GT(end.chosen.bits_per_weight, end.smaller->bits_per_weight);
    EXPECT_GT(end.chosen.divergence, 0);
  }
  const double between = c.allocation.embedding_head[1].smaller->divergence;  // what int4 costs the head
  EXPECT_EQ(c.run(between)[1], "int4");
}

TEST(EmbeddingHeadSizes, ATiedHeadIsChosenWithTheEmbedding) {
  Chosen c(true);
  EXPECT_EQ(c.run(1e9), (Formats{"int2odd"}));
  EXPECT_EQ(c.allocation.embedding_head[0].layers, (Formats{weight_name(names::kEmbedding)}));
}

TEST(EmbeddingHeadSizes, WhatSomebodySaidStays) {
  Chosen c(false);
  c.options.keep = {"lm_head"};
  EXPECT_EQ(c.run(1e9), (Formats{"int2odd"}));
  c.options.embedding.keep = true;
  EXPECT_TRUE(c.run(1e9).empty());
  c.options.embedding_head_candidates.clear();
  c.options.keep.clear();
  EXPECT_TRUE(c.run(1e9).empty());
}

TEST(EmbeddingHeadSizes, EndsAsTheyAreCostNothing) {
  const Chosen c(false);
  const MemorySource source = make_random_model(c.model);
  const Engine engine = *Engine::make({});
  Calibration text = *Calibration::start(source, c.options.calibration, false, engine);
  BlockProbe probe = *BlockProbe::make(source, engine, text);
  const QTensor embedding = *source.load(weight_name(names::kEmbedding)),
                head = *source.load(weight_name(names::kHead));
  EXPECT_EQ(*probe.divergence_with(nullptr, nullptr), 0);
  EXPECT_EQ(*probe.divergence_with(&embedding, &head), 0);
  EXPECT_GT(*probe.divergence_with(&head, nullptr), 0.01);
  EXPECT_GT(*probe.divergence_with(nullptr, &embedding), 0.01);
}

}  // namespace
}  // namespace lowbit
