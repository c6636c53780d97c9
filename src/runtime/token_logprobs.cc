#include "runtime/token_logprobs.h"

#include <algorithm>
#include <cmath>

#include "ops/log_softmax.h"

namespace lowbit {

float token_logprobs(std::span<const float> logits, int32_t token, int64_t k,
                     std::vector<std::pair<int32_t, float>>& top) {
  const LogSoftmax row = log_softmax(logits);
  const auto first = [](const auto& a, const auto& b) {
    if (std::isnan(a.second) != std::isnan(b.second)) return std::isnan(b.second);
    return a.second > b.second || (!(a.second < b.second) && a.first < b.first);
  };
  top.clear();
  const auto wanted = static_cast<size_t>(std::clamp<int64_t>(k, 0, static_cast<int64_t>(logits.size())));
  // A heap whose front is the last of those kept so far.
  for (size_t i = 0; wanted > 0 && i < logits.size(); ++i) {
    const std::pair<int32_t, float> each{static_cast<int32_t>(i), logits[i]};
    if (top.size() == wanted) {
      if (!first(each, top.front())) continue;
      std::pop_heap(top.begin(), top.end(), first);
      top.pop_back();
    }
    top.push_back(each);
    std::push_heap(top.begin(), top.end(), first);
  }
  std::sort_heap(top.begin(), top.end(), first);
  for (auto& [id, value] : top) value = static_cast<float>(row.of(value));
  return static_cast<float>(row.of(logits[static_cast<size_t>(token)]));
}

float token_logprobs(const TokenLogits& of, std::vector<std::pair<int32_t, float>>& top) {
  const LogSoftmax row{.largest = of.largest, .log_sum = std::log(of.sum)};
  top = of.top;
  for (auto& [id, value] : top) value = static_cast<float>(row.of(value));
  return static_cast<float>(row.of(of.chosen));
}

}  // namespace lowbit
