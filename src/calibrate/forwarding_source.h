#pragma once

#include <string>
#include <vector>

#include "model/source.h"

namespace lowbit {

/// A source that stands before another one and answers as it does; what derives from it says what is different. `base`
/// must outlive it.
class ForwardingSource : public WeightSource {
 public:
  explicit ForwardingSource(const WeightSource& base) : base_(base) {}
  const std::string& path() const override { return base_.path(); }
  const char* kind() const override { return base_.kind(); }
  const std::string& config_json() const override { return base_.config_json(); }
  const std::string& tokenizer_json() const override { return base_.tokenizer_json(); }
  Status tokenizer_status() const override { return base_.tokenizer_status(); }
  const std::string& tokenizer_config_json() const override { return base_.tokenizer_config_json(); }
  const std::string& generation_config_json() const override { return base_.generation_config_json(); }
  const std::vector<SourceTensor>& tensors() const override { return base_.tensors(); }
  bool has(const std::string& name) const override { return base_.has(name); }
  Result<QTensor> load(const std::string& name) const override { return base_.load(name); }
  bool lossless(const std::string& name) const override { return base_.lossless(name); }
  void release(const std::string& name) const override { base_.release(name); }

 protected:
  const WeightSource& base_;
};

}  // namespace lowbit
