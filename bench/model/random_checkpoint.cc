// Writes a checkpoint with random weights, in low bits from the start: no float file, and memory for one tensor. For
// speed at sizes that no model at hand has. The default has the dimensions of a ternary model of 2.4 billion weights.
//
//   lowbit_random_checkpoint OUT [--format ternary] [--group 0] [--group-rows 1] [--head int8] [--head-group 64]
//                                [--layers 30] [--hidden 2560] [--intermediate 6912] [--heads 20] [--kv-heads 5]
//                                [--vocab 128256] [--context 4096] [--architecture llama]
//
// --architecture bitnet: squared ReLU, and a norm before each projection back to the stream.
// --group 0: one scale per row. --group-rows: rows that share a scale, 128 for fp8 in blocks of 128 x 128. Codes are
// equally likely and do not depend on the number of threads.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/cpu.h"
#include "base/try.h"
#include "format/registry.h"
#include "io/checkpoint.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

struct Options {
  std::string out, format = "ternary", head = "int8", architecture = "llama";
  int64_t group = 0, group_rows = 1, head_group = 64, layers = 30, hidden = 2560, intermediate = 6912, heads = 20,
          kv_heads = 5, vocab = 128256, context = 4096;
  bool is_bitnet() const { return architecture == "bitnet"; }
};

std::string utf8(unsigned code) {
  if (code < 0x80) return {char(code)};
  return {char(0xc0 | (code >> 6)), char(0x80 | (code & 0x3f))};  // below 0x800
}

/// GPT-2's alphabet: a printable character for each byte. The tokens behind it have names that no text is split into:
/// there are no merges.
std::string byte_tokenizer(int64_t vocab) {
  std::string vocabulary;
  unsigned spare = 256;
  for (unsigned byte = 0; byte < 256 && byte < vocab; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const std::string text =
        byte == '"' || byte == '\\' ? fmt::format("\\{}", char(byte)) : utf8(printable ? byte : spare++);
    vocabulary += fmt::format("{}\"{}\": {}", byte == 0 ? "" : ", ", text, byte);
  }
  for (int64_t id = 256; id < vocab; ++id) vocabulary += fmt::format(", \"<{}>\": {}", id, id);
  const char* level = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  return fmt::format(
      R"({{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {0}, "post_processor": null,
          "decoder": {0}, "model": {{"type": "BPE", "vocab": {{{1}}}, "merges": []}}}})",
      level, vocabulary);
}

class Writer {
 public:
  Writer(const Options& options, CheckpointWriter& writer)
      : o_(options), writer_(writer), pool_(cpu_info().physical_cores) {}

  Status matrix(const std::string& name, const std::string& format, int64_t group, int64_t group_rows, int64_t n,
                int64_t k) {
    TimedMatmul spec;
    LOWBIT_TRY_ASSIGN(spec.format, parse_format(format));
    spec.group = group == 0 ? int64_t{Scaling::kAll} : group;
    spec.group_rows = group_rows;
    spec.n = n;
    spec.k = k;
    LOWBIT_TRY_ASSIGN(const QTensor w, random_weight(spec, pool_));
    weights_ += n * k;
    return writer_.add(name, w, {n, k});
  }

  Status ones(const std::string& name, int64_t k) {
    QTensor w;
    w.format = FormatId::kF32;
    w.n = 1;
    w.k = k;
    LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(4 * k, "norm"));
    for (int64_t i = 0; i < k; ++i) w.codes.as<float>()[i] = 1.0f;
    return writer_.add(name, w, {k});
  }

  Status layer(int64_t index) {
    const std::string at = fmt::format("model.layers.{}.", index);
    const int64_t kv = o_.hidden / o_.heads * o_.kv_heads;
    LOWBIT_TRY(ones(at + "input_layernorm.weight", o_.hidden));
    LOWBIT_TRY(ones(at + "post_attention_layernorm.weight", o_.hidden));
    if (o_.is_bitnet()) {
      LOWBIT_TRY(ones(at + "self_attn.attn_sub_norm.weight", o_.hidden));
      LOWBIT_TRY(ones(at + "mlp.ffn_sub_norm.weight", o_.intermediate));
    }
    for (const auto& [name, n, k] : {std::tuple{"self_attn.q_proj", o_.hidden, o_.hidden},
                                     {"self_attn.k_proj", kv, o_.hidden},
                                     {"self_attn.v_proj", kv, o_.hidden},
                                     {"self_attn.o_proj", o_.hidden, o_.hidden},
                                     {"mlp.gate_proj", o_.intermediate, o_.hidden},
                                     {"mlp.up_proj", o_.intermediate, o_.hidden},
                                     {"mlp.down_proj", o_.hidden, o_.intermediate}})
      LOWBIT_TRY(matrix(at + name + ".weight", o_.format, o_.group, o_.group_rows, n, k));
    return {};
  }

  Status all() {
    LOWBIT_TRY(matrix("model.embed_tokens.weight", o_.head, o_.head_group, 1, o_.vocab, o_.hidden));
    for (int64_t i = 0; i < o_.layers; ++i) LOWBIT_TRY(layer(i));
    return ones("model.norm.weight", o_.hidden);
  }
  int64_t weights() const { return weights_; }

 private:
  const Options& o_;
  CheckpointWriter& writer_;
  ThreadPool pool_;
  int64_t weights_ = 0;
};

Status write(const Options& o) {
  LOWBIT_TRY_ASSIGN(const auto writer, CheckpointWriter::create(o.out, {.overwrite = true}));
  Writer weights(o, *writer);
  LOWBIT_TRY(weights.all());
  LOWBIT_TRY(writer->add_file("tokenizer.json", byte_tokenizer(o.vocab)));
  CheckpointInfo info;
  info.config_json = fmt::format(
      R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {},
          "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, "max_position_embeddings": {},
          "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true, "hidden_act": "{}",
          "bos_token_id": 1, "eos_token_id": 2}})",
      o.architecture, o.vocab, o.hidden, o.intermediate, o.layers, o.heads, o.kv_heads, o.hidden / o.heads, o.context,
      o.is_bitnet() ? "relu2" : "silu");
  info.fit_json = R"({"method": "random"})";
  LOWBIT_TRY_ASSIGN(const int64_t bytes, writer->finish(info));
  std::printf("%s: %.2f billion weights, %.1f MB\n", o.out.c_str(), 1e-9 * double(weights.weights()),
              1e-6 * double(bytes));
  return {};
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) {
  lowbit::Options o;
  const std::map<std::string, int64_t*> numbers = {{"--group", &o.group},           {"--group-rows", &o.group_rows},
                                                   {"--head-group", &o.head_group}, {"--layers", &o.layers},
                                                   {"--hidden", &o.hidden},         {"--intermediate", &o.intermediate},
                                                   {"--heads", &o.heads},           {"--kv-heads", &o.kv_heads},
                                                   {"--vocab", &o.vocab},           {"--context", &o.context}};
  const std::map<std::string, std::string*> texts = {
      {"--format", &o.format}, {"--head", &o.head}, {"--architecture", &o.architecture}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0 && o.out.empty()) {
      o.out = name;
    } else if (i + 1 < argc && numbers.count(name) != 0) {
      *numbers.at(name) = std::atoll(argv[++i]);
    } else if (i + 1 < argc && texts.count(name) != 0) {
      *texts.at(name) = argv[++i];
    } else {
      std::fprintf(stderr, "error: no option %s, or no value for it\n", name.c_str());
      return 2;
    }
  }
  bool positive = !o.out.empty();
  for (const auto& [name, value] : numbers)
    positive = positive && *value >= (name == "--group" || name == "--head-group" ? 0 : 1);
  if (!positive || o.hidden % o.heads != 0 || (o.architecture != "llama" && !o.is_bitnet())) {
    std::fprintf(stderr, "error: wanted: a directory, positive extents, hidden a multiple of heads, llama or bitnet\n");
    return 2;
  }
  const auto status = lowbit::write(o);
  if (!status) std::fprintf(stderr, "error: %s\n", status.error().message().c_str());
  return status ? 0 : 1;
}
