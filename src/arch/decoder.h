#pragma once
// Shared parts of the families' decoders: blocks of attention and a gated MLP, a norm before each.

#include "arch/config_reader.h"
#include "arch/spec.h"

namespace lowbit {

struct DecoderSizes {
  int64_t vocab = 0, hidden = 0, width = 0, blocks = 1;
  int64_t heads = 1, kv_heads = 1, head_dim = 0;
  int64_t max_positions = 0;
  RopeSpec rope;
  float eps = 0;
  Glu glu = Glu::kSilu;
  bool tied_head = false;
};

/// No biases, no norms but those before a part and at the end, no windows.
ModelSpec plain_decoder(const DecoderSizes& sizes);

// For the families: what they set in all blocks.
void set_attention_bias(ModelSpec& spec, bool qkv, bool output);
void set_mlp_bias(ModelSpec& spec, bool bias);
/// Norms of the heads of q and k.
/// Norms of their own before the linear layers of the blocks (transformers' BitLinear with use_rms_norm).
void set_linear_norms(ModelSpec& spec, float eps);
void set_head_norms(ModelSpec& spec);

/// Windows of `window` positions for the blocks from `first` on, or for those that layer_types names; 0: no windows.
/// Errors: kInvalidArgument, kUnsupported (another type of layer).
Status set_windows(const ConfigReader& config, int64_t window, int64_t first, ModelSpec& spec);

}  // namespace lowbit
