// Checks that kernels find what log-probabilities are made of. Included behind sample_checks.h, like it without a
// guard.

#include "kernels/cuda_logprob_api.h"
#include "runtime/token_logprobs.h"

namespace lowbit {
namespace {

/// Rows with other numbers of the likeliest tokens; some are left out, some have no token.
void check_logprobs(int64_t rows, int64_t vocab, uint64_t seed) {
  Rng rng(seed, 79);
  std::vector<float> logits;
  std::vector<int32_t> wanted;
  std::vector<cuda::ChosenToken> chosen;
  for (int64_t r = 0; r < rows; ++r) {
    const auto kind = static_cast<LogitsKind>(rng.below(static_cast<uint64_t>(LogitsKind::kCount)));
    const std::vector<float> own = logits_of(kind, vocab, rng);
    logits.insert(logits.end(), own.begin(), own.end());
    wanted.push_back(int32_t(rng.below(kMostLikely + 2)) - 1);
    chosen.push_back({rng.below(9) == 0 ? -1 : int32_t(rng.below(uint64_t(vocab))), -1});
  }
  const OnDevice<float> on_device(logits);
  const OnDevice<int32_t> device_wanted(wanted);
  const OnDevice<cuda::ChosenToken> device_chosen(chosen);
  OnDevice<uint8_t> scratch(std::vector<uint8_t>(static_cast<size_t>(cuda::logprob_scratch_bytes(rows, vocab))));
  for (int again = 0; again < 2; ++again) {  // the kernels' memory is used again
    OnDevice<cuda::RowLogprobs> found(std::vector<cuda::RowLogprobs>(static_cast<size_t>(rows)));
    const cuda::Logprobs call{on_device.data(), device_wanted.data(), found.data(), rows, vocab, scratch.data(),
                              nullptr};
    ASSERT_TRUE(cuda::sum_logprobs(call));
    ASSERT_TRUE(cuda::report_chosen(call, device_chosen.data()));
    const std::vector<cuda::RowLogprobs> got = found.back();
    for (size_t r = 0; r < got.size(); ++r) {
      if (wanted[r] < 0) continue;
      const std::string name = "seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab) + ", row " +
                               std::to_string(r) + ", " + std::to_string(wanted[r]) + " wanted";
      const auto own = std::span<const float>(logits).subspan(r * size_t(vocab), size_t(vocab));
      TokenLogits of{wanted[r], got[r].chosen, got[r].largest, got[r].sum, {}};
      for (int32_t i = 0; i < std::min<int64_t>(wanted[r], vocab); ++i)
        of.top.emplace_back(got[r].top[i].token, got[r].top[i].logit);
      std::vector<std::pair<int32_t, float>> top, want_top;
      const float logprob = token_logprobs(of, top);
      const float want = token_logprobs(own, std::max(chosen[r].token, 0), wanted[r], want_top);
      if (chosen[r].token >= 0) {
        ASSERT_TRUE(same_number(logprob, want)) << name << ": " << logprob << " vs " << want;
      }
      ASSERT_EQ(top.size(), want_top.size()) << name;
      for (size_t i = 0; i < top.size(); ++i) {
        ASSERT_EQ(top[i].first, want_top[i].first) << name << ", " << i;
        ASSERT_TRUE(same_number(top[i].second, want_top[i].second)) << name << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lowbit
