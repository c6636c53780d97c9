#include "backend/cuda/logit_changes.h"

#include <algorithm>
#include <bit>

#include "base/try.h"
#include "kernels/cuda_api.h"

namespace lowbit {
namespace {

constexpr int64_t kUsualRows = 64;
constexpr auto kToken = int64_t{sizeof(int32_t)};

Result<Buffer> place(const void* from, size_t bytes) {
  LOWBIT_TRY_ASSIGN(Buffer buffer, cuda::allocate(int64_t(bytes), "token limits"));
  LOWBIT_TRY(cuda::upload(buffer, from, int64_t(bytes)));
  return buffer;
}

/// How many tokens a row sends: those that were known before the first of its choices, and those of the choices that
/// calls before this one have made.
int64_t count_sent(const TokenChoice* choice) {
  return choice == nullptr ? 0 : int64_t(choice->changes.recent.size()) + choice->changes.later;
}

cuda::RowChanges on_device(const LogitChanges& changes, int64_t pass, int64_t recent_end) {
  cuda::RowChanges row;
  if (const auto* limits = static_cast<const CudaTokenLimits*>(changes.limits)) {
    row.biases = int32_t(limits->bias.size() / int64_t{sizeof(cuda::TokenBias)});
    row.mask_words = int32_t(limits->mask.size() / int64_t{sizeof(uint32_t)});
    row.bias = limits->bias.as<cuda::TokenBias>();
    row.mask = limits->mask.empty() ? nullptr : limits->mask.as<uint32_t>();
  }
  row.laters = int32_t(std::min(changes.later, pass));
  row.recents = int32_t(int64_t(changes.recent.size()) + changes.later) - row.laters;
  row.recent = int32_t(recent_end) - row.recents;
  row.first_later = int32_t(pass) - row.laters;
  row.repeat = changes.repeat;
  row.frequency = changes.frequency;
  row.presence = changes.presence;
  return row;
}

}  // namespace

Result<std::unique_ptr<TokenLimits>> CudaTokenLimits::make(std::span<const std::pair<int32_t, float>> bias,
                                                           std::span<const uint32_t> mask) {
  std::vector<cuda::TokenBias> sorted;
  for (const auto& [token, by] : bias) sorted.push_back({token, by});
  std::ranges::stable_sort(sorted, {}, &cuda::TokenBias::token);
  auto limits = std::make_unique<CudaTokenLimits>();
  LOWBIT_TRY_ASSIGN(limits->bias, place(sorted.data(), sorted.size() * sizeof(cuda::TokenBias)));
  LOWBIT_TRY_ASSIGN(limits->mask, place(mask.data(), mask.size_bytes()));
  return std::unique_ptr<TokenLimits>(std::move(limits));
}

Status CudaLogitChanges::reserve(int64_t rows) {
  return recent_.reserve(std::min(rows, kUsualRows) * kMostRecent * kToken, 1);
}

Status CudaLogitChanges::send_recent(std::span<const WantedRows> wanted, void* stream) {
  int64_t total = 0;
  for (const WantedRows& w : wanted) total += count_sent(w.choice);
  if (total == 0) return {};
  if (total * kToken > recent_.bytes())
    LOWBIT_TRY(recent_.reserve(int64_t(std::bit_ceil(uint64_t(total * kToken))), 1));
  recent_.clear();
  auto* to = recent_.host<int32_t>(recent_.add<int32_t>(total));
  for (const WantedRows& w : wanted) {
    if (w.choice == nullptr) continue;
    to = std::ranges::copy(w.choice->changes.recent, to).out;
    for (int64_t i = -w.choice->changes.later; i < 0; ++i) *to++ = w.choice[i].token;
  }
  return recent_.send(stream, recent_.used());
}

Status CudaLogitChanges::set(std::span<const WantedRows> wanted, int64_t pass, cuda::RowChanges* rows, void* stream) {
  any_ = false;
  if (pass == 0) {
    LOWBIT_TRY(send_recent(wanted, stream));
    ends_.clear();
  }
  int64_t end = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const TokenChoice* const choice = wanted[i].choice;
    if (pass == 0) ends_.push_back(end += count_sent(choice));
    const auto own = choice == nullptr ? cuda::RowChanges{} : on_device(choice->changes, pass, ends_[i]);
    any_ |= own.bias != nullptr || own.repeat != 1 || own.frequency != 0 || own.presence != 0;
    rows = std::fill_n(rows, wanted[i].rows, own);
  }
  return {};
}

}  // namespace lowbit
