#pragma once
// An fp8 model as others read it: DeepSeek's "weight_scale_inv" for blocks, compressed-tensors for scales of rows and
// matrices.

#include <cstdint>
#include <string>

#include "arch/spec.h"
#include "lowbit/quantize.h"
#include "model/source.h"

namespace lowbit {

/// Whether a linear layer of a block has fp8 weights.
Result<bool> has_fp8_blocks(const WeightSource& source, const ModelSpec& spec);

/// Writes model.safetensors, config.json and the tokenizer to `directory`. Returns the bytes of the tensors. Every code
/// and scale is kept; layers of floats stay floats, embedding and head become bf16 where they are not. Errors:
/// kUnsupported (other weights, named; scales of several shapes), kCancelled, kIo.
Result<int64_t> write_fp8_model(const WeightSource& source, const ModelSpec& spec, const ExportOptions& options,
                                const std::string& directory);

}  // namespace lowbit
