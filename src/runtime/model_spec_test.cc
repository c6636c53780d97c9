#include "model/model_spec.h"

#include <gtest/gtest.h>

#include "model/random_model.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

ModelSpec plain() { return *parse_model_spec(make_random_model({}).config); }

void expect_refused(const ModelSpec& spec, const std::string& text) {
  const auto status = check_executable(spec);
  ASSERT_FALSE(status) << text;
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(status.error().message().find(text), std::string::npos) << status.error().message();
}

TEST(CheckExecutable, NamesWhatIsMissing) {
  EXPECT_TRUE(check_executable(plain()));
  ModelSpec spec = plain();
  spec.blocks[1].mlp.glu = Glu::kGeluTanh;
  expect_refused(spec, "block 1");
  expect_refused(spec, "GELU (tanh)");
  spec = plain();
  spec.blocks[0].post_mlp = NormSpec{{"a_norm", "a_norm"}, 64, 1e-5f, 0};
  expect_refused(spec, "norms behind attention or MLP");
  spec = plain();
  spec.blocks[1].attention.qkv.norm->offset = 1;
  expect_refused(spec, "norms with an offset");
  spec = plain();
  spec.final_norm.offset = 1;
  expect_refused(spec, "model.norm");
  spec = plain();
  spec.blocks[1].attention.kv_heads = 4;
  expect_refused(spec, "blocks of different shapes");
  spec = plain();
  spec.blocks[1].attention.rope->dims = 8;
  expect_refused(spec, "not rotated whole");
  spec = plain();
  spec.blocks[1].mlp.down.hadamard = 8192;
  expect_refused(spec, "8192");
  spec = plain();
  spec.blocks[1].attention.qkv.norm.reset();
  expect_refused(spec, "without a norm");
}

TEST(Windows, AreNoLimit) {
  RandomModelSpec random;
  random.model_type = "qwen2";
  random.window = 32;
  random.first_windowed = 1;
  const MemorySource source = make_random_model(random);
  const auto model = Transformer::load(source, {});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ((*model)->context(), random.max_positions);
  const auto groups = (*model)->kv_groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].window, 0);
  EXPECT_EQ(groups[1].window, 32);
}

}  // namespace
}  // namespace lowbit
