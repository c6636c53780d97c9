#pragma once
// Which blocks of Qwen models see a window only.

#include "arch/decoder.h"
#include "base/try.h"

namespace lowbit {

/// Blocks from max_window_layers on have the window, although the key's name suggests the blocks before it.
inline Status set_qwen_windows(const ConfigReader& config, ModelSpec& spec) {
  LOWBIT_TRY_ASSIGN(const bool windowed, config.flag("use_sliding_window", false));
  if (!windowed) return {};
  LOWBIT_TRY_ASSIGN(const int64_t window, config.integer("sliding_window", 1, kMaxExtent, 4096));
  LOWBIT_TRY_ASSIGN(const int64_t first, config.integer("max_window_layers", 0, kMaxExtent, 28));
  return set_windows(config, window, first, spec);
}

}  // namespace lowbit
