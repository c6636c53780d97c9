#include "calibrate/rotated_source.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <utility>

#include "base/try.h"
#include "calibrate/forwarding_source.h"
#include "io/json_text.h"
#include "model/model_spec.h"
#include "quantize/rotation.h"

namespace lowbit {
namespace {

struct Matrix {
  int64_t n = 0, k = 0;
  std::vector<float> values;
};

/// The changes of a tensor, in this order.
struct Turn {
  bool becomes_ones = false;  // a norm's weights, which move into the layers behind it
  bool stream_inputs = false;
  std::string norm = {};                // whose weights join the columns first; "": none
  int64_t heads_in = 0, heads_out = 0;  // > 0: columns or rows are values in heads of so many
  bool stream_outputs = false;
  int64_t n = 0, k = 0;  // > 0: its shape
};

class RotatedSource final : public ForwardingSource {
 public:
  RotatedSource(const WeightSource& base, const ModelSpec& spec, std::string config_json, uint64_t seed)
      : ForwardingSource(base),
        embedding_(weight_name(spec.embedding)),
        head_(weight_name(names::kHead)),
        config_json_(std::move(config_json)),
        stream_(spec.hidden_size, seed),
        tensors_(base.tensors()) {
    const std::string final_norm = weight_name(spec.final_norm.name);
    turns_[final_norm] = {.becomes_ones = true};
    turns_[embedding_] = {.stream_inputs = true};
    turns_[head_] = {.stream_inputs = true, .norm = final_norm};
    for (int64_t i = 0; i < spec.block_count(); ++i) add_block(i, spec.blocks[static_cast<size_t>(i)], seed + 1);
    if (base.has(head_)) return;
    for (const SourceTensor& t : base.tensors())
      if (t.name == embedding_) tensors_.push_back({head_, t.shape, t.stored_as, t.stored_bytes});
  }
  const std::string& config_json() const override { return config_json_; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override { return name == head_ || base_.has(name); }
  bool lossless(const std::string& name) const override { return !turns_.contains(name) && base_.lossless(name); }
  void release(const std::string& name) const override { base_.release(stored(name)); }

  Result<QTensor> load(const std::string& name) const override {
    const auto turn = turns_.find(name);
    if (turn == turns_.end()) return base_.load(name);
    LOWBIT_TRY_ASSIGN(Matrix w, read(stored(name)));
    QTensor out;
    out.n = w.n;
    out.k = w.k;
    if (name.ends_with(".bias")) std::swap(w.n, w.k);  // outputs are rows
    LOWBIT_TRY(apply(turn->second, name, w));
    LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * w.k * int64_t(sizeof(float)), "rotated weights"));
    std::memcpy(out.codes.data(), w.values.data(), w.values.size() * sizeof(float));
    return out;
  }

 private:
  void add_block(int64_t block, const BlockSpec& spec, uint64_t seed) {
    const int64_t head_dim = spec.attention.head_dim;
    heads_.try_emplace(head_dim, head_dim, seed);
    for (const InputSpec* input : inputs_of(spec)) {
      const bool of_stream = reads_stream(input->role);
      const std::string norm = of_stream && input->norm ? weight_name(block, input->norm->name) : "";
      if (!norm.empty()) turns_[norm] = {.becomes_ones = true};
      for (const LinearSpec& reader : input->readers) {
        Turn outputs;
        if (reader.role == LinearRole::kValue) outputs.heads_out = head_dim;
        outputs.stream_outputs = adds_to_stream(reader.role);
        outputs.n = reader.n;
        outputs.k = 1;
        if (outputs.heads_out > 0 || outputs.stream_outputs) turns_[bias_name(block, reader.name)] = outputs;
        Turn& turn = turns_[weight_name(block, reader.name)] = outputs;
        turn.k = reader.k;
        turn.stream_inputs = of_stream;
        turn.norm = norm;
        if (input->role == InputRole::kOutput) turn.heads_in = head_dim;
      }
    }
  }

  std::string stored(const std::string& name) const { return name == head_ && !base_.has(head_) ? embedding_ : name; }

  Result<Matrix> read(const std::string& name) const {
    LOWBIT_TRY_ASSIGN(const QTensor w, base_.load(name));
    Matrix m{w.n, w.k, std::vector<float>(static_cast<size_t>(w.n * w.k))};
    dequantize_rows(w, 0, w.n, m.values.data());
    return m;
  }

  /// The changes that the rotated model needs of this tensor.
  Status apply(const Turn& turn, const std::string& name, Matrix& w) const {
    if (turn.n > 0) LOWBIT_TRY(check(name, w.n, turn.n));
    if (turn.k > 0) LOWBIT_TRY(check(name, w.k, turn.k));
    if (turn.becomes_ones) w.values.assign(w.values.size(), 1.0f);
    if (turn.stream_inputs) LOWBIT_TRY(turn_inputs(name, turn.norm, w));
    if (turn.heads_in > 0) {
      for (int64_t at = 0; at < w.k; at += turn.heads_in)
        heads_.at(turn.heads_in).rotate_rows(w.values.data() + at, w.n, w.k);
    }
    if (turn.heads_out > 0) {
      for (int64_t at = 0; at < w.n; at += turn.heads_out)
        heads_.at(turn.heads_out).rotate_outputs(w.values.data() + at * w.k, w.k);
    }
    if (!turn.stream_outputs) return {};
    LOWBIT_TRY(check(name, w.n, stream_.size()));
    stream_.rotate_outputs(w.values.data(), w.k);
    return {};
  }

  static Status check(const std::string& name, int64_t got, int64_t wanted) {
    if (got == wanted) return {};
    return fail(ErrorCode::kShapeMismatch, name, std::to_string(got), std::to_string(wanted));
  }

  /// Columns are channels of the stream, behind the norm of that name.
  Status turn_inputs(const std::string& name, const std::string& norm, Matrix& w) const {
    LOWBIT_TRY(check(name, w.k, stream_.size()));
    if (!norm.empty()) {
      LOWBIT_TRY_ASSIGN(const Matrix g, read(norm));
      LOWBIT_TRY(check(norm, g.k, w.k));
      for (int64_t r = 0; r < w.n; ++r)
        for (int64_t c = 0; c < w.k; ++c)
          w.values[static_cast<size_t>(r * w.k + c)] *= g.values[static_cast<size_t>(c)];
    }
    stream_.rotate_rows(w.values.data(), w.n, w.k);
    return {};
  }

  std::string embedding_, head_, config_json_;
  Rotation stream_;
  std::map<int64_t, Rotation> heads_;  // by size
  std::map<std::string, Turn> turns_;
  std::vector<SourceTensor> tensors_;
};

/// Refuses a block that cannot be rotated.
Status check_rotatable(int64_t index, const BlockSpec& block) {
  const auto refuse = [&](const TensorName& name, std::string got, const char* wanted) {
    return fail(ErrorCode::kUnsupported, weight_name(index, name), std::move(got), wanted, "leave --rotate out");
  };
  for (const InputSpec* input : inputs_of(block)) {
    const bool of_stream = reads_stream(input->role);
    if (of_stream && input->norm && input->norm->offset != 0)
      return refuse(input->norm->name, fmt::format("{:g} is added to its weights", input->norm->offset),
                    "a norm whose weights alone can move into the layers behind it");
    if (input->role == InputRole::kOutput && input->norm)
      return refuse(input->norm->name, "a norm between attention and the layer behind it",
                    "nothing between them: its weights do not commute with a rotation of the values");
    for (const LinearSpec& reader : input->readers)
      if (reader.norm)
        return refuse(reader.norm->name, "a norm of one layer's own", "none between it and what it reads");
    if (input->hadamard > 0 && input->role != InputRole::kDown)
      return refuse(input->readers.front().name, "inputs that pass a Hadamard transform", "inputs as they are");
  }
  for (const auto* norm : {&block.post_attention, &block.post_mlp})
    if (*norm)
      return refuse((*norm)->name, "a norm of what is added to the residual stream",
                    "nothing between a layer and the stream: its weights do not commute with a rotation");
  return {};
}

}  // namespace

Status check_rotatable(const ModelSpec& spec) {
  for (int64_t i = 0; i < spec.block_count(); ++i) LOWBIT_TRY(check_rotatable(i, spec.blocks[static_cast<size_t>(i)]));
  if (spec.final_norm.offset == 0) return {};
  return fail(ErrorCode::kUnsupported, weight_name(spec.final_norm.name),
              fmt::format("{:g} is added to its weights", spec.final_norm.offset),
              "a norm whose weights alone can move into the head", "leave --rotate out");
}

Result<std::unique_ptr<WeightSource>> rotate_source(const WeightSource& source, uint64_t seed) {
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, model_spec_of(source));
  LOWBIT_TRY(check_rotatable(spec));
  LOWBIT_TRY_ASSIGN(auto json, parse_json_object(source.config_json(), "config.json",
                                                 {.text_bytes = source.config_json().size() + 1}));
  json["tie_word_embeddings"] = false;
  return std::unique_ptr<WeightSource>(std::make_unique<RotatedSource>(source, spec, json_dump(json, 2), seed));
}

}  // namespace lowbit
