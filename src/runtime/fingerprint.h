#pragma once
// A name for a loaded model, so that a saved session is not continued with another.

#include <mutex>
#include <string>
#include <string_view>

#include "format/qtensor.h"

namespace lowbit {

/// SHA-256 of a configuration and of samples of every tensor. Some megabytes of samples are kept until somebody asks
/// for the digest: few runs do, and hashing them would take a tenth of the time that a small model takes to load.
class Fingerprint {
 public:
  void add(std::string_view name, std::string_view value);
  void add(const std::string& name, const QTensor& w);
  /// 64 hexadecimal digits. May be called by many threads at once; nothing is added after it.
  const std::string& text() const;

 private:
  void add_samples(const Buffer& part);

  mutable std::string kept_, text_;
  mutable std::once_flag hashed_;
};

}  // namespace lowbit
