#include "interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace lowbit::cli {
namespace {

std::atomic<int> flags_alive{0};
std::atomic<int> raised{0};  // the signal
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  if (flags_alive.load() == 0 || raised.exchange(signal) != 0) _exit(128 + signal);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {}, before = {};
  action.sa_handler = on_signal;  // no SA_RESTART: a read of the keyboard must return
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);  // a limit on files is an error of the write
}

InterruptFlag::InterruptFlag() {
  raised = 0;
  ++flags_alive;
}
InterruptFlag::~InterruptFlag() { --flags_alive; }

bool InterruptFlag::is_raised() { return raised.load() != 0; }
bool InterruptFlag::ends_program() { return is_raised() && raised.load() != SIGINT; }
void InterruptFlag::lower() {
  int interrupt = SIGINT;
  raised.compare_exchange_strong(interrupt, 0);
}
void InterruptFlag::work_is_done() { ++flags_alive; }
int InterruptFlag::exit_code() { return 128 + (is_raised() ? raised.load() : SIGINT); }

}  // namespace lowbit::cli
