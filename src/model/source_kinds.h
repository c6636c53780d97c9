#pragma once
// The three kinds of WeightSource, and what they share. Private to src/model/source*.cc.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/source.h"

namespace lowbit {

Result<std::unique_ptr<WeightSource>> open_gguf_source(const std::string& path, const std::string& i2s_layout);
Result<std::unique_ptr<WeightSource>> open_huggingface_source(const std::string& path);
Result<std::unique_ptr<WeightSource>> open_lowbit_source(const std::string& path);

/// How a Hugging Face model of "quant_method": "bitnet" stores its linear layers.
struct BitnetPacking {
  bool divides = true;  // real = value / weight_scale ("bitlinear"), else value * weight_scale ("autobitlinear")
  bool online = false;  // floats are stored, and the model is what ternarized() makes of them
  std::vector<std::string> kept;  // modules_to_not_convert
  /// A matrix of this name is of a layer that is ternary in the model.
  bool converts(const std::string& tensor) const;
};
/// Errors: kUnsupported (a linear class, a mode), kCorrupt. Norms of the layers: arch/parse.cc.
Result<BitnetPacking> bitnet_packing(const nlohmann::json& quantization, const std::string& where);

/// How a Hugging Face model of "quant_method": "fp8" or "compressed-tensors" stores its linear layers: E4M3 codes, and
/// a scale per matrix, row or block, which multiplies.
struct Fp8Packing {
  int64_t rows = 128, columns = 128;  // of a block, where scales are those of blocks
};
/// Errors: kUnsupported (E5M2, integers, groups), kCorrupt.
Result<Fp8Packing> fp8_packing(const nlohmann::json& quantization, const std::string& where);
/// Makes an fp8 weight of codes [n, k]; the scale's shape says what it is for. Errors: kCorrupt.
Status set_fp8_scales(const Fp8Packing& packing, const TensorView& scales, Buffer bytes, const std::string& where,
                      QTensor* w);

struct PackedRows {
  const uint8_t* bytes;  // [rows, k]; each byte holds a value of four rows
  int64_t rows, k;
};
/// The ternary matrix [4 * rows, k] with one scale. Errors: kCorrupt (a code 3, a scale that is not positive),
/// kOutOfMemory.
Result<QTensor> load_bitnet_weight(const PackedRows& packed, float scale, const BitnetPacking& packing,
                                   const std::string& where);
/// Ternary codes as transformers' WeightQuant makes them: s = max(mean |w|, 1e-5), codes = round half even(w / s), to
/// -1..1, real = code * s. The mean is summed in double. Errors: kCorrupt (NaN, infinity), kOutOfMemory.
Result<QTensor> ternarized(const QTensor& floats, const std::string& where);

/// Texts that lie beside the weights; "" for a file that is not there.
struct ModelTexts {
  std::string config, tokenizer, tokenizer_config, generation_config;
};
/// tokenizer.json and so on of a directory, config.json not included.
Result<ModelTexts> read_model_texts(const std::string& directory);

/// config.json of a GGUF file, from its metadata and tensor shapes. `rope_freqs.weight`, where present, becomes
/// rope_scaling "llama3": see source_gguf_config.cc. Errors: kCorrupt, kNotFound (a key), kUnsupported (architecture,
/// rope factors).
Result<std::string> gguf_config_json(const GgufFile& file);
std::string gguf_generation_config_json(const GgufFile& file);

/// tokenizer.json and tokenizer_config.json of a GGUF file; both "" when it has no vocabulary.
Status gguf_tokenizer_json(const GgufFile& file, ModelTexts* texts);

}  // namespace lowbit
