#include "io/lost_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

namespace lowbit {
namespace {

struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<bool> lost{false};
};

constexpr size_t kSlots = 1024;
std::array<Slot, kSlots> slots;
std::atomic<uint64_t> losses{0};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::mutex mutex;  // of what follows, and of claiming slots
size_t watched = 0;
struct sigaction before = {};
std::atomic<uintptr_t> page_bytes{4096};

Slot* slot_of(uintptr_t address) {
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin != 0 && begin <= address && address < slot.end.load(std::memory_order_relaxed)) return &slot;
  }
  return nullptr;
}

/// Zeros from the page of `address` to the mapping's end. What runs in a signal handler: atomics and one system call.
bool replace_pages(uintptr_t address) {
  Slot* slot = slot_of(address);
  if (slot == nullptr) return false;
  const uintptr_t page = address / page_bytes * page_bytes, end = slot->end;
  void* at = reinterpret_cast<void*>(page);  // NOLINT(performance-no-int-to-ptr): the fault's address
  if (mmap(at, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return false;
  slot->lost.store(true);
  losses.fetch_add(1);
  return true;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool is_fault = info->si_code > 0;  // else somebody sent it
  if (is_fault && replace_pages(reinterpret_cast<uintptr_t>(info->si_addr))) {
    errno = saved;
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(SIGBUS, &before, nullptr);  // the access is made again, and ends the process
    if (!is_fault) raise(signal);
  }
  errno = saved;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

bool install() {
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) != 0) return false;
  if (is_ours(now)) return true;
  before = now;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return sigaction(SIGBUS, &action, nullptr) == 0;
}

tl::unexpected<Error> lost(std::string where) {
  return fail(ErrorCode::kCorrupt, std::move(where),
              "a page that could not be read: the file was shortened meanwhile, or its disk failed",
              "a file that stays as it is", "write to another file and rename it");
}

}  // namespace

bool watch_mapping(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex);
  if (watched == 0 && !install()) return false;
  for (Slot& slot : slots) {
    if (slot.begin != 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    slot.lost = false;
    slot.end = (begin + bytes.size() + page_bytes - 1) / page_bytes * page_bytes;
    slot.begin.store(begin, std::memory_order_release);
    ++watched;
    return true;
  }
  return false;
}

void unwatch_mapping(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex);
  Slot* slot = slot_of(reinterpret_cast<uintptr_t>(bytes.data()));
  if (slot == nullptr) return;
  slot->begin = 0;
  if (--watched > 0) return;
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) == 0 && is_ours(now)) sigaction(SIGBUS, &before, nullptr);
}

bool has_lost_pages(const void* address) {
  if (losses.load(std::memory_order_relaxed) == 0) return false;
  const Slot* slot = slot_of(reinterpret_cast<uintptr_t>(address));
  return slot != nullptr && slot->lost;
}

Status check_pages(const void* address, const char* where) {
  if (has_lost_pages(address)) return lost(where);
  return {};
}

LostPages::LostPages() : before_(losses) {}

Status LostPages::status(const std::string& where) const {
  if (losses != before_) return lost(where);
  return {};
}

}  // namespace lowbit
