#include "progress_display.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace lowbit::cli {
namespace {

using std::chrono::milliseconds;
constexpr auto kBarDelay = milliseconds(1000), kBarPeriod = milliseconds(100), kLinePeriod = milliseconds(5000);
constexpr int kBarCells = 30;
constexpr int64_t kMostCounted = 99999;

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// A bar that is longer than the terminal's lines could not be taken back.
size_t terminal_columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

ProgressDisplay::ProgressDisplay(Console& console)
    : console_(console), started_(Clock::now()), stage_started_(started_), shown_(started_) {}

ProgressDisplay::~ProgressDisplay() {
  if (on_screen_) console_.write_progress("\r\x1b[K");
}

Progress ProgressDisplay::callback() {
  return [this](const std::string& stage, int64_t done, int64_t total) {
    if (stage != stage_) {
      stage_ = stage;
      stage_started_ = Clock::now();
    }
    if (is_due(total > 0 && done >= total)) show(bar(stage, done, total));
    return !InterruptFlag::is_raised();
  };
}

bool ProgressDisplay::update(const std::string& text) {
  if (is_due(false)) show(text);
  return !InterruptFlag::is_raised();
}

bool ProgressDisplay::is_due(bool stage_ended) {
  if (!console_.shows(LogLevel::kInfo)) return false;
  const auto now = Clock::now();
  if (console_.stderr_is_terminal()) return now - started_ >= kBarDelay && (stage_ended || now - shown_ >= kBarPeriod);
  return now - shown_ >= kLinePeriod;
}

std::string ProgressDisplay::bar(const std::string& stage, int64_t done, int64_t total) const {
  if (total <= 0) return fmt::format("{}: {}", stage, done);
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const double elapsed = seconds(Clock::now() - stage_started_);
  const std::string left =
      share > 0.02 && share < 1 ? fmt::format(", {:.0f} s left", elapsed * (1 - share) / share) : "";
  if (!console_.stderr_is_terminal()) {
    const std::string counts = total <= kMostCounted ? fmt::format("{} of {}, ", done, total) : "";  // else of bytes
    return fmt::format("{}: {}{:.0f} %{}", stage, counts, 100 * share, left);
  }
  const int full = static_cast<int>(share * kBarCells);
  return fmt::format("{:<14.14} [{:#>{}}{:.>{}}] {:3.0f} %{}", stage, "", full, "", kBarCells - full, 100 * share,
                     left);
}

void ProgressDisplay::show(const std::string& text) {
  shown_ = Clock::now();
  if (console_.stderr_is_terminal()) {
    console_.write_progress("\r" + text.substr(0, terminal_columns() - 1) + "\x1b[K");
    on_screen_ = true;
  } else {
    console_.write_progress(text + "\n");
  }
}

}  // namespace lowbit::cli
