#pragma once
// Options that every verb has.

#include <functional>
#include <memory>
#include <string>

#include "command_line.h"
#include "console.h"
#include "lowbit/compute.h"

namespace lowbit::cli {

/// The command that was asked for: filled while it is parsed, run afterwards.
struct Invocation {
  bool json = false, quiet = false;
  Compute compute;
  int done = kDone, failed = kFailed;  // exit codes, for verbs that have others
  std::function<Status(Console&)> action;
};

/// --json, --quiet, --threads, --device, --isa, --help and --version. To be called last, so that help lists them last.
void add_common_options(Verb& verb, Invocation& invocation);

}  // namespace lowbit::cli
