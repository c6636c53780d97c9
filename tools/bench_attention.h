#pragma once
// `lowbit bench attention`.

#include "common_options.h"

namespace CLI {
class App;
}

namespace lowbit::cli {

void add_attention_bench(Verb& bench, Invocation& invocation);

}  // namespace lowbit::cli
