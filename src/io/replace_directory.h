#pragma once
// A directory that appears whole or not at all: it is built beside its target under a temporary name and then renamed.

#include <functional>
#include <memory>
#include <string>

#include "lowbit/error.h"

namespace lowbit {

/// The temporary directory `.tmp-NAME-PID-N` beside `target`. A process that is killed leaves it behind; the next
/// builder of the same target removes it (it knows by a lock which ones are still in use). Destruction without commit
/// removes it.
class ReplaceDirectory {
 public:
  /// `may_replace(target)` is asked when the target exists and is not an empty directory; its error is returned.
  /// Errors: kIo (unwritable parent, ...), kInvalidArgument (target is a file).
  static Result<std::unique_ptr<ReplaceDirectory>> create(const std::string& target,
                                                          const std::function<Status(const std::string&)>& may_replace);
  ~ReplaceDirectory();
  ReplaceDirectory(const ReplaceDirectory&) = delete;
  ReplaceDirectory& operator=(const ReplaceDirectory&) = delete;

  const std::string& path() const { return temporary_; }  // where to write the files; each must be synced by its writer
  const std::string& target() const { return target_; }

  /// Readers of the new files are never more than those of the old ones: the directory and its files get the
  /// permissions of the old ones; a file without an old one keeps at most those of the directory. Syncs the directory
  /// and renames it to the target. An old target is swapped out in one step where the file system can, else moved aside
  /// first, and then removed.
  Status commit();

 private:
  ReplaceDirectory(std::string target, std::string parent, std::string temporary, int lock_fd)
      : target_(std::move(target)), parent_(std::move(parent)), temporary_(std::move(temporary)), lock_fd_(lock_fd) {}
  Status keep_permissions() const;
  std::string target_, parent_, temporary_;
  int lock_fd_ = -1;
  bool committed_ = false;
};

}  // namespace lowbit
