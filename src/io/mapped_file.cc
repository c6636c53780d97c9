#include "io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/lost_pages.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

struct OpenFile {
  int fd = -1;
  int64_t size = 0;
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
};

Status open_sized(const std::string& path, OpenFile* file) {
  LOWBIT_TRY_ASSIGN(file->fd, open_regular(path));
  struct stat info = {};
  if (fstat(file->fd, &info) != 0) return fail(ErrorCode::kIo, path, std::strerror(errno), "a readable file");
  file->size = info.st_size;
  return {};
}

/// Reads as many bytes as there are, at most `size`.
Result<size_t> read_all(int fd, const std::string& path, void* to, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(fd, static_cast<char*>(to) + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorCode::kIo, path, std::strerror(errno), "a readable file");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

// Below it a copy costs less than a mapping's page faults, and nobody can change it.
constexpr size_t kCopiedBytes = size_t{256} << 10;

tl::unexpected<Error> shortened(const std::string& where, uint64_t now, uint64_t before) {
  return fail(ErrorCode::kCorrupt, where,
              "a file that was shortened to " + std::to_string(now) + " bytes while it was read",
              std::to_string(before) + " bytes", "write to another file and rename it");
}

/// The file's bytes in pages of their own.
Result<std::span<std::byte>> copy_of(const OpenFile& file, const std::string& path, size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return fail(ErrorCode::kOutOfMemory, path, std::strerror(errno), std::to_string(size) + " bytes");
  const auto done = read_all(file.fd, path, p, size);
  if (!done || *done < size) {
    munmap(p, size);
    if (!done) return tl::unexpected(done.error());
    return shortened(path, *done, size);
  }
  mprotect(p, size, PROT_READ);
  return std::span(static_cast<std::byte*>(p), size);
}

}  // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  OpenFile file;
  LOWBIT_TRY(open_sized(path, &file));
  if (file.size == 0) return fail(ErrorCode::kCorrupt, path, "an empty file", "at least one byte");
  const auto size = static_cast<size_t>(file.size);
  if (size > kCopiedBytes) {
    void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (p == MAP_FAILED) return fail(ErrorCode::kIo, path, std::strerror(errno), "a file that can be mapped");
    const std::span bytes(static_cast<std::byte*>(p), size);
    if (watch_mapping(bytes))
      return std::shared_ptr<MappedFile>(new MappedFile(path, bytes, std::exchange(file.fd, -1)));
    munmap(p, size);
  }
  LOWBIT_TRY_ASSIGN(const auto bytes, copy_of(file, path, size));
  return std::shared_ptr<MappedFile>(new MappedFile(path, bytes, -1));
}

MappedFile::~MappedFile() {
  if (descriptor_ >= 0) unwatch_mapping(bytes_);
  munmap(bytes_.data(), bytes_.size());
  if (descriptor_ >= 0) close(descriptor_);
}

Result<Buffer> MappedFile::borrow(uint64_t offset, uint64_t size, const std::string& what) const {
  const auto end = checked_add(offset, size);
  if (!end || *end > bytes_.size())
    return fail(ErrorCode::kCorrupt, path_ + ": " + what,
                "bytes " + std::to_string(offset) + " + " + std::to_string(size),
                "a range inside the file's " + std::to_string(bytes_.size()));
  struct stat st {};
  if (descriptor_ >= 0 && fstat(descriptor_, &st) == 0 && static_cast<uint64_t>(st.st_size) < *end)
    return shortened(path_ + ": " + what, static_cast<uint64_t>(st.st_size), bytes_.size());
  LOWBIT_TRY(check_pages(bytes_.data(), path_.c_str()));
  return Buffer::borrow(bytes_.subspan(offset, size), std::const_pointer_cast<MappedFile>(shared_from_this()));
}

void MappedFile::release(uint64_t offset, uint64_t size) const {
  if (descriptor_ < 0) return;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto end = checked_add(offset, size);
  if (!end || *end > bytes_.size()) return;
  const uint64_t first = (offset + page - 1) / page * page;
  const uint64_t last = *end == bytes_.size() ? *end : *end / page * page;
  if (first < last) madvise(bytes_.data() + first, last - first, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::string& path, int64_t limit_bytes) {
  OpenFile file;
  LOWBIT_TRY(open_sized(path, &file));
  if (file.size > limit_bytes)
    return fail(ErrorCode::kUnsupported, path, std::to_string(file.size) + " bytes",
                "at most " + std::to_string(limit_bytes));
  std::string text(static_cast<size_t>(file.size), '\0');
  LOWBIT_TRY_ASSIGN(const size_t done, read_all(file.fd, path, text.data(), text.size()));
  text.resize(done);
  return text;
}

}  // namespace lowbit
