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

cuda::RowChanges on_device(const LogitChanges& changes, int64_t pass, int64_t recent_end) {
  cuda::RowChanges row;
  if (const auto* limits = static_cast<const CudaTokenLimits*>(changes.limits)) {
    row.biases = int32_t(limits->bias.size() / int64_t{sizeof(cuda::TokenBias)});
    row.mask_words = int32_t(limits->mask.size() / int64_t{sizeof(uint32_t)});
    row.bias = limits->bias.as<cuda::TokenBias>();
    row.mask = limits->mask.empty() ? nullptr : limits->mask.as<uint32_t>();
  }
  row.recents = int32_t(changes.recent.size());
  row.recent = int32_t(recent_end) - row.recents;
  row.laters = int32_t(changes.later);
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
  for (const WantedRows& w : wanted)
    if (w.choice != nullptr) total += int64_t(w.choice->changes.recent.size());
  if (total == 0) return {};
  if (total * kToken > recent_.bytes())
    LOWBIT_TRY(recent_.reserve(int64_t(std::bit_ceil(uint64_t(total * kToken))), 1));
  recent_.clear();
  auto* to = recent_.host<int32_t>(recent_.add<int32_t>(total));
  for (const WantedRows& w : wanted)
    if (w.choice != nullptr) to = std::ranges::copy(w.choice->changes.recent, to).out;
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
    if (pass == 0) ends_.push_back(end += choice == nullptr ? 0 : int64_t(choice->changes.recent.size()));
    const auto own = choice == nullptr ? cuda::RowChanges{} : on_device(choice->changes, pass, ends_[i]);
    any_ |= own.bias != nullptr || own.repeat != 1 || own.frequency != 0 || own.presence != 0;
    rows = std::fill_n(rows, wanted[i].rows, own);
  }
  return {};
}

}  // namespace lowbit
