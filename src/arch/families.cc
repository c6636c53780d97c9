#include <algorithm>
#include <array>
#include <vector>

#include "arch/decoder.h"
#include "arch/family.h"
#include "base/try.h"

namespace lowbit {
namespace {

/// The first of a GGUF architecture reads its files.
constexpr std::array kFamilies = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kBitnet};

/// "a, b or c"
std::string listed(const std::vector<std::string_view>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? ", " : " or ";
    text += words[i];
  }
  return text;
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family* family_of_model_type(std::string_view model_type) {
  for (const Family* family : kFamilies)
    if (family->model_type == model_type) return family;
  return nullptr;
}

const Family* family_of_gguf(std::string_view architecture) {
  for (const Family* family : kFamilies)
    if (!architecture.empty() &&
        (family->gguf == architecture || std::ranges::count(family->gguf_older, architecture) > 0))
      return family;
  return nullptr;
}

std::string family_list() {
  std::vector<std::string_view> words;
  for (const Family* family : kFamilies) words.push_back(family->model_type);
  return listed(words);
}

std::string gguf_family_list() {
  std::vector<std::string_view> words;
  for (const Family* family : kFamilies)
    if (!family->gguf.empty()) {
      words.push_back(family->gguf);
      words.insert(words.end(), family->gguf_older.begin(), family->gguf_older.end());
    }
  return listed(words);
}

Result<ModelSpec> outline_of(const Family& family) {
  ModelSpec spec = plain_decoder({});
  LOWBIT_TRY(family.describe(ConfigReader(nlohmann::json::object()), spec));
  return spec;
}

std::optional<std::string> name_of_gguf(const ModelSpec& outline, std::string_view gguf) {
  const size_t dot = gguf.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view stem = gguf.substr(0, dot), suffix = gguf.substr(dot), blocks = names::kBlocks.gguf;
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  if (!stem.starts_with(blocks)) {
    for (const TensorName& name : {outline.embedding, outline.final_norm.name, outline.head.name})
      if (stem == name.gguf) return std::string(name.hf) + std::string(suffix);
    return std::nullopt;
  }
  const size_t end = stem.find('.', blocks.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view number = stem.substr(blocks.size(), end - blocks.size()), part = stem.substr(end + 1);
  if (number.empty() || number.size() > 6 || number.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  const auto full = [&](const TensorName& name) {
    return std::string(names::kBlocks.hf) + std::string(number) + "." + std::string(name.hf) + std::string(suffix);
  };
  for (const LinearSpec* linear : linears_of(outline.blocks.front()))
    if (part == linear->name.gguf) return full(linear->name);
  for (const NormSpec* norm : norms_of(outline.blocks.front()))
    if (part == norm->name.gguf) return full(norm->name);
  return std::nullopt;
}

const LinearSpec* linear_of(const BlockSpec& block, std::string_view name) {
  const size_t dot = name.rfind('.');
  const int64_t index = block_of(name);
  if (dot == std::string_view::npos || index < 0) return nullptr;
  const std::string_view rest = name.substr(names::kBlocks.hf.size(), dot - names::kBlocks.hf.size());
  const std::string_view stem = rest.substr(std::min(rest.size(), rest.find('.') + 1));
  for (const LinearSpec* linear : linears_of(block))
    if (stem == linear->name.hf) return linear;
  return nullptr;
}

}  // namespace lowbit
