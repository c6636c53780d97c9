#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/try.h"

namespace lowbit {
namespace {

struct OpenFile {
  int fd = -1;
  int64_t size = 0;
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
};

Status open_regular(const std::string& path, OpenFile* file) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  file->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return fail(missing ? ErrorCode::kNotFound : ErrorCode::kIo, path, std::strerror(errno), "a readable file");
  }
  struct stat st {};
  if (fstat(file->fd, &st) != 0) return fail(ErrorCode::kIo, path, std::strerror(errno), "a readable file");
  if (S_ISDIR(st.st_mode)) return fail(ErrorCode::kInvalidArgument, path, "a directory", "a file");
  if (!S_ISREG(st.st_mode)) return fail(ErrorCode::kIo, path, "a device or pipe", "a regular file");
  file->size = st.st_size;
  return {};
}

}  // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  OpenFile file;
  LOWBIT_TRY(open_regular(path, &file));
  if (file.size == 0) return fail(ErrorCode::kCorrupt, path, "an empty file", "at least one byte");
  const auto size = static_cast<size_t>(file.size);
  void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) return fail(ErrorCode::kIo, path, std::strerror(errno), "a file that can be mapped");
  return std::shared_ptr<MappedFile>(
      new MappedFile(path, {static_cast<std::byte*>(p), size}, std::exchange(file.fd, -1)));
}

MappedFile::~MappedFile() {
  munmap(bytes_.data(), bytes_.size());
  close(descriptor_);
}

Result<Buffer> MappedFile::borrow(uint64_t offset, uint64_t size, const std::string& what) const {
  const auto end = checked_add(offset, size);
  if (!end || *end > bytes_.size())
    return fail(ErrorCode::kCorrupt, path_ + ": " + what,
                "bytes " + std::to_string(offset) + " + " + std::to_string(size),
                "a range inside the file's " + std::to_string(bytes_.size()));
  struct stat st {};
  if (fstat(descriptor_, &st) == 0 && static_cast<uint64_t>(st.st_size) < *end)
    return fail(ErrorCode::kCorrupt, path_ + ": " + what,
                "a file that was shortened to " + std::to_string(st.st_size) + " bytes while it was read",
                std::to_string(bytes_.size()) + " bytes", "write to another file and rename it");
  return Buffer::borrow(bytes_.subspan(offset, size), std::const_pointer_cast<MappedFile>(shared_from_this()));
}

void MappedFile::release(uint64_t offset, uint64_t size) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto end = checked_add(offset, size);
  if (!end || *end > bytes_.size()) return;
  const uint64_t first = (offset + page - 1) / page * page;
  const uint64_t last = *end == bytes_.size() ? *end : *end / page * page;
  if (first < last) madvise(bytes_.data() + first, last - first, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::string& path, int64_t limit_bytes) {
  OpenFile file;
  LOWBIT_TRY(open_regular(path, &file));
  if (file.size > limit_bytes)
    return fail(ErrorCode::kUnsupported, path, std::to_string(file.size) + " bytes",
                "at most " + std::to_string(limit_bytes));
  std::string text(static_cast<size_t>(file.size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = read(file.fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorCode::kIo, path, std::strerror(errno), "a readable file");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace lowbit
