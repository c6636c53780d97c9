#pragma once
// Makes GGUF files for tests: right ones, and wrong ones field by field.

#include <string>
#include <utility>
#include <vector>

#include "io/gguf.h"
#include "io/test_files.h"

namespace lowbit::testing_io {

inline std::string gguf_string(const std::string& s) { return raw<uint64_t>(s.size()) + s; }
inline std::string gguf_kv(const std::string& key, GgufValueType type, const std::string& value) {
  return gguf_string(key) + raw(static_cast<uint32_t>(type)) + value;
}
inline std::string gguf_u32(const std::string& key, uint32_t v) { return gguf_kv(key, GgufValueType::kU32, raw(v)); }
inline std::string gguf_text(const std::string& key, const std::string& v) {
  return gguf_kv(key, GgufValueType::kString, gguf_string(v));
}

struct GgufTestTensor {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint32_t type = 0;
  std::string data;
};

struct GgufTestFile {
  uint32_t version = 3;
  std::vector<std::string> kvs;
  std::vector<GgufTestTensor> tensors;
  uint64_t alignment = 32;
  std::vector<size_t> borders;  // where sections and fields start, filled by bytes()

  std::string bytes() {
    std::string out = "GGUF" + raw(version) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(kvs.size());
    borders = {4, 8, 16, out.size()};
    for (const auto& kv : kvs) borders.push_back((out += kv).size());
    uint64_t offset = 0;
    for (const auto& t : tensors) {
      out += gguf_string(t.name) + raw(static_cast<uint32_t>(t.dims.size()));
      borders.push_back(out.size());
      for (const uint64_t d : t.dims) out += raw(d);
      out += raw(t.type) + raw(offset);
      borders.push_back(out.size());
      offset += (t.data.size() + alignment - 1) / alignment * alignment;
    }
    for (const auto& t : tensors) {
      out.resize((out.size() + alignment - 1) / alignment * alignment);
      borders.push_back(out.size());
      borders.push_back((out += t.data).size());
    }
    return out;
  }
};

inline GgufTestFile small_gguf() {
  GgufTestFile f;
  f.kvs = {gguf_text("general.architecture", "llama"), gguf_u32("llama.block_count", 1),
           gguf_kv("flag", GgufValueType::kBool, "\x01"),
           gguf_kv("words", GgufValueType::kArray,
                   raw<uint32_t>(8) + raw<uint64_t>(2) + gguf_string("a") + gguf_string("bc")),
           gguf_kv("numbers", GgufValueType::kArray,
                   raw<uint32_t>(5) + raw<uint64_t>(3) + raw<int32_t>(1) + raw<int32_t>(-2) + raw<int32_t>(3))};
  Rng rng(7);
  const auto random = [&](size_t n) {
    std::string s(n, '\0');
    for (char& c : s) c = static_cast<char>(rng.below(256));
    return s;
  };
  f.tensors = {
      {"a.weight", {64, 3}, 2, random(3 * 36)}, {"b", {5}, 0, random(20)}, {"c.weight", {256, 2}, 14, random(420)}};
  return f;
}

}  // namespace lowbit::testing_io
