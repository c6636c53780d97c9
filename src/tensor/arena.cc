#include "tensor/arena.h"

#include <utility>

namespace lowbit {

namespace {
constexpr int64_t kLargePage = int64_t{2} << 20, kSlabBytes = 16 * kLargePage, kAlignment = 64;
}

Result<Buffer> Arena::allocate(int64_t bytes, const char* what) {
  if (bytes <= 0 || bytes >= kLargePage) return Buffer::allocate(bytes, what, Pages::kLarge);
  if (slab_ == nullptr || bytes > slab_->size() - used_) {
    auto slab = Buffer::allocate(kSlabBytes, what, Pages::kLarge);
    if (!slab) return Buffer::allocate(bytes, what);  // there may be room for this one alone
    slab_ = std::make_shared<Buffer>(std::move(*slab));
    used_ = 0;
  }
  std::byte* const at = slab_->data() + used_;
  const int64_t before = used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // One thread has the system clear each large page: of many that begin to write at once each would have one cleared.
  for (int64_t page = (before + kLargePage - 1) / kLargePage * kLargePage; page < used_; page += kLargePage)
    *static_cast<volatile std::byte*>(slab_->data() + page) = {};
  return Buffer::borrow({at, static_cast<size_t>(bytes)}, slab_);
}

}  // namespace lowbit
