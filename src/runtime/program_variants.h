#pragma once
// Test only: the models of all kinds that backends are compared on.

#include <vector>

#include "backend/x_spec.h"
#include "kernels/fp8_api.h"
#include "model/random_model.h"
#include "ops/kv_cache.h"

namespace lowbit::program_checks {

struct Variant {
  const char* name;
  RandomModelSpec model;
  XPolicy x;
  KvFormat kv = {};
  std::vector<int> kept = {};  // layers with f16 pages
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
  all.push_back({"ternary, as trained", s, {.group = 32, .by_weight = true}});
  s = {};
  s.format = FormatId::kInt4;
  s.group = 128;
  s.hidden = 192;
  s.intermediate = 300;
  s.head_dim = 64;
  s.mlp_bias = true;
  all.push_back({"int4 in groups of 128, exact scales", s, {.group = 32, .by_weight = true}});
  s = {};
  s.format = FormatId::kInt2;
  s.group = 128;
  s.hidden = 128;  // the gated product's codes would be others
  s.intermediate = 192;
  all.push_back({"int2 in groups of 128, exact scales before down alone", s, {.group = 32, .by_weight = true}});
  s = {};
  s.model_type = "bitnet";
  all.push_back({"bitnet, dense", s, {.activation = Activation::kF32}});
  s.tied = true;
  s.format = FormatId::kTernary;
  s.group = Scaling::kAll;
  all.push_back({"bitnet, as trained", s, {.group = 32, .by_weight = true}});
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
  all.push_back({"bitnet, norms of single layers", s, {.group = 32, .by_weight = true}});
  s = {};
  s.format = FormatId::kInt8;
  s.linear_norms = true;
  s.down_hadamard = 32;
  all.push_back({"norms of single layers behind a transform", s, {.group = 32}});
  s = {};
  s.format = FormatId::kInt8;
  s.down_hadamard = 32;
  all.push_back({"transform before down", s, {.group = 32}});
  // Without `exact` a GPU's tensor cores multiply these, but for groups of 40.
  s.format = FormatId::kFp8;
  all.push_back({"fp8 by bf16", s, {.activation = Activation::kF32, .rounding = {.halves = Halves::kBf16}}});
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

}  // namespace lowbit::program_checks
