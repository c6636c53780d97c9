#pragma once
// Files as lowbit writes them.

#include <string>

#include "lowbit/error.h"

namespace lowbit {

/// A file with this text, whole or not at all: it is written beside `path` under a temporary name, synced and renamed.
/// Devices and pipes are written as they are. Errors: kInvalidArgument (a directory), kIo.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace lowbit
