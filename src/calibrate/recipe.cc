#include "calibrate/recipe.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <sstream>

#include "arch/names.h"
#include "base/try.h"
#include "io/mapped_file.h"

namespace lowbit {
namespace {

constexpr int64_t kDefaultGroupSize = 64;
constexpr int64_t kMaxRecipeBytes = 1 << 20;

std::vector<std::string> split_words(const std::string& line) {
  std::istringstream in(line.substr(0, line.find('#')));
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Result<RecipeRule> make_rule(const std::string& pattern, QuantizeSpec spec, const std::string& where) {
  const std::string plain = pattern.rfind("re:", 0) == 0 ? pattern.substr(3) : pattern;  // as targets in config.json
  text::Budget budget = text::Budget::of_file(plain.size());
  auto regex = text::Regex::compile(plain, where, budget);
  if (!regex) regex.error().code = ErrorCode::kInvalidArgument;  // a person wrote it, just now
  if (!regex) return tl::unexpected<Error>(std::move(regex.error()));
  return RecipeRule{std::move(*regex), std::move(spec)};
}

}  // namespace

QuantizeOptions::QuantizeOptions() {
  embedding.format = FormatId::kInt8;
  head.format = FormatId::kInt8;
}

Result<GroupShape> parse_group(const std::string& text) {
  if (text == "row") return GroupShape{QuantizeSpec::kRow};
  if (text == "tensor") return GroupShape{QuantizeSpec::kTensor};
  const auto extent = [](std::string_view digits) -> int64_t {  // 0: none
    int64_t value = 0;
    const auto [end, err] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return err != std::errc() || end != digits.data() + digits.size() || value > (int64_t{1} << 30) ? 0 : value;
  };
  const std::string_view view = text;
  const size_t cross = view.find('x');
  GroupShape shape{extent(view.substr(cross == view.npos ? 0 : cross + 1))};
  if (cross != view.npos) shape.rows = extent(view.substr(0, cross));
  if (shape.group < 1 || shape.rows < 1)
    return fail(ErrorCode::kInvalidArgument, "group", "'" + text + "'", "32, 64, 128, 256, 128x128, row or tensor");
  return shape;
}

ScaleKind default_scale(const GroupShape& group) { return group.rows > 1 ? ScaleKind::kF32 : ScaleKind::kF16; }

LayerRole layer_role(const std::string& name, size_t dimensions) {
  if (dimensions != 2) return LayerRole::kOther;
  if (name == weight_name(names::kEmbedding)) return LayerRole::kEmbedding;
  if (name == weight_name(names::kHead)) return LayerRole::kHead;
  return name.starts_with(names::kBlocks.hf) ? LayerRole::kLinear : LayerRole::kOther;
}

Scaling scaling_of(const QuantizeSpec& spec) {
  Scaling s;
  s.scale = spec.scale;
  if (spec.zero) s.zero = ZeroKind::kOffset;
  const bool whole_row = spec.group == QuantizeSpec::kDefaultGroup && format_info(spec.format).code_bits == 8;
  if (spec.group == QuantizeSpec::kTensor) {
    s.n_block = Scaling::kAll;
  } else if (spec.group == QuantizeSpec::kDefaultGroup && !whole_row) {
    s.k_block = kDefaultGroupSize;
  } else if (spec.group > 0) {
    s.k_block = spec.group;
    s.n_block = spec.group_rows;
  }
  return s;
}

Result<QuantizeSpec> parse_quantize_spec(const std::vector<std::string>& words, const std::string& where) {
  QuantizeSpec spec;
  if (words.empty()) return fail(ErrorCode::kInvalidArgument, where, "no format", "a format or keep after the pattern");
  if (words[0] == "keep") {
    spec.keep = true;
    if (words.size() > 1) return fail(ErrorCode::kInvalidArgument, where, "'" + words[1] + "' after keep", "nothing");
    return spec;
  }
  auto format = parse_format(words[0]);
  if (!format) return fail(ErrorCode::kInvalidArgument, where, format.error().got, format.error().wanted + " or keep");
  spec.format = *format;
  bool has_scale = false;
  GroupShape group;
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string key = words[i].substr(0, equals),
                      value = equals == std::string::npos ? "" : words[i].substr(equals + 1);
    if (key == "group") {
      LOWBIT_TRY_ASSIGN(group, parse_group(value));
    } else if (key == "scale") {
      LOWBIT_TRY_ASSIGN(spec.scale, parse_scale_kind(value));
      has_scale = true;
    } else if (key == "fit" && !value.empty()) {
      spec.fit = value == "align" ? "asymmetric" : value;  // its old name
    } else if (words[i] == "zero") {
      spec.zero = true;
    } else {
      return fail(ErrorCode::kInvalidArgument, where, "'" + words[i] + "'", "group=, scale=, zero or fit=");
    }
  }
  spec.group = group.group;
  spec.group_rows = group.rows;
  if (!has_scale) spec.scale = default_scale(group);
  return spec;
}

Result<Recipe> Recipe::make(const QuantizeOptions& options) {
  Recipe recipe;
  recipe.linear_ = options.linear;
  recipe.embedding_ = options.embedding;
  recipe.head_ = options.head;
  if (!options.recipe_file.empty()) {
    LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(options.recipe_file, kMaxRecipeBytes));
    std::istringstream lines(text);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::string where = fmt::format("{}:{}", options.recipe_file, ++number);
      auto words = split_words(line);
      if (words.empty()) continue;
      const std::string pattern = words.front();
      words.erase(words.begin());
      LOWBIT_TRY_ASSIGN(QuantizeSpec spec, parse_quantize_spec(words, where));
      LOWBIT_TRY_ASSIGN(RecipeRule rule, make_rule(pattern, std::move(spec), where));
      recipe.rules_.push_back(std::move(rule));
    }
  }
  for (const std::string& pattern : options.keep) {
    QuantizeSpec keep;
    keep.keep = true;
    LOWBIT_TRY_ASSIGN(RecipeRule rule, make_rule(pattern, keep, "--keep"));
    recipe.rules_.push_back(std::move(rule));
  }
  return recipe;
}

Result<QuantizeSpec> Recipe::spec_for(const std::string& name, LayerRole role) const {
  QuantizeSpec spec;
  spec.keep = true;
  if (role == LayerRole::kOther) return spec;
  LOWBIT_TRY_ASSIGN(const RecipeRule* rule, first_match(name));
  if (rule != nullptr) return rule->spec;
  if (const auto it = specs_.find(name); it != specs_.end()) return it->second;
  return role == LayerRole::kLinear ? linear_ : role == LayerRole::kEmbedding ? embedding_ : head_;
}

Result<const RecipeRule*> Recipe::first_match(const std::string& name) const {
  text::RegexScratch scratch;
  text::Budget budget = text::Budget::of_text(name.size());
  for (const RecipeRule& rule : rules_) {
    std::vector<text::Range> matches;
    LOWBIT_TRY(rule.pattern.find_all(name, scratch, budget, matches));
    if (!matches.empty()) return &rule;
  }
  return nullptr;
}

bool Recipe::names(const std::string& name) const {
  const auto rule = first_match(name);
  return rule && *rule != nullptr;
}

}  // namespace lowbit
