#pragma once
// Everything the program writes: results to stdout, messages to stderr, each by the rules of
// docs/cli.md.

#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "lowbit/error.h"

namespace lowbit::cli {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2 };

/// A mistake on the command line: one error line, exit 2. Thrown from option callbacks only.
struct UsageError {
  Error error;
};

class Console {
 public:
  /// Reads LOWBIT_LOG and NO_COLOR. Throws UsageError for a level that does not exist.
  Console();

  /// --json: print() is silent, so that stdout holds nothing but the document of put_json().
  void set_json(bool json) { json_ = json; }
  /// --quiet: nothing but errors on stderr.
  void set_quiet(bool quiet) { quiet_ = quiet; }
  bool json() const { return json_; }

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    if (!json_) write_out(fmt::format(format, std::forward<Args>(args)...));
  }
  void put_json(const nlohmann::json& document);

  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
  void warn(const std::string& text) { message(LogLevel::kWarn, text); }

  /// The one error line.
  void error(const Error& error);

  /// Text to stdout as it is, at once. False once stdout is gone: the caller may as well stop.
  bool write_out(std::string_view text);
  /// Writes to stderr without a newline or a level: progress.
  void write_progress(std::string_view text);
  /// True when info messages are wanted.
  bool shows(LogLevel level) const { return level == LogLevel::kError || (!quiet_ && level <= level_); }

  bool stderr_is_terminal() const { return stderr_is_terminal_; }
  bool stdout_is_terminal() const { return stdout_is_terminal_; }
  /// Terminal codes around text, where stderr is a terminal and NO_COLOR is not set.
  std::string colored(const char* code, std::string_view text) const;

  /// The state of stdout: nothing lost, a reader that left (not an error), or an error such as a full disk.
  Status stdout_status() const;

 private:
  void message(LogLevel level, const std::string& text);

  LogLevel level_ = LogLevel::kInfo;
  bool json_ = false, quiet_ = false, color_ = false;
  bool stderr_is_terminal_ = false, stdout_is_terminal_ = false;
  bool progress_line_open_ = false;
  int stdout_errno_ = 0;
};

}  // namespace lowbit::cli
