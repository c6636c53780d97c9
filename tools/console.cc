#include "console.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

namespace lowbit::cli {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("LOWBIT_LOG");
  const std::string_view level = text ? text : "";
  if (level.empty() || level == "info") return LogLevel::kInfo;
  if (level == "error") return LogLevel::kError;
  if (level == "warn") return LogLevel::kWarn;
  if (level == "debug") return LogLevel::kDebug;
  throw UsageError{
      {ErrorCode::kInvalidArgument, "LOWBIT_LOG", fmt::format("\"{}\"", level), "error, warn, info or debug", ""}};
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

/// 0, or the errno of the write that failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace

Console::Console() {
  stderr_is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  stdout_is_terminal_ = ::isatty(STDOUT_FILENO) == 1;
  const char* term = std::getenv("TERM");
  color_ = stderr_is_terminal_ && !is_set("NO_COLOR") && term && std::strcmp(term, "dumb") != 0;
  level_ = level_from_environment();
}

void Console::put_json(const nlohmann::json& document) {
  // Names and text from files need not be UTF-8; JSON must be.
  write_out(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

bool Console::write_out(std::string_view text) {
  if (stdout_errno_ == 0) stdout_errno_ = write_all(STDOUT_FILENO, text);
  return stdout_errno_ == 0;
}

void Console::write_progress(std::string_view text) {
  progress_line_open_ = stderr_is_terminal_ && !text.empty() && text.back() != '\n';
  (void)write_all(STDERR_FILENO, text);
}

std::string Console::colored(const char* code, std::string_view text) const {
  return color_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

void Console::message(LogLevel level, const std::string& text) {
  if (!shows(level)) return;
  if (progress_line_open_) write_progress("\r\x1b[K");
  progress_line_open_ = false;
  const std::string prefix = level == LogLevel::kWarn ? colored("33", "warning:") + " " : "";
  (void)write_all(STDERR_FILENO, prefix + text + "\n");
}

void Console::error(const Error& error) {
  if (progress_line_open_) write_progress("\r\x1b[K");
  progress_line_open_ = false;
  (void)write_all(STDERR_FILENO, colored("31", "error:") + " " + error.message() + "\n");
}

Status Console::stdout_status() const {
  if (stdout_errno_ == 0 || stdout_errno_ == EPIPE) return {};
  return fail(ErrorCode::kIo, "stdout", std::strerror(stdout_errno_), "room for the output");
}

}  // namespace lowbit::cli
