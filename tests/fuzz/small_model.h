#pragma once
// A model directory of a few kilobytes, as Hugging Face has them: one block, random weights, a vocabulary of 40, a chat
// template. Its heads are as small as quantized caches take them.

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz_file.h"

namespace lowbit::fuzz {

class SmallModel {
 public:
  static constexpr int32_t kVocab = 40;

  SmallModel() {
    write(
        "config.json",
        R"({"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
              "max_position_embeddings": 256, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2})");
    write(
        "tokenizer_config.json",
        R"({"chat_template": "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}", "bos_token": "<s>"})");
    write("tokenizer.json", tokenizer());
    write("model.safetensors", weights());
  }

  const std::string& path() const { return folder_.path(); }

 private:
  void write(const char* name, const std::string& bytes) const {
    std::ofstream(path() + "/" + name, std::ios::binary) << bytes;
  }

  static std::string tokenizer() {
    std::string vocab = R"("<unk>": 0, "<s>": 1, "</s>": 2)";
    int id = 3;
    for (const char* text : {" ", "ab", "bc", "abc", "ba", "."})
      vocab += ", \"" + std::string(text) + "\": " + std::to_string(id++);
    for (char c = 'a'; c <= 'z'; ++c) vocab += std::string(", \"") + c + "\": " + std::to_string(id++);
    return R"({"added_tokens": [{"id": 1, "content": "<s>", "special": true, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false}], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
               "decoder": null, "model": {"type": "BPE", "unk_token": "<unk>", "merges": ["a b", "b c", "ab c", "b a"],
               "vocab": {)" +
           vocab + "}}}";
  }

  static std::string weights() {
    struct Tensor {
      std::string name;
      int64_t n, k;  // n 0: one dimension
    };
    const std::string b = "model.layers.0.";
    const std::vector<Tensor> tensors = {
        {"model.embed_tokens.weight", kVocab, 16}, {"model.norm.weight", 0, 16},
        {b + "input_layernorm.weight", 0, 16},     {b + "post_attention_layernorm.weight", 0, 16},
        {b + "self_attn.q_proj.weight", 32, 16},   {b + "self_attn.k_proj.weight", 16, 16},
        {b + "self_attn.v_proj.weight", 16, 16},   {b + "self_attn.o_proj.weight", 16, 32},
        {b + "mlp.gate_proj.weight", 24, 16},      {b + "mlp.up_proj.weight", 24, 16},
        {b + "mlp.down_proj.weight", 16, 24}};
    std::string header = "{", data;
    uint32_t state = 1;
    for (const Tensor& t : tensors) {
      const size_t begin = data.size();
      for (int64_t i = 0; i < (t.n == 0 ? 1 : t.n) * t.k; ++i) {
        state = state * 1664525u + 1013904223u;
        const float v = t.n == 0 ? 1.0f : static_cast<float>(static_cast<int32_t>(state)) / 4294967296.0f;
        data.append(reinterpret_cast<const char*>(&v), sizeof v);
      }
      header += std::string(begin == 0 ? "" : ",") + "\"" + t.name + R"(":{"dtype":"F32","shape":[)" +
                (t.n == 0 ? "" : std::to_string(t.n) + ",") + std::to_string(t.k) + R"(],"data_offsets":[)" +
                std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
  }

  FuzzFolder folder_;
};

}  // namespace lowbit::fuzz
