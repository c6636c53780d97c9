#pragma once
// For tests only: where data lies, and a reader of GGUF's tokenizer metadata (the library's own is in io/, a level up).

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "lowbit/tokenizer.h"

namespace lowbit::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::filesystem::path golden(const char* name) {
  return std::filesystem::path(LOWBIT_SOURCE_DIR) / "tests/golden/text" / name;
}

/// Data that is not in the repository: LOWBIT_DATA, or ../shared/data beside the source. Empty when absent.
inline std::filesystem::path data(const char* name) {
  const char* root = std::getenv("LOWBIT_DATA");
  const std::filesystem::path path =
      std::filesystem::path(root != nullptr ? root : LOWBIT_SOURCE_DIR "/../shared/data") / name;
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

#define LOWBIT_NEED_DATA(variable, name)                           \
  const std::filesystem::path variable = lowbit::test::data(name); \
  if (variable.empty()) GTEST_SKIP() << "needs " << name << " in LOWBIT_DATA or ../shared/data"

/// Reads the metadata of a trusted GGUF v3 file.
class GgufFields {
 public:
  explicit GgufFields(const std::string& file) : file_(file) {
    at_ = 8;
    number<std::uint64_t>();  // tensors
    const auto n = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::string key = text();
      value(key, number<std::uint32_t>());
    }
  }

  GgufTokenizerFields tokenizer() const {
    GgufTokenizerFields f;
    f.model = text_of("tokenizer.ggml.model");
    f.pre = text_of("tokenizer.ggml.pre");
    f.chat_template = text_of("tokenizer.chat_template");
    f.tokens = texts_of("tokenizer.ggml.tokens");
    f.merges = texts_of("tokenizer.ggml.merges");
    for (const double d : numbers_of("tokenizer.ggml.scores")) f.scores.push_back(static_cast<float>(d));
    for (const double d : numbers_of("tokenizer.ggml.token_type")) f.token_type.push_back(static_cast<int>(d));
    f.bos_token_id = id("bos_token_id");
    f.eos_token_id = id("eos_token_id");
    f.unknown_token_id = id("unknown_token_id");
    f.padding_token_id = id("padding_token_id");
    f.add_bos_token = flag("add_bos_token");
    f.add_eos_token = flag("add_eos_token");
    f.add_space_prefix = flag("add_space_prefix");
    return f;
  }

 private:
  template <class T>
  T number() {
    T out;
    std::memcpy(&out, file_.data() + at_, sizeof out);
    at_ += sizeof out;
    return out;
  }
  std::string text() {
    const auto n = number<std::uint64_t>();
    at_ += n;
    return file_.substr(at_ - n, n);
  }
  double scalar(std::uint32_t type) {
    switch (type) {
      case 0:
        return number<std::uint8_t>();
      case 1:
        return number<std::int8_t>();
      case 2:
        return number<std::uint16_t>();
      case 3:
        return number<std::int16_t>();
      case 4:
        return number<std::uint32_t>();
      case 5:
        return number<std::int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<std::uint8_t>();
      case 10:
        return static_cast<double>(number<std::uint64_t>());
      case 11:
        return static_cast<double>(number<std::int64_t>());
      default:
        return number<double>();
    }
  }
  void value(const std::string& key, std::uint32_t type) {
    std::uint64_t n = 1;
    if (type == 9) {
      type = number<std::uint32_t>();
      n = number<std::uint64_t>();
    }
    for (std::uint64_t i = 0; i < n; ++i) {
      if (type == 8) {
        texts_[key].push_back(text());
      } else {
        numbers_[key].push_back(scalar(type));
      }
    }
  }
  std::vector<std::string> texts_of(const std::string& key) const {
    const auto it = texts_.find(key);
    return it == texts_.end() ? std::vector<std::string>() : it->second;
  }
  std::string text_of(const std::string& key) const {
    const auto all = texts_of(key);
    return all.empty() ? std::string() : all[0];
  }
  std::vector<double> numbers_of(const std::string& key) const {
    const auto it = numbers_.find(key);
    return it == numbers_.end() ? std::vector<double>() : it->second;
  }
  std::optional<std::int64_t> id(const std::string& key) const {
    const auto all = numbers_of("tokenizer.ggml." + key);
    return all.empty() ? std::nullopt : std::optional<std::int64_t>(static_cast<std::int64_t>(all[0]));
  }
  std::optional<bool> flag(const std::string& key) const {
    const auto value = id(key);
    return value ? std::optional<bool>(*value != 0) : std::nullopt;
  }

  const std::string& file_;
  std::size_t at_ = 0;
  std::map<std::string, std::vector<std::string>> texts_;
  std::map<std::string, std::vector<double>> numbers_;
};

/// A test that needs a value says why it has none.
template <class T>
T must(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << result.error().message();
    std::abort();
  }
  return std::move(*result);
}

}  // namespace lowbit::test
