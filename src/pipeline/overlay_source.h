#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/source.h"

namespace lowbit {

/// The source's tensors, some of them replaced.
class OverlaySource final : public WeightSource {
 public:
  OverlaySource(const WeightSource& base, const std::map<std::string, QTensor>& weights)
      : base_(base), weights_(weights) {}
  const std::string& path() const override { return base_.path(); }
  const char* kind() const override { return base_.kind(); }
  const std::string& config_json() const override { return base_.config_json(); }
  const std::string& tokenizer_json() const override { return base_.tokenizer_json(); }
  Status tokenizer_status() const override { return base_.tokenizer_status(); }
  const std::string& tokenizer_config_json() const override { return base_.tokenizer_config_json(); }
  const std::string& generation_config_json() const override { return base_.generation_config_json(); }
  const std::vector<SourceTensor>& tensors() const override { return base_.tensors(); }
  bool has(const std::string& name) const override { return base_.has(name); }
  bool lossless(const std::string& name) const override { return base_.lossless(name); }
  void release(const std::string& name) const override { base_.release(name); }
  Result<QTensor> load(const std::string& name) const override {
    const auto it = weights_.find(name);
    return it != weights_.end() ? Result<QTensor>(it->second) : base_.load(name);
  }

 private:
  const WeightSource& base_;
  const std::map<std::string, QTensor>& weights_;
};

}  // namespace lowbit
