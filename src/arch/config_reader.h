#pragma once
// Keys of a config.json, each with its bounds. An error names the key.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

/// Bounds every size, so that products of two fit easily.
inline constexpr int64_t kMaxExtent = int64_t{1} << 24;

class ConfigReader {
 public:
  explicit ConfigReader(nlohmann::json object) : object_(std::move(object)) {}

  /// The member, or null when it is absent or JSON null (Hugging Face writes both for "default").
  const nlohmann::json* find(const char* key) const;
  /// The member, which must be an object; none when it is absent or null. Errors: kInvalidArgument.
  Result<std::optional<ConfigReader>> object(const char* key) const;

  // With a fallback the key may be absent. Errors: kInvalidArgument.
  Result<int64_t> integer(const char* key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
  Result<double> number(const char* key, double low, double high, std::optional<double> fallback = {}) const;
  Result<bool> flag(const char* key, bool fallback) const;
  Result<std::string> text(const char* key, std::optional<std::string> fallback = {}) const;
  /// Empty when it is absent.
  Result<std::vector<std::string>> texts(const char* key) const;
  /// An id below `vocab_size`, or a list of them; empty when it is absent.
  Result<std::vector<int32_t>> token_ids(const char* key, int64_t vocab_size) const;

  /// For messages: the key's place, and what stands there.
  static std::string where(const char* key);
  static std::string shown(const nlohmann::json& value);

 private:
  nlohmann::json object_;
};

}  // namespace lowbit
