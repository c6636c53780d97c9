#include "io/temporary_names.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

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
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    if (name.find_first_not_of("0123456789-", prefix.size()) != std::string::npos) continue;
    const int fd = lock_path(it->path().string());
    if (fd < 0) continue;
    std::error_code failed;
    fs::remove_all(it->path(), failed);
    close(fd);
  }
}

}  // namespace lowbit
