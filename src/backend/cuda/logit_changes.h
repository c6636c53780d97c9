#pragma once
// Changes of logits before tokens are chosen from them, as kernels see them.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/device_lists.h"
#include "backend/step.h"
#include "kernels/cuda_change_api.h"

namespace lowbit {

struct CudaTokenLimits final : TokenLimits {
  /// On the current device.
  static Result<std::unique_ptr<TokenLimits>> make(std::span<const std::pair<int32_t, float>> bias,
                                                   std::span<const uint32_t> mask);
  Buffer bias, mask;  // cuda::TokenBias by token; words
};

/// The changes of a batch's wanted rows.
class CudaLogitChanges {
 public:
  /// For batches of so many rows; more memory is taken when many have much that is recent.
  Status reserve(int64_t rows);
  int64_t bytes() const { return recent_.bytes(); }
  /// Writes those of pass `pass` to `rows`, one for each wanted row, and with the first pass sends the recent tokens.
  /// Wait for the stream before the next batch. Errors: kOutOfMemory, what CUDA says.
  Status set(std::span<const WantedRows> wanted, int64_t pass, cuda::RowChanges* rows, void* stream);
  /// Some row has changes: the same for all passes of a batch.
  bool any() const { return any_; }
  const int32_t* recent() const { return recent_.on_device<int32_t>(0); }

 private:
  Status send_recent(std::span<const WantedRows> wanted, void* stream);

  DeviceLists recent_;         // of all rows
  std::vector<int64_t> ends_;  // where those of each of the wanted ones end
  bool any_ = false;
};

}  // namespace lowbit
