#include "tensor/arena.h"

#include <utility>

#include "base/checked.h"

namespace lowbit {

namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;

Result<Buffer> large_pages(int64_t bytes, const char* what) { return Buffer::allocate(bytes, what, Pages::kLarge); }

/// One thread has the system clear each large page: of many that begin to write at once each would have one cleared.
void touch_pages(Buffer& slab, int64_t begin, int64_t end) {
  if (slab.device() != Device::kCpu) return;
  for (int64_t page = round_up(begin, kLargePage); page < end; page += kLargePage)
    *static_cast<volatile std::byte*>(slab.data() + page) = {};
}

}  // namespace

Arena::Arena() : Arena(large_pages, 16 * kLargePage, kLargePage, 64) {}

Result<Buffer> Arena::allocate(int64_t bytes, const char* what) {
  if (bytes <= 0 || bytes >= alone_) return source_(bytes, what);
  std::erase_if(slabs_, [](const Slab& s) { return s.memory.expired(); });
  std::shared_ptr<Buffer> memory;
  Slab* place = nullptr;
  for (Slab& s : slabs_)
    if (bytes <= slab_bytes_ - s.used && (memory = s.memory.lock()) != nullptr) {
      place = &s;
      break;
    }
  if (place == nullptr) {
    auto slab = source_(slab_bytes_, what);
    if (!slab) return source_(bytes, what);  // there may be room for this one alone
    memory = std::make_shared<Buffer>(std::move(*slab));
    place = &slabs_.emplace_back(Slab{memory, 0});
  }
  std::byte* const at = memory->data() + place->used;
  const int64_t before = place->used;
  place->used = round_up(before + bytes, alignment_);
  touch_pages(*memory, before, place->used);
  const Device device = memory->device();
  return Buffer::borrow({at, static_cast<size_t>(bytes)}, std::move(memory), device);
}

}  // namespace lowbit
