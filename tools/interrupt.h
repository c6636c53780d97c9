#pragma once
// Ctrl-C. Without an InterruptFlag it ends the program with exit code 130; while one lives it only
// raises the flag, so that the call under way can stop and tidy up. A second Ctrl-C while the flag
// is up ends the program.

namespace lowbit::cli {

/// Takes SIGINT over, and makes a closed pipe an error of write() instead of a signal.
void install_signal_handlers();

class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  static bool is_raised();
  static void lower();
};

}  // namespace lowbit::cli
