#include "tensor/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace lowbit {
namespace {
// From this size on pages come straight from the kernel: they are zero already and go back to it
// when freed.
constexpr int64_t kMapFromBytes = int64_t{1} << 20;
constexpr size_t kLargePage = size_t{2} << 20;

/// Zeroed pages, at a multiple of `alignment` (of pages); null when the system refuses.
void* map_pages(size_t size, size_t alignment) {
  const size_t spare = alignment > 1 ? alignment : 0;
  void* p = mmap(nullptr, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (spare == 0) return p;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const begin = static_cast<std::byte*>(p);
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(p) % alignment) % alignment;
  const size_t used = (before + size + page - 1) / page * page, all = size + spare;
  if (before > 0) munmap(begin, before);
  if (used < all) munmap(begin + used, all - used);
  return begin + before;
}
}  // namespace

Result<Buffer> Buffer::allocate(int64_t bytes, const char* what, Pages pages) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  const auto refuse = [&] {
    return fail(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes refused by the system",
                "that much free memory", "close other programs or use a smaller model or context");
  };
  if (bytes < 0) return refuse();
  const auto size = static_cast<size_t>(bytes);
  if (bytes >= kMapFromBytes) {
    const bool large = pages == Pages::kLarge && size >= kLargePage;
    void* p = map_pages(size, large ? kLargePage : 1);
    if (p == nullptr) return refuse();
#if defined(MADV_HUGEPAGE)
    if (large) madvise(p, size, MADV_HUGEPAGE);  // a wish: where it is not granted, pages are small
#endif
    buffer.owner_ = std::shared_ptr<void>(p, [size](void* q) { munmap(q, size); });
    buffer.bytes_ = {static_cast<std::byte*>(p), size};
    return buffer;
  }
  void* p = std::aligned_alloc(64, (size + 63) / 64 * 64);
  if (p == nullptr) return refuse();
  std::memset(p, 0, size);
  buffer.owner_ = std::shared_ptr<void>(p, [](void* q) { std::free(q); });
  buffer.bytes_ = {static_cast<std::byte*>(p), size};
  return buffer;
}

Buffer Buffer::borrow(std::span<std::byte> bytes, std::shared_ptr<void> owner, Device device) {
  Buffer buffer;
  buffer.bytes_ = bytes;
  buffer.owner_ = std::move(owner);
  buffer.device_ = device;
  return buffer;
}

}  // namespace lowbit
