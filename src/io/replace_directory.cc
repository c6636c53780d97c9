#include "io/replace_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "base/try.h"
#include "io/posix_file.h"
#include "io/temporary_names.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;

Status check_target(const std::string& target, const std::function<Status(const std::string&)>& may_replace) {
  std::error_code error;
  const auto status = fs::status(target, error);
  if (!fs::exists(status)) return {};
  if (!fs::is_directory(status))
    return fail(ErrorCode::kInvalidArgument, target, "an existing file", "a new or empty directory");
  const bool empty = fs::is_empty(target, error);
  if (error) return fail(ErrorCode::kIo, target, error.message(), "a directory that can be read");
  return empty ? Status{} : may_replace(target);
}

/// Swaps two names in one step. False when the file system cannot.
bool swap_names(const std::string& a, const std::string& b) {
#ifdef RENAME_EXCHANGE
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
  (void)a, (void)b;
  return false;
#endif
}

}  // namespace

Result<std::unique_ptr<ReplaceDirectory>> ReplaceDirectory::create(
    const std::string& given, const std::function<Status(const std::string&)>& may_replace) {
  std::error_code error;
  std::string target = given;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  if (fs::is_symlink(fs::symlink_status(target, error))) {  // replace what it points to
    target = fs::canonical(target, error).string();
  } else {
    error.clear();  // that there is nothing yet is fine
  }
  if (error || target.empty())
    return fail(ErrorCode::kInvalidArgument, "output directory", "'" + given + "'", "a directory name");
  const std::string name = fs::path(target).filename().string();
  if (name.empty() || name == "." || name == "..")
    return fail(ErrorCode::kInvalidArgument, "output directory", "'" + given + "'", "a directory name");
  std::string parent = fs::path(target).parent_path().string();
  if (parent.empty()) parent = ".";
  LOWBIT_TRY(check_target(target, may_replace));
  const std::string prefix = temporary_prefix(name);
  remove_stale(parent, prefix);
  const bool exists = fs::exists(target, error);
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    const std::string path = temporary_path(parent, prefix, attempt);
    if (mkdir(path.c_str(), exists ? 0700 : 0777) != 0) {
      if (errno == EEXIST) continue;
      return io_error(parent, "a directory where new files may be made");
    }
    const int fd = lock_path(path);
    if (fd < 0) continue;  // another builder took it for a stale one in this very moment
    return std::unique_ptr<ReplaceDirectory>(new ReplaceDirectory(target, parent, path, fd));
  }
  return fail(ErrorCode::kIo, parent, "no free temporary name", "fewer writers of one target");
}

ReplaceDirectory::~ReplaceDirectory() {
  // Walking a directory takes memory. What stays is removed by the next writer.
  for (int tries = committed_ ? 0 : 2; tries > 0; --tries) {
    try {
      std::error_code ignored;
      fs::remove_all(temporary_, ignored);
      break;
    } catch (const std::bad_alloc&) {
      continue;
    }
  }
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status ReplaceDirectory::keep_permissions() const {
  struct stat old = {};
  if (stat(target_.c_str(), &old) != 0) return {};  // nothing is replaced
  LOWBIT_TRY_ASSIGN(const auto names, directory_names(temporary_));
  for (const std::string& name : names) {
    const std::string path = temporary_ + "/" + name;
    struct stat now = {}, before = {};
    if (stat(path.c_str(), &now) != 0) return io_error(path, "the file just written");
    const bool had = stat((target_ + "/" + name).c_str(), &before) == 0;
    const mode_t mode = had ? before.st_mode & 0777 : now.st_mode & old.st_mode & 0666;
    if (chmod(path.c_str(), mode) != 0) return io_error(path, "a file whose permissions can be set");
  }
  if (chmod(temporary_.c_str(), old.st_mode & 07777) != 0)
    return io_error(temporary_, "a directory whose permissions can be set");
  return {};
}

Status ReplaceDirectory::commit() {
  LOWBIT_TRY(keep_permissions());
  LOWBIT_TRY(sync_directory(temporary_));
  if (rename(temporary_.c_str(), target_.c_str()) == 0) {  // no target, or an empty directory
    committed_ = true;
    return sync_directory(parent_);
  }
  if (errno != ENOTEMPTY && errno != EEXIST) return io_error(target_, "a place where the directory may be put");
  if (swap_names(temporary_, target_)) {
    LOWBIT_TRY(sync_directory(parent_));
    committed_ = true;
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);  // now the old one
    return {};
  }
  const std::string aside =
      temporary_ + "-0";  // has the stale prefix too, but is not locked: removed by the next builder at the latest
  if (rename(target_.c_str(), aside.c_str()) != 0) return io_error(target_, "a directory that may be moved");
  if (rename(temporary_.c_str(), target_.c_str()) != 0) {
    const auto problem = io_error(target_, "a place where the directory may be put");
    (void)!rename(aside.c_str(), target_.c_str());
    return problem;
  }
  committed_ = true;
  LOWBIT_TRY(sync_directory(parent_));
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  return {};
}

}  // namespace lowbit
