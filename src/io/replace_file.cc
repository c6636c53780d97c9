#include "io/replace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/try.h"
#include "io/posix_file.h"
#include "io/temporary_names.h"

namespace lowbit {
namespace fs = std::filesystem;

Result<ReplaceFile> ReplaceFile::create(const std::string& given) {
  std::error_code error;
  std::string target = given;
  const fs::file_status status = fs::status(target, error);
  if (status.type() == fs::file_type::none) return fail(ErrorCode::kIo, given, error.message(), "the name of a file");
  if (fs::is_directory(status) || fs::path(given).filename().empty())
    return fail(ErrorCode::kInvalidArgument, "'" + given + "'", "a directory", "the name of a file");
  const bool exists = fs::exists(status);
  if (exists && access(target.c_str(), W_OK) != 0) return io_error(given, "a file that can be written");
  if (exists && !fs::is_regular_file(status)) return ReplaceFile(target, target, -1);
  if (exists && fs::is_symlink(fs::symlink_status(target, error))) target = fs::canonical(target, error).string();
  std::string folder = fs::path(target).parent_path().string();
  if (folder.empty()) folder = ".";
  const std::string prefix = temporary_prefix(fs::path(target).filename().string());
  remove_stale(folder, prefix);
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    const std::string path = temporary_path(folder, prefix, attempt);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return io_error(given, "a file that can be written");
    struct stat info = {};
    const bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;  // some file systems have no locks
    if (taken || fstat(fd, &info) != 0 || info.st_nlink == 0) {
      close(fd);  // another writer took it for a stale one in this very moment
      continue;
    }
    if (exists) (void)!fchmod(fd, static_cast<mode_t>(status.permissions()) & 0777);
    return ReplaceFile(target, path, fd);
  }
  return fail(ErrorCode::kIo, folder, "no free temporary name", "fewer files left behind");
}

ReplaceFile::ReplaceFile(ReplaceFile&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, {})),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

ReplaceFile& ReplaceFile::operator=(ReplaceFile&& other) noexcept {
  if (this == &other) return *this;
  discard();
  target_ = std::move(other.target_);
  path_ = std::exchange(other.path_, {});
  lock_fd_ = std::exchange(other.lock_fd_, -1);
  return *this;
}

ReplaceFile::~ReplaceFile() { discard(); }

void ReplaceFile::discard() {
  if (!path_.empty() && path_ != target_) unlink(path_.c_str());
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status ReplaceFile::commit() {
  if (path_ != target_ && rename(path_.c_str(), target_.c_str()) != 0)
    return io_error(target_, "a file that can be written");
  path_ = target_;
  return {};
}

}  // namespace lowbit
