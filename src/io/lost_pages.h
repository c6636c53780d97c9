#pragma once
// Pages of mapped files that the system cannot deliver, since the file was shortened or its disk failed. Touching one
// raises SIGBUS, which ends the process. A handler that acts for watched mappings alone puts zeros in their place and
// notes the loss; who reads a mapping asks at the end. A SIGBUS from anywhere else goes to the handler that was there
// before.

#include <cstddef>
#include <cstdint>
#include <span>

#include "lowbit/error.h"

namespace lowbit {

/// False when the mapping cannot be watched: 1,024 are, or the handler cannot be installed. The handler stays while any
/// is watched.
bool watch_mapping(std::span<const std::byte> bytes);
/// To be called before the mapping ends.
void unwatch_mapping(std::span<const std::byte> bytes);

/// Whether a page of the watched mapping that `address` lies in was lost: for mappings that are read again and again.
/// One load while none was.
bool has_lost_pages(const void* address);
/// kCorrupt when has_lost_pages.
Status check_pages(const void* address, const char* where);

/// For an operation that reads files: made before it, asked at its end, before its result is used.
class LostPages {
 public:
  LostPages();
  /// kCorrupt when a page of any watched mapping was lost meanwhile.
  Status status(const std::string& where) const;

 private:
  uint64_t before_;
};

}  // namespace lowbit
