#pragma once

#include <string>

#include "base/threads.h"
#include "lowbit/compute.h"
#include "lowbit/error.h"

namespace lowbit {

/// SHA-256 of the weights at `path`, so that a checkpoint can name what it was made from: of a file's bytes; of a
/// directory's only safetensors file; of several, of their `sha256sum` listing ("HEX  NAME\n", by name). 64 hexadecimal
/// digits. Several files are read at a time, one by a thread of `pool`. `progress` may be empty; it is called by one
/// thread at a time. Errors: kNotFound, kIo, kCancelled.
Result<std::string> source_sha256(const std::string& path, const Progress& progress, ThreadPool& pool);

}  // namespace lowbit
