#include "io/temporary_names.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "io/posix_file.h"

namespace lowbit {

namespace fs = std::filesystem;

std::string temporary_prefix(const std::string& name) { return ".tmp-" + name.substr(0, 200) + "-"; }

std::string temporary_path(const std::string& folder, const std::string& prefix, int attempt) {
  return folder + "/" + prefix + std::to_string(getpid()) + "-" + std::to_string(attempt);
}

int lock_path(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

void remove_stale(const std::string& folder, const std::string& prefix) {
  const auto names = directory_names(folder);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(prefix)) continue;
    if (name.find_first_not_of("0123456789-", prefix.size()) != std::string::npos) continue;
    const std::string path = folder + "/" + name;
    const int fd = lock_path(path);
    if (fd < 0) continue;
    std::error_code failed;
    fs::remove_all(path, failed);
    close(fd);
  }
}

}  // namespace lowbit
