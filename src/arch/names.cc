#include "arch/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace lowbit {

std::string weight_name(const TensorName& name) { return fmt::format("{}.weight", name.hf); }

std::string weight_name(int64_t block, const TensorName& name) {
  return fmt::format("{}{}.{}.weight", names::kBlocks.hf, block, name.hf);
}

std::string bias_name(int64_t block, const TensorName& name) {
  return fmt::format("{}{}.{}.bias", names::kBlocks.hf, block, name.hf);
}

std::string gguf_weight_name(const TensorName& name) { return fmt::format("{}.weight", name.gguf); }

std::string gguf_weight_name(int64_t block, const TensorName& name) {
  return fmt::format("{}{}.{}.weight", names::kBlocks.gguf, block, name.gguf);
}

std::string gguf_bias_name(int64_t block, const TensorName& name) {
  return fmt::format("{}{}.{}.bias", names::kBlocks.gguf, block, name.gguf);
}

bool names_module(std::span<const std::string> keys, std::string_view module) {
  return std::ranges::any_of(keys, [&](const std::string& key) {
    return module == key || module.starts_with(key + ".") || module.ends_with("." + key);
  });
}

int64_t block_of(std::string_view tensor) {
  const std::string_view prefix = names::kBlocks.hf;
  int64_t block = -1;
  if (!tensor.starts_with(prefix)) return -1;
  std::from_chars(tensor.data() + prefix.size(), tensor.data() + tensor.size(), block);
  return block;
}

}  // namespace lowbit
