#pragma once
// Test only: a small random model in memory, and what it should compute, written down once more in
// double precision.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/qtensor.h"
#include "model/source.h"

namespace lowbit {

struct RandomModelSpec {
  std::string model_type = "llama";
  int64_t vocab = 97, hidden = 64, intermediate = 96, layers = 2, heads = 4, kv_heads = 2, head_dim = 16;
  int64_t max_positions = 256;
  bool tied = false;
  bool attention_bias = false, mlp_bias = false;
  std::string rope_scaling = "null";  // JSON
  int64_t window = 0;  // > 0: mistral's sliding window; of qwen2's and qwen3's blocks from first_windowed on
  int64_t first_windowed = 0;
  int64_t down_hadamard = 0;         // > 0: of the checkpoint, docs/checkpoint.md; naive_forward() does not know it
  bool linear_norms = false;         // norms of their own before the blocks' linear layers; naive_forward() has them
  FormatId format = FormatId::kF32;  // of linear layers and embedding
  int64_t group = 32, group_rows = 1;
  uint64_t seed = 1;
};

/// Everything in memory, open to damage by tests.
class MemorySource : public WeightSource {
 public:
  const std::string& path() const override { return path_; }
  const char* kind() const override { return "memory"; }
  const std::string& config_json() const override { return config; }
  const std::string& tokenizer_json() const override { return empty_; }
  const std::string& tokenizer_config_json() const override { return empty_; }
  const std::string& generation_config_json() const override { return empty_; }
  const std::vector<SourceTensor>& tensors() const override { return listed; }
  bool has(const std::string& name) const override { return weights.count(name) != 0; }
  Result<QTensor> load(const std::string& name) const override;
  bool lossless(const std::string&) const override { return true; }
  void release(const std::string&) const override {}

  void add(const std::string& name, QTensor w);
  /// A dense f32 tensor.
  void add(const std::string& name, int64_t n, int64_t k, const std::vector<float>& values);

  std::string config;
  std::vector<SourceTensor> listed;
  std::unordered_map<std::string, QTensor> weights;

 private:
  std::string path_ = "memory", empty_;
};

MemorySource make_random_model(const RandomModelSpec& spec);

/// Logits [tokens, vocab] of the model's tensors, in double, by the plainest loops; keys and values
/// rounded to f16 as the cache does.
std::vector<double> naive_forward(const MemorySource& source, const RandomModelSpec& spec,
                                  const std::vector<int32_t>& tokens);

}  // namespace lowbit
