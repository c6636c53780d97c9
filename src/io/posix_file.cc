#include "io/posix_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/try.h"
#include "io/replace_file.h"

namespace lowbit {

tl::unexpected<Error> io_error(const std::string& path, const char* wanted) {
  const int code = errno;
  std::string hint;
  if (code == ENOSPC || code == EDQUOT) hint = "free some space or choose another disk";
  if (code == EACCES || code == EPERM || code == EROFS) hint = "choose a place where you may write";
  return fail(ErrorCode::kIo, path, std::strerror(code), wanted, hint);
}

Result<int> create_file(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return io_error(path, "a file that can be written");
  return fd;
}

Result<int> open_regular(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return fail(missing ? ErrorCode::kNotFound : ErrorCode::kIo, path, std::strerror(errno), "a readable file");
  }
  struct stat info = {};
  Status regular;
  if (fstat(fd, &info) != 0) {
    regular = fail(ErrorCode::kIo, path, std::strerror(errno), "a readable file");
  } else if (S_ISDIR(info.st_mode)) {
    regular = fail(ErrorCode::kInvalidArgument, path, "a directory", "a file");
  } else if (!S_ISREG(info.st_mode)) {
    regular = fail(ErrorCode::kIo, path, "a device or pipe", "a regular file");
  }
  if (regular) return fd;
  close(fd);
  return tl::unexpected<Error>(std::move(regular.error()));
}

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 26));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "room for the file");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status sync_and_close(int fd, const std::string& path) {
  const bool synced = fsync(fd) == 0 || errno == EINVAL;  // a device or a pipe has nothing to sync
  const int error = errno;
  const bool closed = close(fd) == 0;
  if (!synced) errno = error;
  if (!synced || !closed) return io_error(path, "data safe on the disk");
  return {};
}

Result<std::vector<std::string>> directory_names(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return io_error(path, "a readable directory");
  std::vector<std::string> names;
  for (errno = 0; const dirent* entry = readdir(folder.get()); errno = 0) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return io_error(path, "a readable directory");
  std::sort(names.begin(), names.end());
  return names;
}

Status sync_directory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(path, "a directory");
  const bool synced = fsync(fd) == 0 || errno == EINVAL;  // some file systems cannot sync a directory
  const int error = errno;
  close(fd);
  errno = error;
  if (!synced) return io_error(path, "names safe on the disk");
  return {};
}

Status write_text_file(const std::string& path, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return write_binary_file(path, std::span(&bytes, 1));
}

Status write_binary_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
  LOWBIT_TRY_ASSIGN(ReplaceFile file, ReplaceFile::create(path));
  LOWBIT_TRY_ASSIGN(const int fd, create_file(file.path()));
  Status written;
  for (const auto piece : pieces)
    if (written) written = write_all(fd, piece, path);
  const Status closed = sync_and_close(fd, path);
  LOWBIT_TRY(written);
  LOWBIT_TRY(closed);
  return file.commit();
}

}  // namespace lowbit
