// FP8 checkpoints of Hugging Face: "P.weight" F8_E4M3 [n, k] with its scales. DeepSeek's are "P.weight_scale_inv"
// [ceil(n / 128), ceil(k / 128)], which multiply, whatever their name says; those of compressed-tensors and AutoFP8
// "P.weight_scale", one number, [n, 1] or blocks. docs/fp8.md.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/json_text.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestBlock = uint64_t{1} << 24;

std::string shown(const json& value) { return json_dump(value).substr(0, 64); }

/// [rows, columns] of `key`; unchanged where it is absent or null.
Status read_block(const json& object, const char* key, const std::string& where, Fp8Packing& packing) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return {};
  const auto extent = [](const json& v) {
    return v.is_number_unsigned() && v.get<uint64_t>() <= kLargestBlock ? v.get<int64_t>() : 0;
  };
  if (it->is_array() && it->size() == 2 && extent((*it)[0]) > 0 && extent((*it)[1]) > 0) {
    packing = {extent((*it)[0]), extent((*it)[1])};
    return {};
  }
  return fail(ErrorCode::kCorrupt, where + ": " + key, shown(*it), "two positive numbers");
}

tl::unexpected<Error> not_e4m3(const std::string& where, const std::string& got) {
  return fail(ErrorCode::kUnsupported, where, got, "fp8 as E4M3, with scales alone",
              "start from the model's unquantized weights");
}

/// The weights of one group of config_groups.
Status read_group(const json& group, const std::string& where, Fp8Packing& packing) {
  const json* const weights = json_object(group, "weights");
  if (weights == nullptr) return fail(ErrorCode::kCorrupt, where + ".weights", "nothing", "how weights are stored");
  const std::string type = json_string(*weights, "type").value_or("");
  const int64_t bits = json_int(*weights, "num_bits").value_or(0);
  if (type != "float" || bits != 8) return not_e4m3(where, fmt::format("{} of {} bits", type.substr(0, 32), bits));
  if (!json_bool(*weights, "symmetric").value_or(true)) return not_e4m3(where, "weights with zero points");
  const std::string strategy = json_string(*weights, "strategy").value_or("tensor");
  if (strategy != "tensor" && strategy != "channel" && strategy != "block")
    return fail(ErrorCode::kUnsupported, where + ".strategy", "'" + strategy.substr(0, 64) + "'",
                "tensor, channel or block");
  return read_block(*weights, "block_structure", where, packing);
}

}  // namespace

Result<Fp8Packing> fp8_packing(const json& quantization, const std::string& where) {
  Fp8Packing packing;
  const std::string fmt = json_string(quantization, "fmt").value_or("e4m3");
  if (fmt != "e4m3") return not_e4m3(where + ": fmt", "'" + fmt.substr(0, 64) + "'");
  const json* const groups = json_object(quantization, "config_groups");
  if (groups == nullptr) {
    LOWBIT_TRY(read_block(quantization, "weight_block_size", where, packing));
    return packing;
  }
  for (const auto& [name, group] : groups->items())
    LOWBIT_TRY(read_group(group, where + ": " + name.substr(0, 64), packing));
  return packing;
}

Status set_fp8_scales(const Fp8Packing& packing, const TensorView& scales, Buffer bytes, const std::string& where,
                      QTensor* w) {
  const auto kind = scales.dtype == DType::kF32    ? ScaleKind::kF32
                    : scales.dtype == DType::kBf16 ? ScaleKind::kBf16
                                                   : ScaleKind::kF16;
  const Shape blocks = {ceil_div(w->n, packing.rows), ceil_div(w->k, packing.columns)};
  const bool is_float = scales.dtype == DType::kF32 || scales.dtype == DType::kBf16 || scales.dtype == DType::kF16;
  w->format = FormatId::kFp8;
  w->scaling = {packing.rows, packing.columns, kind, ZeroKind::kNone};
  if (is_float && scales.shape != blocks) {
    const bool one = element_count(scales.shape).value_or(0) == 1;
    if (!one && scales.shape != Shape{w->n} && scales.shape != Shape{w->n, 1})
      return fail(ErrorCode::kCorrupt, where, shape_string(scales.shape),
                  fmt::format("[1], [{}, 1] or {} for blocks", w->n, shape_string(blocks)));
    w->scaling.n_block = one ? Scaling::kAll : 1;
    w->scaling.k_block = Scaling::kAll;
  }
  if (!is_float) return fail(ErrorCode::kCorrupt, where, dtype_name(scales.dtype), "F32, BF16 or F16");
  w->scales = std::move(bytes);
  return {};
}

}  // namespace lowbit
