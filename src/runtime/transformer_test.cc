#include "runtime/transformer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <ostream>

#include "base/rng.h"
#include "base/test_bits.h"
#include "model/random_model.h"

namespace lowbit {
namespace {

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed = 5) {
  Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(vocab)));
  return tokens;
}

std::unique_ptr<Transformer> must_load(const MemorySource& source, const LoadOptions& options) {
  auto model = Transformer::load(source, options);
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
  return model ? std::move(*model) : nullptr;
}

/// Logits of all tokens, given in calls of `call` tokens.
std::vector<float> all_logits(Transformer& model, const std::vector<int32_t>& tokens, int64_t call) {
  const int64_t vocab = model.spec().vocab_size, n = int64_t(tokens.size());
  std::vector<float> logits(size_t(n * vocab));
  auto cache = model.make_cache();
  EXPECT_TRUE(cache.has_value());
  for (int64_t i = 0; i < n; i += call) {
    const int64_t m = std::min(call, n - i);
    const auto status = model.forward(std::span(tokens).subspan(size_t(i), size_t(m)), *cache,
                                      LogitsWanted::range(0, m), std::span(logits).subspan(size_t(i * vocab)));
    EXPECT_TRUE(status.has_value()) << status.error().message();
  }
  EXPECT_EQ(cache->length(), n);
  return logits;
}

/// Root mean square of the difference over that of the reference. (The largest difference would be a lottery: where f32
/// and double fall on two sides of an f16 rounding border, one key moves by 5e-4.)
double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, total = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    total += want[i] * want[i];
  }
  return std::sqrt(error / total);
}

struct Variant {
  const char* name;
  RandomModelSpec spec;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
  std::vector<Variant> all;
  all.push_back({"LlamaGqa", {}});
  RandomModelSpec s;
  s.tied = true;
  s.kv_heads = 4;
  all.push_back({"LlamaTiedMha", s});
  s = {};
  s.attention_bias = s.mlp_bias = true;
  s.kv_heads = 1;
  all.push_back({"LlamaBiases", s});
  s = {};
  s.model_type = "mistral";
  s.hidden = 72;  // head_dim 16 is not hidden / heads here; rows that are no multiple of 16
  s.intermediate = 100;
  all.push_back({"MistralOddSizes", s});
  s = {};
  s.model_type = "qwen2";
  s.tied = true;
  all.push_back({"Qwen2", s});
  s.model_type = "qwen3";
  s.head_dim = 24;
  all.push_back({"Qwen3", s});
  s = {};
  s.model_type = "mistral";
  s.window = 20;
  all.push_back({"MistralWindow", s});
  s.model_type = "qwen2";
  s.layers = 3;
  s.first_windowed = 2;
  all.push_back({"Qwen2Windows", s});
  s = {};
  s.format = FormatId::kInt4;
  all.push_back({"Int4", s});
  s.format = FormatId::kInt8;
  s.tied = true;
  all.push_back({"Int8Tied", s});
  s = {};
  s.format = FormatId::kCodebook4;
  s.group = 40;
  all.push_back({"Codebook4", s});
  s = {};
  s.model_type = "bitnet";
  all.push_back({"BitNet", s});
  s.tied = true;
  s.kv_heads = 1;
  s.format = FormatId::kTernary;
  s.group = Scaling::kAll;
  all.push_back({"BitNetTernaryTied", s});
  s.linear_norms = true;
  all.push_back({"BitNetLinearNorms", s});
  s = {};
  s.linear_norms = true;
  s.format = FormatId::kInt4;
  all.push_back({"Int4LinearNorms", s});
  return all;
}

class TransformerVariants : public testing::TestWithParam<Variant> {};

TEST_P(TransformerVariants, EqualsDoubleReference) {
  const RandomModelSpec& spec = GetParam().spec;
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.x.activation = Activation::kF32;
  auto model = must_load(source, options);
  ASSERT_TRUE(model);
  const auto tokens = random_tokens(80, spec.vocab);  // more than a page of the cache
  const auto want = naive_forward(source, spec, tokens);
  EXPECT_LT(relative_error(all_logits(*model, tokens, 80), want), 1e-4);
  // int8 activations are an approximation, but of the same function.
  options.x.activation = Activation::kInt8;
  model = must_load(source, options);
  ASSERT_TRUE(model);
  const double error = relative_error(all_logits(*model, tokens, 80), want);
  EXPECT_LT(error, is_dense(spec.format) ? 1e-4 : 0.1);
  if (!is_dense(spec.format)) {
    EXPECT_GT(error, 1e-4);  // the integer path was really taken
  }
}

TEST_P(TransformerVariants, SameBitsForAnyCutIsaAndThreads) {
  const RandomModelSpec& spec = GetParam().spec;
  const MemorySource source = make_random_model(spec);
  const auto tokens = random_tokens(75, spec.vocab);
  for (Activation activation : {Activation::kF32, Activation::kInt8}) {
    LoadOptions options;
    options.x.activation = activation;
    auto model = must_load(source, options);
    ASSERT_TRUE(model);
    const auto want = all_logits(*model, tokens, 75);
    for (int64_t call : {1, 3, 7, 64}) EXPECT_TRUE(same_bits(want, all_logits(*model, tokens, call))) << call;
    options.batch = 10;  // cuts inside a call
    model = must_load(source, options);
    ASSERT_TRUE(model);
    EXPECT_EQ(model->batch(), 10);
    EXPECT_TRUE(same_bits(want, all_logits(*model, tokens, 75)));
    options.batch = 512;
    for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
      if (!isa_available(isa)) continue;
      options.isa = isa;
      for (int threads : {1, 2, 3, 8}) {
        options.threads = threads;
        model = must_load(source, options);
        ASSERT_TRUE(model);
        EXPECT_TRUE(same_bits(want, all_logits(*model, tokens, 75))) << isa_name(isa) << " " << threads;
        EXPECT_TRUE(same_bits(want, all_logits(*model, tokens, 1))) << isa_name(isa) << " " << threads;
      }
    }
    options = {};
    options.x.activation = activation;
    options.reference = true;
    model = must_load(source, options);
    ASSERT_TRUE(model);
    EXPECT_TRUE(same_bits(want, all_logits(*model, tokens, 75))) << "reference";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TransformerVariants, testing::ValuesIn(variants()),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST(Transformer, TruncateForgets) {
  const RandomModelSpec spec;
  auto model = must_load(make_random_model(spec), {});
  ASSERT_TRUE(model);
  const auto tokens = random_tokens(70, spec.vocab), other = random_tokens(70, spec.vocab, 6);
  auto cache = model->make_cache();
  ASSERT_TRUE(cache);
  std::vector<float> want(size_t(spec.vocab)), got(want.size());
  ASSERT_TRUE(model->forward(tokens, *cache, LogitsWanted::last(), want));
  ASSERT_TRUE(cache->truncate(50));
  ASSERT_TRUE(model->forward(other, *cache, LogitsWanted::none(), {}));
  EXPECT_EQ(cache->length(), 120);
  ASSERT_TRUE(cache->truncate(50));
  ASSERT_TRUE(model->forward(std::span(tokens).subspan(50), *cache, LogitsWanted::last(), got));
  EXPECT_TRUE(same_bits(want, got));
  cache->clear();
  EXPECT_EQ(cache->bytes(), 0);
  ASSERT_TRUE(model->forward(tokens, *cache, LogitsWanted::last(), got));
  EXPECT_TRUE(same_bits(want, got));
}

TEST(Transformer, RangeOfLogits) {
  const RandomModelSpec spec;
  LoadOptions options;
  options.batch = 16;
  auto model = must_load(make_random_model(spec), options);
  ASSERT_TRUE(model);
  const auto tokens = random_tokens(60, spec.vocab);
  const auto want = all_logits(*model, tokens, 60);
  auto cache = model->make_cache();
  ASSERT_TRUE(cache);
  std::vector<float> got(size_t(29 * spec.vocab));
  ASSERT_TRUE(model->forward(tokens, *cache, LogitsWanted::range(30, 29), got));
  EXPECT_EQ(std::memcmp(got.data(), want.data() + 30 * spec.vocab, got.size() * sizeof(float)), 0);
}

TEST(Transformer, CallErrorsLeaveTheCacheAlone) {
  RandomModelSpec spec;
  LoadOptions options;
  options.context = 100;
  auto model = must_load(make_random_model(spec), options);
  ASSERT_TRUE(model);
  auto cache = model->make_cache();
  ASSERT_TRUE(cache);
  std::vector<float> logits(size_t(spec.vocab));
  const auto expect_error = [&](std::vector<int32_t> tokens, LogitsWanted wanted, const char* text) {
    const auto status = model->forward(tokens, *cache, wanted, logits);
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message().find(text), std::string::npos) << status.error().message();
    EXPECT_EQ(cache->length(), 0);
  };
  expect_error({}, LogitsWanted::last(), "no tokens");
  expect_error({5, 97}, LogitsWanted::last(), "token id 97");
  expect_error({-1}, LogitsWanted::last(), "token id -1");
  expect_error(random_tokens(101, spec.vocab), LogitsWanted::last(), "101 positions");
  expect_error({1, 2}, LogitsWanted::range(0, 2), "room for 97");
  expect_error({1, 2}, LogitsWanted::range(2, 1), "1 rows from 2");
  auto other = KvCache::make(uniform_kv_groups(spec.layers, spec.kv_heads + 1, spec.head_dim), 64);
  ASSERT_TRUE(other);
  const std::vector<int32_t> one = {1};
  EXPECT_EQ(model->forward(one, *other, LogitsWanted::last(), logits).error().code, ErrorCode::kShapeMismatch);
}

TEST(Transformer, LoadErrorsNameTheTensor) {
  const MemorySource good = make_random_model({});
  const auto expect_error = [](const MemorySource& source, ErrorCode code, const std::string& text) {
    const auto model = Transformer::load(source, {});
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code, code);
    EXPECT_NE(model.error().message().find(text), std::string::npos) << model.error().message();
  };
  for (const SourceTensor& t : good.listed) {
    MemorySource bad = good;
    bad.weights.erase(t.name);
    expect_error(bad, ErrorCode::kNotFound, t.name);
    bad = good;
    QTensor& w = bad.weights[t.name];
    Buffer copy = *Buffer::allocate(w.codes.size(), "copy");
    std::memcpy(copy.data(), w.codes.data(), size_t(w.codes.size()));
    copy.as<float>()[w.k / 2] = std::numeric_limits<float>::quiet_NaN();
    w.codes = copy;
    expect_error(bad, ErrorCode::kCorrupt, t.name);
    bad = good;
    bad.add(t.name, t.shape[0], t.shape[1] + 2, std::vector<float>(size_t(t.shape[0] * (t.shape[1] + 2))));
    expect_error(bad, ErrorCode::kShapeMismatch, t.name);
  }
  LoadOptions options;
  options.progress = [](int64_t done, int64_t total) { return done * 2 < total; };
  EXPECT_EQ(Transformer::load(good, options).error().code, ErrorCode::kCancelled);
  options = {};
  options.context = 257;
  EXPECT_EQ(Transformer::load(good, options).error().code, ErrorCode::kInvalidArgument);
}

TEST(Transformer, BadScalesAreFound) {
  RandomModelSpec spec;
  spec.format = FormatId::kInt4;
  MemorySource source = make_random_model(spec);
  QTensor& w = source.weights["model.layers.1.mlp.up_proj.weight"];
  w.scales.as<float>()[3] = std::numeric_limits<float>::infinity();
  const auto model = Transformer::load(source, {});
  ASSERT_FALSE(model.has_value());
  EXPECT_NE(model.error().message().find("model.layers.1.mlp.up_proj.weight"), std::string::npos);
}

/// fp8 and tables that are not integers take f32 activations, whatever is wanted.
TEST(Transformer, ActivationsOfTables) {
  RandomModelSpec spec;
  spec.format = FormatId::kCodebook3;
  spec.intermediate = 1200;
  spec.group = 40;
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  QTensor w = make_random_model(spec).weights.at(name);
  EXPECT_EQ(choose_x(w, {.activation = Activation::kInt8, .group = 32}).activation, Activation::kInt8);
  EXPECT_EQ(choose_x(w, {.activation = Activation::kF32, .group = 32}).activation, Activation::kF32);
  w.codebook[3] = 0.25f;
  const XSpec floats = choose_x(w, {.activation = Activation::kInt8, .group = 32});
  EXPECT_EQ(floats.activation, Activation::kF32);
  EXPECT_NE(floats.reason.find("f32 activations: the table has values"), std::string::npos) << floats.reason;
  spec.group = Scaling::kAll;
  w = make_random_model(spec).weights.at(name);
  EXPECT_EQ(choose_x(w, {.group = 32}).activation, Activation::kInt8);  // sums of 32 columns
  EXPECT_NE(choose_x(w, {.group = 0}).reason.find("sums of 1200 columns"), std::string::npos);
}

TEST(Transformer, Fp8ActivationsGoWithFp8Weights) {
  const XPolicy policy = {.activation = Activation::kFp8, .group = 128};
  RandomModelSpec spec;
  spec.format = FormatId::kFp8;
  spec.group = Scaling::kAll;
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  QTensor w = make_random_model(spec).weights.at(name);
  EXPECT_EQ(choose_x(w, policy).activation, Activation::kFp8);
  EXPECT_EQ(choose_x(w, policy).group, 128);
  EXPECT_EQ(choose_x(w, {.activation = Activation::kInt8, .group = 32}).activation, Activation::kF32);
  w.scaling.zero = ZeroKind::kOffset;
  EXPECT_NE(choose_x(w, policy).reason.find("without zero points"), std::string::npos);
  spec.format = FormatId::kInt4;
  const XSpec other = choose_x(make_random_model(spec).weights.at(name), policy);
  EXPECT_EQ(other.activation, Activation::kF32);
  EXPECT_NE(other.reason.find("not int4"), std::string::npos) << other.reason;
  spec.format = FormatId::kF32;
  EXPECT_EQ(choose_x(make_random_model(spec).weights.at(name), policy).activation, Activation::kF32);
}

/// Scales of x where the model leaves them to its weights: docs/adr/0047-scales-of-x-as-trained.md.
TEST(Transformer, ActivationsAsTrained) {
  struct Case {
    FormatId format;
    int64_t group, wanted;
  };
  for (const Case& c : {Case{FormatId::kTernary, Scaling::kAll, 0}, Case{FormatId::kTernaryPacked, Scaling::kAll, 0},
                        Case{FormatId::kBinary, Scaling::kAll, 0}, Case{FormatId::kTernary, 32, 32},
                        Case{FormatId::kInt4, Scaling::kAll, 32}, Case{FormatId::kInt2, Scaling::kAll, 32}}) {
    RandomModelSpec spec;
    spec.format = c.format;
    spec.group = c.group;
    const MemorySource source = make_random_model(spec);
    LoadOptions options;
    options.x.group = 32;
    options.x.by_weight = true;
    auto model = must_load(source, options);
    ASSERT_TRUE(model);
    for (const WeightInfo& info : model->linears()) EXPECT_EQ(info.activation_group, c.wanted) << info.kernel;
    options.x.by_weight = false;
    options.x.group = c.wanted;
    auto asked = must_load(source, options);
    ASSERT_TRUE(asked);
    const auto tokens = random_tokens(20, spec.vocab);
    EXPECT_TRUE(same_bits(all_logits(*model, tokens, 20), all_logits(*asked, tokens, 20)));
  }
}

/// Small integers in groups of 128 have an exact scale of x for these, where they are not the row.
TEST(Transformer, ExactScalesOfActivations) {
  for (const auto& [format, wanted] : {std::pair{FormatId::kInt4, 128}, {FormatId::kInt8, 32}}) {
    RandomModelSpec spec;
    spec.format = format;
    spec.group = 128;
    spec.intermediate = 320;
    LoadOptions options;
    options.x = {.group = 32, .by_weight = true};
    auto model = must_load(make_random_model(spec), options);
    ASSERT_TRUE(model);
    for (const WeightInfo& info : model->linears()) {
      const int64_t group = info.k == spec.intermediate ? wanted : 32;
      EXPECT_EQ(info.activation_group, group) << info.kernel;
      EXPECT_NE(info.kernel.find("_a8g" + std::to_string(group) + "_"), std::string::npos) << info.kernel;
    }
  }
}

TEST(Transformer, ObserverSeesEveryLinear) {
  const RandomModelSpec spec;
  auto model = must_load(make_random_model(spec), {});
  ASSERT_TRUE(model);
  std::vector<std::string> seen;
  model->set_observer([&](const std::string& name, const float*, int64_t m, int64_t k) {
    seen.push_back(name);
    EXPECT_EQ(m, 1);
    EXPECT_GT(k, 0);
  });
  auto cache = model->make_cache();
  ASSERT_TRUE(cache);
  std::vector<float> logits(size_t(spec.vocab));
  const std::vector<int32_t> tokens = {4};
  ASSERT_TRUE(model->forward(tokens, *cache, LogitsWanted::last(), logits));
  std::vector<std::string> want;
  for (const WeightInfo& info : model->linears()) want.push_back(info.name);
  EXPECT_EQ(seen, want);
  EXPECT_EQ(seen.size(), 15u);
}

TEST(Transformer, PackedPagesGiveTheSameBitsForAnyCut) {
  for (const char* format : {"int4", "k8v2"}) {
    RandomModelSpec spec;
    spec.max_positions = 400;
    spec.window = format[0] == 'k' ? 150 : 0;
    if (spec.window > 0) spec.model_type = "mistral";
    const MemorySource source = make_random_model(spec);
    const auto tokens = random_tokens(300, spec.vocab);
    LoadOptions options;
    options.kv = *parse_kv_format(format, 64);
    options.reference = true;
    const auto want = all_logits(*must_load(source, options), tokens, 300);
    options.reference = false;
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (!isa_available(isa)) continue;
      options.isa = isa;
      for (const auto& [call, batch, threads] : {std::array<int64_t, 3>{300, 512, 1}, {1, 512, 2}, {100, 33, 3}}) {
        options.batch = batch;
        options.threads = int(threads);
        EXPECT_TRUE(same_bits(all_logits(*must_load(source, options), tokens, call), want))
            << format << " " << isa_name(isa) << " calls of " << call << ", batches of " << batch;
      }
    }
    options.kv = {};
    EXPECT_FALSE(same_bits(all_logits(*must_load(source, options), tokens, 300), want));
  }
}

TEST(Transformer, HeadsThatCannotBePackedAreRefused) {
  RandomModelSpec spec;
  LoadOptions options;
  options.kv = *parse_kv_format("int4", 64);
  spec.head_dim = 24;
  spec.model_type = "qwen3";
  const auto odd = Transformer::load(make_random_model(spec), options);
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message().find("heads of 24"), std::string::npos);
}

}  // namespace
}  // namespace lowbit
