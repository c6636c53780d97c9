#pragma once
// Names and layouts shared by the writer and the reader of checkpoints. Private to src/io.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "io/safetensors.h"

namespace lowbit {

/// The tensors of one quantized weight, as suffixes of its name.
struct WeightPart {
  const char* suffix;
  DType dtype;
  Shape shape;
};

/// Parts that a weight of this format and scaling has, `row_ends` entries included. Sizes are checked: nullopt on
/// overflow.
std::optional<std::vector<WeightPart>> weight_parts(FormatId format, const Scaling& scaling, int64_t n, int64_t k,
                                                    int64_t ranges);

DType dense_dtype(FormatId format);
std::optional<FormatId> dense_format(DType dtype);

/// One layer as the configuration sees it.
struct LayerFormat {
  std::string layer;  // without ".weight"
  FormatId format = FormatId::kF32;
  Scaling scaling;
};

/// config_groups, layers and ignore from what was written. `dense` are the matrices that stayed floats.
nlohmann::json describe_layers(const std::vector<LayerFormat>& quantized, const std::vector<std::string>& dense);

/// The inverse of describe_layers. Errors: kCorrupt, kUnsupported (unknown format, by name).
Result<std::vector<LayerFormat>> parse_layers(const nlohmann::json& quantization_config, const std::string& where);

std::string xxh3_hex(std::span<const std::byte> bytes);
/// The key of a tensor's checksum in a file's __metadata__.
std::string checksum_key(std::string_view tensor);

/// The key and text that repeat a weight's format beside its codes: "int2 g64 float16 none". verify compares them with
/// config.json.
std::string format_key(std::string_view weight);
std::string format_text(FormatId format, const Scaling& scaling);

/// In __metadata__ of every safetensors file and in quantization_config: the same 16 digits in all files of one
/// checkpoint, other ones in another, so that files of two are never read as one.
inline constexpr const char* kGenerationKey = "generation";

inline constexpr std::string_view kWeightSuffix = ".weight";

}  // namespace lowbit
