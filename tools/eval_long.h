#pragma once
// `lowbit eval --long`: what a quantized KV cache loses over a long text.

#include <cstdint>
#include <string>
#include <vector>

#include "console.h"
#include "lowbit/long_context.h"

namespace lowbit::cli {

struct LongArguments {
  std::string file;              // the text
  std::vector<int64_t> lengths;  // empty: a quarter, a half and all of the context
  int64_t sequences = 0;         // texts of each length; 0: 1
};

/// `base`: the same model with an f16 cache. Prints tables, or the document of --json (docs/cli.md).
Status run_long(Console& console, Model& model, Model& base, const LongArguments& arguments);

}  // namespace lowbit::cli
