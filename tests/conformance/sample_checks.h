// Checks that kernels that choose tokens give those of Sampler. Included by a test that has an OnDevice<T>: a copy of a
// vector where the kernels of lowbit::cuda find it, with data() and back(). No include guard: each such test has its
// own.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda_sample_api.h"
#include "runtime/sampler.h"

namespace lowbit {
namespace {

/// Bit for bit, but for NaN.
bool same_number(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

enum class LogitsKind { kNormal, kCoarse, kEqual, kWide, kInfinite, kMostlyMinus, kZeros, kNan, kCount };

std::vector<float> logits_of(LogitsKind kind, int64_t vocab, Rng& rng) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& l : logits) {
    const auto v = static_cast<float>(3 * rng.normal());
    const uint64_t dice = rng.below(40);
    switch (kind) {
      case LogitsKind::kCoarse:
        l = std::round(v);
        break;  // many ties
      case LogitsKind::kEqual:
        l = -2.5F;
        break;
      case LogitsKind::kWide:
        l = 40 * v;
        break;
      case LogitsKind::kInfinite:
        l = dice == 0 ? kInf : dice == 1 ? -kInf : v;
        break;
      case LogitsKind::kMostlyMinus:
        l = dice == 0 ? v : -kInf;
        break;
      case LogitsKind::kZeros:
        l = dice < 20 ? 0.0F : dice < 39 ? -0.0F : -1.0F;
        break;
      case LogitsKind::kNan:
        l = dice == 0 ? std::numeric_limits<float>::quiet_NaN() : v;
        break;
      default:
        l = v;
    }
  }
  return logits;
}

SamplerOptions options_of(uint64_t number, Rng& rng) {
  constexpr float kTemperatures[] = {0, 0.8F, 1, 0.05F, 1.7F, 100}, kTopPs[] = {1, 0.95F, 0.5F, 1e-12F, 0.9999F},
                  kMinPs[] = {0, 0.05F, 0.5F, 1, 1e-14F};
  constexpr int64_t kTopKs[] = {40, 0, 1, 5, 1000, 1024, 1025, int64_t{1} << 40};
  SamplerOptions o;
  o.temperature = kTemperatures[number % std::size(kTemperatures)];
  o.top_k = kTopKs[rng.below(std::size(kTopKs))];
  o.top_p = kTopPs[rng.below(std::size(kTopPs))];
  o.min_p = kMinPs[rng.below(std::size(kMinPs))];
  o.seed = rng.next();
  return o;
}

/// Rows of one call: each with options of its own, some left out; two calls, since the kernels' memory is used again.
void check_choices(int64_t rows, int64_t vocab, uint64_t seed) {
  Rng rng(seed, 77);
  OnDevice<uint8_t> scratch(std::vector<uint8_t>(static_cast<size_t>(cuda::choose_scratch_bytes(rows))));
  for (int call = 0; call < 2; ++call) {
    std::vector<float> logits;
    std::vector<TokenRule> rules;
    std::vector<cuda::ChosenToken> wanted;
    std::vector<std::string> names;
    bool draws = false;
    for (int64_t row = 0; row < rows; ++row) {
      const auto kind = static_cast<LogitsKind>(rng.below(static_cast<uint64_t>(LogitsKind::kCount)));
      const std::vector<float> own = logits_of(kind, vocab, rng);
      const SamplerOptions options = options_of(rng.below(6), rng);
      logits.insert(logits.end(), own.begin(), own.end());
      Sampler host = *Sampler::make(options), asked = *Sampler::make(options);
      const auto token = host.sample(own);
      rules.push_back(asked.next_rule());
      draws |= options.temperature > 0;
      wanted.push_back({token ? *token : -1, -1});
      if (!token)
        wanted.back().nan = int32_t(std::ranges::find_if(own, [](float l) { return std::isnan(l); }) - own.begin());
      if (rng.below(8) == 0) {
        rules.back().temperature = -1;
        wanted.back() = {-7, -7};
      }
      names.push_back("seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab) + ", row " +
                      std::to_string(row) + ", logits " + std::to_string(int(kind)) + ", temperature " +
                      std::to_string(options.temperature) + ", top_k " + std::to_string(options.top_k) + ", top_p " +
                      std::to_string(options.top_p) + ", min_p " + std::to_string(options.min_p));
    }
    const OnDevice<float> on_device(logits);
    const OnDevice<TokenRule> device_rules(rules);
    OnDevice<cuda::ChosenToken> chosen(std::vector<cuda::ChosenToken>(static_cast<size_t>(rows), {-7, -7}));
    ASSERT_TRUE(cuda::choose_tokens(
        {on_device.data(), device_rules.data(), chosen.data(), rows, vocab, draws, scratch.data(), nullptr}));
    const std::vector<cuda::ChosenToken> got = chosen.back();
    for (size_t row = 0; row < names.size(); ++row) {
      ASSERT_EQ(got[row].token, wanted[row].token) << names[row];
      ASSERT_EQ(got[row].nan, wanted[row].nan) << names[row];
    }
  }
}

}  // namespace
}  // namespace lowbit
