#pragma once
// The small model, opened with one of several caches of keys and values.

#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "fuzz_limits.h"
#include "lowbit/model.h"
#include "small_model.h"

namespace lowbit::fuzz {

struct Cache {
  const char* kv;
  int64_t refresh;
  const char* demote;
};
inline constexpr Cache kCaches[] = {
    {"f16", 0, ""}, {"int8", 0, ""}, {"k4v2", 0, ""}, {"int2", 192, ""}, {"int8", 0, "128:k4v2"}};

/// One for each cache, for the whole run.
inline const Model& model_with(size_t cache) {
  static const SmallModel small;
  static std::array<std::optional<Model>, std::size(kCaches)> models;
  if (models[cache]) return *models[cache];
  ModelOptions options;
  options.kv = kCaches[cache].kv;
  options.kv_residual = 64;
  options.kv_refresh = kCaches[cache].refresh;
  options.kv_demote = kCaches[cache].demote;
  options.compute.threads = 1;
  auto made = Model::open(small.path(), options);
  require(made.has_value(), made ? "" : made.error().message().c_str());
  return models[cache].emplace(std::move(*made));
}

}  // namespace lowbit::fuzz
