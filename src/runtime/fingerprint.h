#pragma once
// A name for a loaded model, so that a saved session is not continued with another.

#include <mutex>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "format/qtensor.h"

namespace lowbit {

/// SHA-256 of a configuration and of samples of every tensor, some megabytes for a small model. They are hashed in
/// pieces as they come, which takes 1.3 ms where the CPU has instructions for it and 9 ms elsewhere.
class Fingerprint {
 public:
  void add(std::string_view name, std::string_view value);
  void add(const std::string& name, const QTensor& w);
  /// 64 hexadecimal digits. May be called by many threads at once; nothing is added after it.
  const std::string& text() const;

 private:
  void add_samples(const Buffer& part);
  void hash_kept() const;

  mutable Sha256 hash_;
  mutable std::string kept_, text_;  // kept: what is not hashed yet
  mutable std::once_flag hashed_;
};

}  // namespace lowbit
