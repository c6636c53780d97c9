#pragma once

#include <map>
#include <string>

#include "pipeline/forwarding_source.h"

namespace lowbit {

/// The source's tensors, some of them replaced.
class OverlaySource final : public ForwardingSource {
 public:
  OverlaySource(const WeightSource& base, const std::map<std::string, QTensor>& weights)
      : ForwardingSource(base), weights_(weights) {}
  Result<QTensor> load(const std::string& name) const override {
    const auto it = weights_.find(name);
    return it != weights_.end() ? Result<QTensor>(it->second) : base_.load(name);
  }

 private:
  const std::map<std::string, QTensor>& weights_;
};

}  // namespace lowbit
