#pragma once
// How much memory a context takes.

#include <cstdint>
#include <string>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

/// Keys and values of one sequence in one format (ModelOptions::kv), with the residual that is the default.
struct KvMemoryRow {
  std::string kv;
  double bits_per_element = 0;    // of a packed page, scales included
  int64_t context_bytes = 0;      // of the longest context
  int64_t positions_per_gib = 0;  // that fit in 2^30 bytes
};
struct KvMemory {
  std::string model;            // its path
  int64_t context = 0;          // the longest one that the model was made for
  std::vector<KvMemoryRow> kv;  // formats that it can be kept in, the largest first
};
/// Memory of the keys and values of a model, from its description alone. Errors: those of resolve_model() and of a
/// model that lowbit cannot run.
Result<KvMemory> kv_memory(const std::string& model);

}  // namespace lowbit
