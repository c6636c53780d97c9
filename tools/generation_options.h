#pragma once
// Options that `run` and `chat` share, and what both say about speed and memory.

#include <cstdint>
#include <string>

#include "command_line.h"
#include "console.h"
#include "lowbit/model.h"

namespace lowbit::cli {

/// -n, --temp, --top-k, --top-p, --min-p, --repeat-penalty, --seed
void add_generation_options(Verb& verb, GenerateOptions& options);
/// -c, --act
void add_model_options(Verb& verb, ModelOptions& options);

/// Opens the model that the user named, with progress on the console. `options.compute` and `options.progress` are set
/// here.
Result<Model> open_model(Console& console, const std::string& name, const Compute& compute, ModelOptions options);

/// Warnings about properties of the tokenizer that were assumed because its file does not state them.
void warn_of(Console& console, const Tokenizer& tokenizer);

/// Peak resident memory of this process so far.
int64_t peak_memory_bytes();

}  // namespace lowbit::cli
