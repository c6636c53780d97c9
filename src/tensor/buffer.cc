#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace lowbit {
namespace {
// From this size on pages come straight from the kernel: they are zero already and go back to it
// when freed.
constexpr int64_t kMapFromBytes = int64_t{1} << 20;
}  // namespace

Result<Buffer> Buffer::allocate(int64_t bytes, const char* what) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  const auto refuse = [&] {
    return fail(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes refused by the system",
                "that much free memory", "close other programs or use a smaller model or context");
  };
  if (bytes < 0) return refuse();
  const auto size = static_cast<size_t>(bytes);
  if (bytes >= kMapFromBytes) {
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return refuse();
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
