#pragma once
// Ctrl-C, and the signals of whoever ends programs (SIGTERM, SIGHUP). Without an InterruptFlag they end the program at
// once, with exit code 128 + the signal's number; while one lives they only raise the flag, so that the call under way
// can stop and tidy up. A second one while the flag is up ends the program.

namespace lowbit::cli {

/// Takes the signals over, SIGHUP unless it is ignored (nohup), and makes a closed pipe an error of write() instead of
/// a signal.
void install_signal_handlers();

class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  static bool is_raised();
  /// Raised by a signal that a conversation does not survive either.
  static bool ends_program();
  /// Forgets a Ctrl-C, but no order to end.
  static void lower();
  /// From here to the program's end a signal changes nothing, a second one aside: what was asked for is in its place,
  /// and the exit code says so.
  static void work_is_done();
  /// 128 + the signal that was raised; 130 where a call stopped for another reason.
  static int exit_code();
};

}  // namespace lowbit::cli
