#pragma once
// Shows how far a long call is: a bar on a terminal after one second, elsewhere a line every few
// seconds.

#include <chrono>
#include <string>

#include "console.h"
#include "interrupt.h"
#include "lowbit/compute.h"

namespace lowbit::cli {

/// Lives while the call runs. Also turns Ctrl-C into "stop" for the call.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(Console& console);
  ~ProgressDisplay();

  /// For the library; refers to this object.
  Progress callback();
  /// Shows `text` in the place of the bar or line; false after Ctrl-C.
  bool update(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  bool is_due(bool stage_ended);
  std::string bar(const std::string& stage, int64_t done, int64_t total) const;
  void show(const std::string& text);

  Console& console_;
  InterruptFlag interrupt_;
  Clock::time_point started_, stage_started_, shown_;
  std::string stage_;
  bool on_screen_ = false;
};

}  // namespace lowbit::cli
