#pragma once
// The fuzzer's bytes as a file, for readers that take a path. It lies in memory.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

namespace lowbit::fuzz {

class FuzzFile {
 public:
  FuzzFile(const uint8_t* data, size_t size) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~FuzzFile() { close(fd_); }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Reads every byte, so that one that is not there is found.
inline void touch(std::span<const std::byte> bytes) {
  volatile unsigned sum = 0;
  for (const std::byte b : bytes) sum = sum + static_cast<unsigned>(b);
}

}  // namespace lowbit::fuzz
