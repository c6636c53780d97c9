// A calibration's kernels on the GPU, and a whole block against the CPU's, bit for bit.

#include <gtest/gtest.h>

#include <vector>

#include "model/device_block.h"
#include "model/random_model.h"
#include "runtime/transformer.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values)
      : count_(values.size()), buffer_(conformance::on_device(values.data(), values.size() * sizeof(T))) {}
  T* data() { return buffer_.as<T>(); }
  const T* data() const { return buffer_.as<T>(); }
  std::vector<T> back() const {
    std::vector<T> values(count_);
    EXPECT_TRUE(cuda::download(values.data(), buffer_, int64_t(count_ * sizeof(T))));
    return values;
  }

 private:
  size_t count_;
  Buffer buffer_;
};

}  // namespace
}  // namespace lowbit

#include "tests/conformance/block_checks.h"

namespace lowbit {
namespace {

TEST(Blocks, Products) {
  LOWBIT_NEEDS_GPU();
  check_matmuls(400, 1000);
}

TEST(Blocks, Moments) {
  LOWBIT_NEEDS_GPU();
  for (const auto& [rows, k, chunk] :
       {std::array<int64_t, 3>{1, 1, 64}, {70, 130, 32}, {257, 20, 64}, {5000, 300, 1024}, {2048, 576, 1024}})
    for (const bool crossed : {false, true}) check_moments(rows, k, chunk, crossed);
}

TEST(Blocks, Rows) {
  LOWBIT_NEEDS_GPU();
  check_rows();
}

TEST(Blocks, Attention) {
  LOWBIT_NEEDS_GPU();
  check_attention(2, 70, 4, 2, 16);
  check_attention(1, 33, 2, 1, 80);
  check_attention(2, 5, 3, 3, 128);
  check_attention(3, 512, 9, 3, 64);
  check_attention(2, 700, 4, 2, 20);
}

TEST(Steps, AttentionOnPages) {
  LOWBIT_NEEDS_GPU();
  check_pages({.heads = 4, .kv_heads = 2, .head_dim = 16, .sequences = {{0, 5}, {30, 1}, {60, 9}}});
  check_pages({.heads = 3, .kv_heads = 1, .head_dim = 20, .sequences = {{255, 3}, {270, 1}}});
  check_pages({.heads = 9, .kv_heads = 3, .head_dim = 64, .sequences = {{0, 512}, {4000, 1}, {511, 100}}});
  check_pages({.heads = 32, .kv_heads = 1, .head_dim = 128, .sequences = {{700, 7}, {1, 1}}});
  check_pages({.heads = 32, .kv_heads = 8, .head_dim = 128, .sequences = {{9000, 1}}});
  check_pages({.heads = 6, .kv_heads = 2, .head_dim = 130, .sequences = {{256, 1}, {255, 1}}});
  check_pages({.heads = 2, .kv_heads = 1, .head_dim = 256, .sequences = {{300, 40}, {3, 1}}});
  for (const int64_t window : {1, 40, 256, 300, 1000})
    check_pages(
        {.heads = 6, .kv_heads = 2, .head_dim = 48, .window = window, .sequences = {{0, 20}, {290, 40}, {2600, 1}}});
}

TEST(Steps, Codes) {
  LOWBIT_NEEDS_GPU();
  check_codes();
}

TEST(Steps, RowsOfATable) {
  LOWBIT_NEEDS_GPU();
  check_gather();
}

/// Windows through block 1, three at a time at most, against one after the other on the CPU.
void check_block(const RandomModelSpec& spec, int64_t context, const std::string& lowbit_config = "") {
  MemorySource source = make_random_model(spec);
  if (!lowbit_config.empty()) source.config.insert(source.config.find('{') + 1, lowbit_config);
  LoadOptions load;
  load.x.activation = Activation::kF32;
  load.context = context;
  load.only_block = 1;
  const auto model = Transformer::load(source, load);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  auto cache = (*model)->make_cache();
  ASSERT_TRUE(cache.has_value());
  constexpr int64_t kWindows = 3;
  Rng rng(11);
  const std::vector<float> x = random_floats(rng, kWindows * context * spec.hidden);
  std::vector<float> wanted = x;
  std::vector<std::vector<float>> seen;
  (*model)->set_observer(
      [&](const std::string&, const float* rows, int64_t m, int64_t k) { seen.emplace_back(rows, rows + m * k); });
  for (int64_t w = 0; w < kWindows; ++w)
    ASSERT_TRUE((*model)->run_block(
        std::span(wanted).subspan(size_t(w * context * spec.hidden), size_t(context * spec.hidden)), *cache));

  auto work = DeviceBlockWorkspace::make((*model)->spec(), context, kWindows, one_thread());
  ASSERT_TRUE(work.has_value()) << work.error().message();
  ASSERT_EQ(work->windows(), kWindows);
  const auto block = DeviceBlock::load(source, *parse_model_spec(source.config), 1, one_thread());
  ASSERT_TRUE(block.has_value()) << block.error().message();
  OnDevice<float> states(x);
  size_t observed = 0;
  const auto status = block->run(
      *work, states.data(), kWindows, [&](const DeviceLinear& layer, const float* rows, int64_t m) -> Status {
        // The CPU's observer saw window after window, each with every layer.
        std::vector<float> got(size_t(m * layer.k())), all;
        auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(rows));
        EXPECT_TRUE(cuda::download(got.data(), Buffer::borrow({bytes, 4 * got.size()}, nullptr, Device::kCuda),
                                   int64_t(4 * got.size())));
        const size_t layers = seen.size() / kWindows;
        for (size_t w = 0; w < kWindows; ++w)
          all.insert(all.end(), seen[w * layers + observed].begin(), seen[w * layers + observed].end());
        ++observed;
        expect_same(got, all, "input of " + layer.name());
        return {};
      });
  ASSERT_TRUE(status.has_value()) << status.error().message();
  EXPECT_EQ(observed, 7u);
  expect_same(states.back(), wanted, "block of " + spec.model_type);
}

TEST(Blocks, AWholeBlock) {
  LOWBIT_NEEDS_GPU();
  RandomModelSpec spec;
  check_block(spec, 40);
  spec.format = FormatId::kInt4;
  check_block(spec, 100);
  spec.attention_bias = spec.mlp_bias = true;
  spec.format = FormatId::kBf16;
  check_block(spec, 64);
  RandomModelSpec qwen;
  qwen.model_type = "qwen3";
  check_block(qwen, 33);
  spec.intermediate = 3 * 64;
  check_block(spec, 50,
              R"("quantization_config": {"quant_method": "lowbit", "online_hadamard": {"mlp.down_proj": 64}},)");
}

TEST(Blocks, ErrorsNameTheTensor) {
  LOWBIT_NEEDS_GPU();
  MemorySource source = make_random_model({});
  source.weights.erase("model.layers.0.mlp.up_proj.weight");
  const auto block = DeviceBlock::load(source, *parse_model_spec(source.config), 0, one_thread());
  ASSERT_FALSE(block.has_value());
  EXPECT_EQ(block.error().code, ErrorCode::kNotFound);
  EXPECT_NE(block.error().where.find("up_proj"), std::string::npos);
}

}  // namespace
}  // namespace lowbit
