#pragma once
// The families that lowbit knows: one file each, and one line in families.cc.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "arch/config_reader.h"
#include "arch/spec.h"

namespace lowbit {

/// Defaults for keys that config.json leaves out: files omit values that equal the default of the model's class.
struct FamilyDefaults {
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
  std::string_view hidden_act = "silu";
};

struct Family {
  std::string_view model_type;  // in config.json
  std::string_view class_name;  // of "architectures" in config.json
  std::string_view gguf;        // general.architecture of GGUF files; "": none are read as this family
  std::span<const std::string_view> gguf_older = {};  // other architectures that are read as this family
  bool gguf_interleaved = false;  // in those, rows of q and k that are rotated together are neighbours
  FamilyDefaults defaults = {};
  /// The blocks of `spec` are a plain decoder's (decoder.h) and become this family's. Must succeed on an empty
  /// config.json.
  Status (*describe)(const ConfigReader& config, ModelSpec& spec) = nullptr;
};

extern const Family kLlama, kMistral, kQwen2, kQwen3, kBitnet;

std::span<const Family* const> families();
/// Null when there is none.
const Family* family_of_model_type(std::string_view model_type);
const Family* family_of_gguf(std::string_view architecture);
/// "llama, mistral or qwen2": for messages.
std::string family_list();
std::string gguf_family_list();

/// One block of the family, without sizes: for names.
Result<ModelSpec> outline_of(const Family& family);
/// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; nullopt for names that the outline does not have.
std::optional<std::string> name_of_gguf(const ModelSpec& outline, std::string_view gguf);
/// The linear layer of a block that owns this Hugging Face name, weight or bias. Null: none does.
const LinearSpec* linear_of(const BlockSpec& block, std::string_view name);

}  // namespace lowbit
