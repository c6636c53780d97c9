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
  Compute compute{.device = "", .isa = "", .threads = 0};  // "auto" is what somebody asked for
  int done = kDone, failed = kFailed;                      // exit codes, for verbs that have others
  std::function<Status(Console&)> action;
};

/// --json, --quiet, --threads, --device, --isa, --help and --version. To be called last, so that help lists them last.
void add_common_options(Verb& verb, Invocation& invocation);

/// For verbs that run models on a GPU: `auto`, of --device or LOWBIT_DEVICE, is the first GPU where there is one, else
/// the CPU. Other names stay.
Compute with_gpu_found(const Compute& compute);

}  // namespace lowbit::cli
