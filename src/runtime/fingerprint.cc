#include "runtime/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "format/registry.h"

namespace lowbit {

void Fingerprint::add(std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(kept_), "{}: {} {}\n", name, value.size(), value);
}

void Fingerprint::add(const std::string& name, const QTensor& w) {
  add(name, format_info(w.format).name);
  for (const Buffer* part : {&w.codes, &w.scales, &w.super_scales, &w.zeros}) add_samples(*part);
  kept_.append(reinterpret_cast<const char*>(w.codebook.data()), w.codebook.size() * sizeof(float));
  constexpr size_t kPiece = size_t{1} << 16;
  if (kept_.size() >= kPiece) hash_kept();
}

void Fingerprint::hash_kept() const {
  hash_.update(std::as_bytes(std::span(kept_)));
  kept_.clear();
}

/// Hashing all of a model would take longer than loading it.
void Fingerprint::add_samples(const Buffer& part) {
  constexpr int64_t kSamples = 64, kSampleBytes = 64;
  const int64_t bytes = part.size(), count = std::min(bytes, kSampleBytes);
  add("bytes", std::to_string(bytes));
  for (int64_t i = 0; i < kSamples && count > 0; ++i)
    kept_.append(part.as<char>() + (bytes - count) / (kSamples - 1) * i, size_t(count));
}

const std::string& Fingerprint::text() const {
  std::call_once(hashed_, [this] {
    hash_kept();
    text_ = hash_.finish();
    std::string().swap(kept_);
  });
  return text_;
}

}  // namespace lowbit
