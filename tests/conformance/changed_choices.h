// Checks of the kernels that change logits and choose, row by row against Sampler. Included behind change_checks.h.

namespace lowbit {
namespace {

/// `on_device`: keeps the device's copies of biases and masks.
template <class Placed>
cuda::RowChanges changes_of(const ChangedRow& row, int64_t pass, int64_t recent_end, Placed& placed) {
  cuda::RowChanges to;
  std::vector<cuda::TokenBias> bias;
  for (const auto& [token, by] : row.options.logit_bias) bias.push_back({token, by});
  std::ranges::stable_sort(bias, {}, &cuda::TokenBias::token);
  to.biases = int32_t(bias.size());
  to.mask_words = int32_t(row.options.token_mask.size());
  placed.biases.push_back(std::make_unique<OnDevice<cuda::TokenBias>>(bias));
  placed.masks.push_back(std::make_unique<OnDevice<uint32_t>>(row.options.token_mask));
  to.bias = placed.biases.back()->data();
  if (to.mask_words > 0) to.mask = placed.masks.back()->data();
  to.recents = int32_t(row.recent.size());
  to.recent = int32_t(recent_end) - to.recents;
  to.laters = int32_t(std::min<int64_t>(pass, row.options.repeat_window));
  to.first_later = int32_t(pass) - to.laters;
  to.repeat = row.options.repeat_penalty;
  to.frequency = row.options.frequency_penalty;
  to.presence = row.options.presence_penalty;
  return to;
}
struct Placed {
  std::vector<std::unique_ptr<OnDevice<cuda::TokenBias>>> biases;
  std::vector<std::unique_ptr<OnDevice<uint32_t>>> masks;
};

void check_changed_choices(int64_t rows, int64_t vocab, uint64_t seed) {
  Rng rng(seed, 78);
  const auto pass = int64_t(rng.below(8)), stride = rows + 3;
  std::vector<ChangedRow> all;
  Placed placed;
  std::vector<float> logits;
  std::vector<int32_t> recent;
  std::vector<TokenRule> rules;
  std::vector<cuda::RowChanges> changes;
  std::vector<cuda::ChosenToken> before(size_t(8 * stride), {-9, -9});
  bool draws = false;
  for (int64_t r = 0; r < rows; ++r) {
    const ChangedRow& row = all.emplace_back(vocab, size_t(pass), rng);
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    recent.insert(recent.end(), row.recent.begin(), row.recent.end());
    rules.push_back(Sampler(row.sampler).next_rule());
    draws |= row.options.temperature > 0;
    changes.push_back(changes_of(row, pass, std::ssize(recent), placed));
    for (int64_t p = 0; p < pass; ++p) before[size_t(p * stride + r)].token = row.later[size_t(p)];
  }
  OnDevice<float> on_device(logits);
  const OnDevice<int32_t> device_recent(recent);
  const OnDevice<TokenRule> device_rules(rules);
  const OnDevice<cuda::RowChanges> device_changes(changes);
  const OnDevice<cuda::ChosenToken> device_before(before);
  OnDevice<uint8_t> scratch(std::vector<uint8_t>(static_cast<size_t>(cuda::choose_scratch_bytes(rows))));
  OnDevice<cuda::ChosenToken> chosen(std::vector<cuda::ChosenToken>(static_cast<size_t>(rows), {-7, -7}));
  const cuda::ChangeLogits call{
      on_device.data(), device_changes.data(), device_recent.data(), device_before.data(), stride, rows, vocab,
      nullptr};
  ASSERT_TRUE(cuda::change_logits(call));
  ASSERT_TRUE(cuda::choose_tokens(
      {on_device.data(), device_rules.data(), chosen.data(), rows, vocab, draws, scratch.data(), nullptr}));
  ASSERT_TRUE(cuda::refuse_forbidden(call, chosen.data()));
  const std::vector<cuda::ChosenToken> got = chosen.back();
  for (size_t r = 0; r < all.size(); ++r) {
    const std::string name = "seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab) + ", row " +
                             std::to_string(r) + ", pass " + std::to_string(pass);
    const auto want = all[r].sampler.sample(all[r].logits);
    ASSERT_EQ(got[r].token, want ? *want : -1) << name << (want ? "" : want.error().message());
    if (want) continue;
    const auto error = got[r].nan >= 0 ? Sampler::not_a_number(got[r].nan) : Sampler::all_forbidden();
    ASSERT_EQ(error.value().message(), want.error().message()) << name;
  }
}

}  // namespace
}  // namespace lowbit
