#pragma once
// Test only: models with quantized caches, fp8 and 16-bit activations, beside those of program_variants.h.

#include "runtime/program_variants.h"

namespace lowbit::program_checks {

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
  all.back().kept = {0};
  s.model_type = "llama";
  s.window = s.first_windowed = 0;
  add("int3 cache, heads of 64, some f16", 8, 1, 64, {3, 3, 64});
  all.back().kept = {1};
  const auto aging = [](const char* name, const char* old) {
    KvFormat format = *parse_kv_format(name, 64);
    EXPECT_TRUE(set_kv_upkeep(0, old, format));
    return format;
  };
  add("fp8 cache that ages", 4, 2, 48, aging("fp8", "150:k2v3"));
  add("int4 cache that ages", 4, 1, 64, aging("int4", "192:int2"));
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

/// x in 16 bits: a GPU's tensor cores round sums their own way where it is not exact.
inline Variant halves_variant(Halves halves, FormatId format, int64_t group) {
  RandomModelSpec s;
  s.model_type = format == FormatId::kTernary ? "bitnet" : "llama";
  s.format = format;
  s.hidden = 192;
  s.intermediate = 320;
  s.group = group;
  s.attention_bias = true;
  const char* name = halves == Halves::kF16 ? "x in f16" : "x in bf16";
  return {name, s, {.activation = Activation::kF32, .rounding = {.halves = halves}}, {}};
}

/// With those that a GPU refuses, or gives other bits.
inline std::vector<Variant> host_variants() {
  std::vector<Variant> all = variants();
  all.push_back(halves_variant(Halves::kF16, FormatId::kInt4, 64));
  all.push_back(halves_variant(Halves::kBf16, FormatId::kTernary, Scaling::kAll));
  all.push_back(halves_variant(Halves::kBf16, FormatId::kInt8, 64));
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

}  // namespace lowbit::program_checks
