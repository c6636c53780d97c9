#include "interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "console.h"

namespace lowbit::cli {
namespace {

std::atomic<int> flags_alive{0};
std::atomic<bool> raised{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) {
  if (flags_alive.load() == 0 || raised.exchange(true)) _exit(kInterrupted);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read of the keyboard must return
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);  // a limit on files is an error of the write
}

InterruptFlag::InterruptFlag() {
  raised = false;
  ++flags_alive;
}
InterruptFlag::~InterruptFlag() { --flags_alive; }

bool InterruptFlag::is_raised() { return raised.load(); }
void InterruptFlag::lower() { raised = false; }

}  // namespace lowbit::cli
