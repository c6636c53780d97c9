#include "io/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/try.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxAttempts = 100;
constexpr mode_t kPermissions = 0777;

}  // namespace

Result<ReplaceFile> ReplaceFile::create(const std::string& given) {
  std::error_code error;
  std::string target = given;
  const fs::file_status status = fs::status(target, error);
  if (status.type() == fs::file_type::none) return fail(ErrorCode::kIo, given, error.message(), "the name of a file");
  if (fs::is_directory(status) || fs::path(given).filename().empty())
    return fail(ErrorCode::kInvalidArgument, "'" + given + "'", "a directory", "the name of a file");
  const bool exists = fs::exists(status);
  if (exists && access(target.c_str(), W_OK) != 0) return io_error(given, "a file that can be written");
  if (exists && !fs::is_regular_file(status)) return ReplaceFile(target, target);
  if (exists && fs::is_symlink(fs::symlink_status(target, error))) target = fs::canonical(target, error).string();
  std::string folder = fs::path(target).parent_path().string();
  if (folder.empty()) folder = ".";
  static std::atomic<int> next{0};
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::string path = folder + "/.tmp-" + std::to_string(getpid()) + "-" + std::to_string(next++);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return io_error(given, "a file that can be written");
    ReplaceFile file(target, path);
    if (exists) (void)!fchmod(fd, static_cast<mode_t>(status.permissions()) & kPermissions);
    close(fd);
    return file;
  }
  return fail(ErrorCode::kIo, folder, "no free temporary name", "fewer files left behind");
}

ReplaceFile::ReplaceFile(ReplaceFile&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, {})) {}

ReplaceFile& ReplaceFile::operator=(ReplaceFile&& other) noexcept {
  if (this == &other) return *this;
  discard();
  target_ = std::move(other.target_);
  path_ = std::exchange(other.path_, {});
  return *this;
}

ReplaceFile::~ReplaceFile() { discard(); }

void ReplaceFile::discard() {
  if (!path_.empty() && path_ != target_) unlink(path_.c_str());
}

Status ReplaceFile::commit() {
  if (path_ != target_ && rename(path_.c_str(), target_.c_str()) != 0)
    return io_error(target_, "a file that can be written");
  path_ = target_;
  return {};
}

}  // namespace lowbit
