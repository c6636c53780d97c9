#pragma once
// A network as data: blocks, norms, linear layers, who reads which input, and the names of tensors. Everything that
// asks about topology loops over it: inputs_of(), linears_of(), norms_of().

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arch/names.h"
#include "lowbit/error.h"

namespace lowbit {

struct RopeScaling {
  enum class Kind : uint8_t {
    kNone,
    kLinear,   // frequencies / factor
    kDynamic,  // changes nothing up to original_max_positions; longer contexts are refused at load
    kLlama3,   // long wavelengths / factor, short ones kept, a linear blend between
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // kLlama3
  int64_t original_max_positions = 0;                // kLlama3, kDynamic
  bool operator==(const RopeScaling&) const = default;
};

/// Rotary positions, half-split: element i of a head is rotated with element i + dims / 2.
struct RopeSpec {
  int64_t dims = 0;  // of a head
  double theta = 10000;
  RopeScaling scaling;
  bool operator==(const RopeSpec&) const = default;
};

/// y = x / sqrt(mean(x^2) + eps) * (offset + weight).
struct NormSpec {
  TensorName name;
  int64_t size = 0;
  float eps = 0;
  float offset = 0;
  bool operator==(const NormSpec&) const = default;
};

enum class LinearRole : uint8_t { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown, kHead };
/// Its outputs are added to the residual stream.
constexpr bool adds_to_stream(LinearRole role) { return role == LinearRole::kOutput || role == LinearRole::kDown; }

/// y = x W^T + bias: W [n, k].
struct LinearSpec {
  TensorName name;
  LinearRole role = LinearRole::kHead;
  int64_t n = 0, k = 0;
  bool bias = false;
  std::optional<NormSpec> norm = {};  // of its input's rows, for it alone
  bool operator==(const LinearSpec&) const = default;
};

/// Where a block's inputs come from: rows of the residual stream, of attention, or of the gated product.
enum class InputRole : uint8_t { kAttention, kOutput, kMlp, kDown };
constexpr size_t kInputRoles = 4;
constexpr bool reads_stream(InputRole role) { return role == InputRole::kAttention || role == InputRole::kMlp; }

/// Rows that linear layers read: normed, then transformed, where they are.
struct InputSpec {
  InputRole role = InputRole::kAttention;
  std::optional<NormSpec> norm;
  int64_t hadamard = 0;  // > 0: each so many columns pass a Hadamard transform
  std::vector<LinearSpec> readers;
  bool operator==(const InputSpec&) const = default;
};

struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // the last so many positions are seen, a row's own among them; 0: all
  float scale = 1;     // of q k
  std::optional<RopeSpec> rope;
  InputSpec qkv, output;
  std::optional<NormSpec> q_norm, k_norm;  // of each head, before the rotation
  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  bool operator==(const AttentionSpec&) const = default;
};

/// The gated product: act(gate) * up.
enum class Glu : uint8_t { kSilu, kGeluTanh, kSquaredRelu };
const char* glu_name(Glu glu);  // "SiLU", "GELU (tanh)", "squared ReLU"

struct MlpSpec {
  int64_t width = 0;
  Glu glu = Glu::kSilu;
  InputSpec gate_up, down;
  bool operator==(const MlpSpec&) const = default;
};

struct BlockSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  std::optional<NormSpec> post_attention, post_mlp;  // of what the part gives, before it is added to the stream
  bool operator==(const BlockSpec&) const = default;
};

// Lists of a block's parts, in the order in which they run. The pointers are into the block.
std::vector<const InputSpec*> inputs_of(const BlockSpec& block);
std::vector<const LinearSpec*> linears_of(const BlockSpec& block);
std::vector<const NormSpec*> norms_of(const BlockSpec& block);
std::vector<const InputSpec*> inputs_of(BlockSpec&&) = delete;
std::vector<const LinearSpec*> linears_of(BlockSpec&&) = delete;
std::vector<const NormSpec*> norms_of(BlockSpec&&) = delete;

/// A decoder-only transformer.
struct ModelSpec {
  std::string family;  // config.json's model_type: "llama"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_positions = 0;  // what the model was trained for
  TensorName embedding = names::kEmbedding;
  NormSpec final_norm;
  LinearSpec head;         // tied: of the embedding's name
  bool tied_head = false;  // the embedding's weight makes the logits, too
  std::vector<BlockSpec> blocks;
  std::vector<int32_t> bos_ids, eos_ids;  // may be empty

  int64_t block_count() const { return static_cast<int64_t>(blocks.size()); }
  int64_t shortest_window() const;  // 0: none has one
  /// The longest context in which no window hides anything.
  int64_t longest_context() const;
  bool operator==(const ModelSpec&) const = default;
};

/// Reads a Hugging Face config.json, fills in the family's defaults and checks everything.
/// Errors, with the key's name: kCorrupt (not JSON), kInvalidArgument (a key that is missing, of a wrong type or out of
/// bounds),
///         kUnsupported (a model_type, hidden_act, rope type or feature that no spec has).
Result<ModelSpec> parse_model_spec(std::string_view config_json);

}  // namespace lowbit
