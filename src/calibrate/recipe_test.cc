#include "calibrate/recipe.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace lowbit {
namespace {

std::string write_file(const std::string& text) {
  const std::string path = testing::TempDir() + "recipe.txt";
  std::ofstream(path) << text;
  return path;
}

QuantizeOptions with_recipe(const std::string& text) {
  QuantizeOptions options;
  options.recipe_file = write_file(text);
  return options;
}

TEST(recipe, first_matching_line_wins_then_keep_then_the_role) {
  QuantizeOptions options = with_recipe(
      "# attention is fragile\n"
      "layers\\.0\\.            keep\n"
      "re:.*(q|k)_proj     int8 group=row\n"
      "\n"
      "down_proj           int2odd group=32 scale=bf16 zero fit=mse   # squeeze\n");
  options.linear.format = FormatId::kInt3;
  options.keep = {"up_proj"};
  const auto recipe = Recipe::make(options);
  ASSERT_TRUE(recipe) << recipe.error().message();
  const auto spec = [&](const char* name, LayerRole role = LayerRole::kLinear) {
    return *recipe->spec_for(name, role);
  };
  EXPECT_TRUE(spec("model.layers.0.self_attn.q_proj.weight").keep);
  EXPECT_EQ(spec("model.layers.1.self_attn.q_proj.weight").format, FormatId::kInt8);
  EXPECT_EQ(spec("model.layers.1.self_attn.q_proj.weight").group, QuantizeSpec::kRow);
  const QuantizeSpec down = spec("model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(down.format, FormatId::kInt2Odd);
  EXPECT_EQ(down.group, 32);
  EXPECT_EQ(down.scale, ScaleKind::kBf16);
  EXPECT_TRUE(down.zero);
  EXPECT_EQ(down.fit, "mse");
  EXPECT_TRUE(spec("model.layers.1.mlp.up_proj.weight").keep);
  EXPECT_EQ(spec("model.layers.1.mlp.gate_proj.weight").format, FormatId::kInt3);
  EXPECT_EQ(spec("model.embed_tokens.weight", LayerRole::kEmbedding).format, FormatId::kInt8);
  EXPECT_TRUE(spec("model.norm.weight", LayerRole::kOther).keep);
}

TEST(recipe, bad_lines_are_named_by_number) {
  for (const char* bad : {"q_proj\n", "\nq_proj int5\n", "q_proj int4 group=0\n", "q_proj int4 colour=red\n",
                          "q_proj keep int4\n", "( int4\n", "q_proj int4 scale=f8\n", "q_proj int4 fit=\n"}) {
    const auto recipe = Recipe::make(with_recipe(bad));
    ASSERT_FALSE(recipe) << bad;
    EXPECT_EQ(recipe.error().code, ErrorCode::kInvalidArgument) << bad;
  }
  const auto named = Recipe::make(with_recipe("\n\nq_proj int5\n"));
  EXPECT_NE(named.error().message().find(":3"), std::string::npos) << named.error().message();
  QuantizeOptions missing;
  missing.recipe_file = "/nonexistent/recipe";
  EXPECT_EQ(Recipe::make(missing).error().code, ErrorCode::kNotFound);
}

TEST(recipe, groups_and_scalings) {
  EXPECT_EQ(*parse_group("64"), (GroupShape{64, 1}));
  EXPECT_EQ(*parse_group("1x128"), *parse_group("128"));
  EXPECT_EQ(*parse_group("128x64"), (GroupShape{64, 128}));  // rows first
  EXPECT_EQ(*parse_group("row"), (GroupShape{QuantizeSpec::kRow, 1}));
  for (const char* bad :
       {"", "-3", "0", "64x", "x64", "x", "0x64", "64x0", "64x64x64", "64X64", "1e3", "99999999999999999999"})
    EXPECT_FALSE(parse_group(bad)) << bad;
  QuantizeSpec spec;
  spec.format = FormatId::kInt4;
  EXPECT_EQ(scaling_name(scaling_of(spec)), "g64");
  spec.format = FormatId::kInt8;
  EXPECT_EQ(scaling_name(scaling_of(spec)), "row");
  spec.group = QuantizeSpec::kTensor;
  EXPECT_EQ(scaling_name(scaling_of(spec)), "tensor");
  spec.group = 96;
  EXPECT_EQ(scaling_name(scaling_of(spec)), "g96");
  spec.group_rows = 32;
  EXPECT_EQ(scaling_name(scaling_of(spec)), "32x96");
}

TEST(recipe, blocks_of_rows_have_f32_scales_unless_told) {
  const auto spec = [](const char* group, const char* scale) {
    std::vector<std::string> words = {"fp8", group};
    if (scale != nullptr) words.emplace_back(scale);
    return *parse_quantize_spec(words, "test");
  };
  EXPECT_EQ(spec("group=128x128", nullptr).scale, ScaleKind::kF32);
  EXPECT_EQ(spec("group=128x128", nullptr).group_rows, 128);
  EXPECT_EQ(spec("group=128x128", "scale=f16").scale, ScaleKind::kF16);
  EXPECT_EQ(spec("group=128", nullptr).scale, ScaleKind::kF16);
}

TEST(layer_role, tells_matrices_of_blocks_from_the_rest) {
  EXPECT_EQ(layer_role("model.layers.3.mlp.up_proj.weight", 2), LayerRole::kLinear);
  EXPECT_EQ(layer_role("model.layers.3.input_layernorm.weight", 1), LayerRole::kOther);
  EXPECT_EQ(layer_role("lm_head.weight", 2), LayerRole::kHead);
  EXPECT_EQ(layer_role("model.embed_tokens.weight", 2), LayerRole::kEmbedding);
}

}  // namespace
}  // namespace lowbit
