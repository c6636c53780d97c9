#pragma once
// A file that appears whole or not at all: it is written beside its target under a temporary name and then renamed.

#include <string>
#include <utility>

#include "lowbit/error.h"

namespace lowbit {

/// The temporary file `.tmp-NAME-PID-N` beside `target` (io/temporary_names.h). Destruction without commit removes it.
/// A device or a pipe is written as it is, and a symbolic link goes on pointing to the file it points to.
class ReplaceFile {
 public:
  /// Errors: kInvalidArgument (the target is a directory), kIo (a file that may not be written, no such folder, ...).
  static Result<ReplaceFile> create(const std::string& target);
  ReplaceFile(ReplaceFile&& other) noexcept;
  ReplaceFile& operator=(ReplaceFile&& other) noexcept;
  ~ReplaceFile();

  const std::string& path() const {
    return path_;
  }  // exists, empty; what is written there must be synced by its writer
  const std::string& target() const { return target_; }

  /// Renames; nothing may be written behind it.
  Status commit();

 private:
  ReplaceFile(std::string target, std::string path, int lock_fd)
      : target_(std::move(target)), path_(std::move(path)), lock_fd_(lock_fd) {}
  void discard();
  std::string target_, path_;
  int lock_fd_ = -1;
};

}  // namespace lowbit
