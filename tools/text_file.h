#pragma once

#include <string>

#include "lowbit/error.h"

namespace lowbit::cli {

/// The whole of a file, or of stdin for "-".
Result<std::string> read_text(const std::string& path);

}  // namespace lowbit::cli
