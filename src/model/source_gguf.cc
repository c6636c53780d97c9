// A GGUF file as a WeightSource: names and row order become Hugging Face's. What the file calls its tensors says the
// family's spec.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "arch/family.h"
#include "base/float.h"
#include "base/try.h"
#include "io/gguf_i2s.h"
#include "lowbit/tokenizer.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

/// llama.cpp stores each head's rows so that the pairs of the rotation are neighbours: row 2 i + j of a head is Hugging
/// Face's row j * head_dim / 2 + i. This undoes it for rows of `row_bytes` bytes, whatever they hold.
Result<Buffer> unpermute_rows(const Buffer& raw, int64_t rows, int64_t head_dim, const std::string& where) {
  LOWBIT_TRY_ASSIGN(Buffer out, Buffer::allocate(raw.size(), where.c_str()));
  const int64_t row_bytes = raw.size() / rows, half = head_dim / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = r / head_dim, i = r % head_dim / 2, j = r % 2;
    const int64_t to = head * head_dim + j * half + i;
    std::memcpy(out.data() + to * row_bytes, raw.data() + r * row_bytes, static_cast<size_t>(row_bytes));
  }
  return out;
}

/// TQ1_0 and TQ2_0 have a scale per 256 columns. Where it is one number all over, as networks are trained that are
/// ternary, it becomes one scale. Blocks of zeros may have any.
Result<QTensor> with_one_scale(QTensor w, const std::string& where) {
  constexpr int64_t kGroup = 256;
  if (w.format != FormatId::kTernary || w.scaling.k_block != kGroup || w.scaling.scale != ScaleKind::kF16) return w;
  const int64_t groups = w.scales.size() / 2;
  const auto* scales = w.scales.as<uint16_t>();
  std::optional<uint16_t> one;
  for (int64_t g = 0; g < groups; ++g) {
    const auto* codes = w.codes.as<uint8_t>() + g * kGroup / 4;
    if (std::all_of(codes, codes + kGroup / 4, [](uint8_t byte) { return byte == 0x55; }))
      continue;  // four times value 0
    if (one && *one != scales[g]) return w;
    one = scales[g];
  }
  if (!one) return w;
  w.scaling = {Scaling::kAll, Scaling::kAll, ScaleKind::kF32, ZeroKind::kNone};
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(sizeof(float), where.c_str()));
  *w.scales.as<float>() = f16_to_f32(*one);
  return w;
}

constexpr const char* kI2sLayoutKey = "lowbit.i2_s.layout";

class GgufSource final : public WeightSource {
 public:
  GgufSource(GgufFile file, std::string i2s_layout)
      : file_(std::move(file)), path_(file_.path()), i2s_layout_(std::move(i2s_layout)) {}

  Status init() {
    LOWBIT_TRY_ASSIGN(texts_.config, gguf_config_json(file_));
    texts_.generation_config = gguf_generation_config_json(file_);
    tokenizer_status_ = gguf_tokenizer_json(file_, &texts_);
    if (!tokenizer_status_ && tokenizer_status_.error().code != ErrorCode::kUnsupported) return tokenizer_status_;
    const std::string architecture(file_.value("general.architecture")->as_string().value_or(""));
    const auto number = [&](const std::string& key) {
      const GgufValue* v = file_.value(architecture + key);
      return v == nullptr ? int64_t{0} : v->as_int().value_or(0);
    };
    const Family& family = *family_of_gguf(architecture);  // gguf_config_json() refuses others
    LOWBIT_TRY_ASSIGN(const ModelSpec outline, outline_of(family));
    const int64_t heads = number(".attention.head_count");
    const int64_t kv_heads =
        file_.value(architecture + ".attention.head_count_kv") != nullptr ? number(".attention.head_count_kv") : heads;
    const bool tied = texts_.config.find("\"tie_word_embeddings\": true") != std::string::npos;
    for (const auto& t : file_.tensors()) {
      if (t.name == "rope_freqs.weight") continue;  // became rope_scaling in config.json
      if (tied && t.name == gguf_weight_name(names::kHead)) continue;
      const auto name = name_of_gguf(outline, t.name);
      if (!name)
        return fail(ErrorCode::kUnsupported, path_ + ": tensor '" + t.name + "'",
                    "no place in a " + architecture + " model", "a dense decoder",
                    "mixtures of experts and other variants are not read yet");
      const LinearSpec* linear = linear_of(outline.blocks.front(), *name);
      int64_t permuted = 0;
      if (linear != nullptr && family.gguf_interleaved) {
        if (linear->role == LinearRole::kQuery) permuted = heads;
        if (linear->role == LinearRole::kKey) permuted = kv_heads;
      }
      by_name_[*name] = {&t, permuted};
      tensors_.push_back({*name, t.shape, gguf_type_info(t.type_id)->name, static_cast<int64_t>(t.size_bytes)});
    }
    return {};
  }

  const std::string& path() const override { return path_; }
  const char* kind() const override { return "gguf"; }
  const std::string& config_json() const override { return texts_.config; }
  const std::string& tokenizer_json() const override { return texts_.tokenizer; }
  Status tokenizer_status() const override { return tokenizer_status_; }
  const std::string& tokenizer_config_json() const override { return texts_.tokenizer_config; }
  const std::string& generation_config_json() const override { return texts_.generation_config; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override { return by_name_.contains(name); }
  bool lossless(const std::string& name) const override {
    const auto it = by_name_.find(name);
    return it != by_name_.end() &&
           (is_i2s(*it->second.tensor) || gguf_type_info(it->second.tensor->type_id)->decodable);
  }
  Result<QTensor> load(const std::string& name) const override;
  void release(const std::string& name) const override {
    if (const auto it = by_name_.find(name); it != by_name_.end()) file_.release(*it->second.tensor);
  }

 private:
  struct Stored {
    const GgufTensor* tensor;
    int64_t permuted_heads;  // 0: none
  };

  static bool is_i2s(const GgufTensor& t) { return t.type_id == static_cast<uint32_t>(GgufType::kI2S); }
  Result<QTensor> load_i2s(const GgufTensor& t, const std::string& where) const;

  GgufFile file_;
  std::string path_, i2s_layout_;
  ModelTexts texts_;
  Status tokenizer_status_;
  std::map<std::string, Stored> by_name_;
  std::vector<SourceTensor> tensors_;
};

Result<QTensor> GgufSource::load(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end())
    return fail(ErrorCode::kNotFound, path_, "no tensor '" + name + "'", "a tensor of this model");
  const GgufTensor& t = *it->second.tensor;
  const int64_t heads = it->second.permuted_heads, rows = t.shape.front();
  const std::string where = path_ + ": tensor '" + t.name + "'";
  if (heads == 0) {
    LOWBIT_TRY_ASSIGN(QTensor w, is_i2s(t) ? load_i2s(t, where) : file_.load(t));
    return with_one_scale(std::move(w), where);
  }
  const GgufTypeInfo* info = gguf_type_info(t.type_id);
  if (rows % heads != 0 || rows / heads % 2 != 0 || (t.shape.size() == 1 && info->block_elems != 1) ||
      t.shape.size() > 2)
    return fail(ErrorCode::kCorrupt, where, std::string(info->name) + " " + shape_string(t.shape),
                "rows for " + std::to_string(heads) + " heads of even size");
  if (is_i2s(t)) {  // its rows do not lie one after the other
    LOWBIT_TRY_ASSIGN(QTensor w, load_i2s(t, where));
    LOWBIT_TRY_ASSIGN(w.codes, unpermute_rows(w.codes, rows, rows / heads, where));
    return w;
  }
  LOWBIT_TRY_ASSIGN(const Buffer raw, file_.bytes(t));
  LOWBIT_TRY_ASSIGN(const Buffer sorted, unpermute_rows(raw, rows, rows / heads, where));
  auto w = gguf_to_qtensor(static_cast<GgufType>(t.type_id), t.n(), t.k(), sorted);
  if (!w) {
    w.error().where = where + ", " + w.error().where;
    return w;
  }
  return with_one_scale(std::move(*w), where);
}

Result<QTensor> GgufSource::load_i2s(const GgufTensor& t, const std::string& where) const {
  std::string name = i2s_layout_, from = "--i2s-layout";
  if (const GgufValue* v = file_.value(kI2sLayoutKey); name.empty() && v != nullptr) {
    name = std::string(v->as_string().value_or(""));
    from = path_ + ": " + kI2sLayoutKey;
  }
  if (name.empty())
    return fail(ErrorCode::kUnsupported, where, "I2_S, in an order that the file does not tell",
                std::string("the key ") + kI2sLayoutKey + ": x86, arm or rows4",
                "`lowbit import FILE OUT --i2s-layout x86` for files made on x86; see docs/bitnet.md");
  LOWBIT_TRY_ASSIGN(const I2sLayout layout, parse_i2s_layout(name, from));
  LOWBIT_TRY_ASSIGN(const Buffer raw, file_.bytes(t));
  auto w = i2s_to_qtensor(t.n(), t.k(), raw, layout);
  if (!w) w.error().where = where + ", " + w.error().where;
  return w;
}

}  // namespace

Status gguf_tokenizer_json(const GgufFile& file, ModelTexts* texts) {
  const auto find = [&](const char* key) { return file.value(std::string("tokenizer.") + key); };
  const auto text = [&](const char* key) {
    const GgufValue* v = find(key);
    return std::string(v == nullptr ? "" : v->as_string().value_or(""));
  };
  const auto id = [&](const char* key) { return find(key) == nullptr ? std::nullopt : find(key)->as_int(); };
  const auto flag = [&](const char* key) { return find(key) == nullptr ? std::nullopt : find(key)->as_bool(); };
  if (find("ggml.tokens") == nullptr) return {};
  GgufTokenizerFields fields;
  fields.model = text("ggml.model");
  if (const GgufValue* v = file.value("general.architecture"))
    fields.architecture = std::string(v->as_string().value_or(""));
  fields.pre = text("ggml.pre");
  auto tokens = find("ggml.tokens")->as_strings();
  if (!tokens)
    return fail(ErrorCode::kCorrupt, file.path() + ": tokenizer.ggml.tokens", "another type", "an array of strings");
  fields.tokens = std::move(*tokens);
  if (const auto* v = find("ggml.scores")) fields.scores = v->as_floats().value_or(std::vector<float>{});
  if (const auto* v = find("ggml.merges")) fields.merges = v->as_strings().value_or(std::vector<std::string>{});
  if (const auto* v = find("ggml.token_type"))
    for (const int64_t type : v->as_ints().value_or(std::vector<int64_t>{}))
      fields.token_type.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, INT32_MIN, INT32_MAX)));
  fields.bos_token_id = id("ggml.bos_token_id");
  fields.eos_token_id = id("ggml.eos_token_id");
  fields.unknown_token_id = id("ggml.unknown_token_id");
  fields.padding_token_id = id("ggml.padding_token_id");
  fields.add_bos_token = flag("ggml.add_bos_token");
  fields.add_eos_token = flag("ggml.add_eos_token");
  fields.add_space_prefix = flag("ggml.add_space_prefix");
  fields.chat_template = text("chat_template");
  LOWBIT_TRY_ASSIGN(const TokenizerSpec spec, spec_from_gguf_fields(fields));
  LOWBIT_TRY_ASSIGN(texts->tokenizer, to_tokenizer_json(spec));
  LOWBIT_TRY_ASSIGN(texts->tokenizer_config, to_tokenizer_config_json(spec));
  return {};
}

Result<std::unique_ptr<WeightSource>> open_gguf_source(const std::string& path, const std::string& i2s_layout) {
  LOWBIT_TRY_ASSIGN(auto file, GgufFile::open(path));
  auto source = std::make_unique<GgufSource>(std::move(file), i2s_layout);
  LOWBIT_TRY(source->init());
  return std::unique_ptr<WeightSource>(std::move(source));
}

}  // namespace lowbit
