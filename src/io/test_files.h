#pragma once
// Helpers of this folder's tests: a scratch directory, files of given bytes, random tensors of every kind.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "format/qtensor.h"
#include "format/registry.h"

namespace lowbit::testing_io {

/// A directory of its own, gone when the test ends.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "lowbit-io-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  unlink(path.c_str());  // emptying a file instead makes some file systems flush it when it is closed
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::string raw(T v) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &v, sizeof(T));
  return out;
}

/// Header and data as safetensors wants them, whatever the header says.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  return raw<uint64_t>(header.size()) + header + std::string(data_bytes, '\x11');
}

inline Buffer random_buffer(Rng& rng, int64_t bytes) {
  Buffer b = *Buffer::allocate(bytes, "test");
  for (int64_t i = 0; i < bytes; ++i) b.data()[i] = static_cast<std::byte>(rng.below(256));
  return b;
}

/// Scales and zeros of moderate size in their own types, so that nothing is NaN.
inline void fill_numbers(Rng& rng, Buffer& b, int64_t element) {
  for (int64_t i = 0; i < b.size() / element; ++i) {
    const auto f = static_cast<float>(rng.normal() * 0.1);
    if (element == 4) std::memcpy(b.data() + 4 * i, &f, 4);
    if (element == 2) {
      const uint16_t h = f32_to_f16(f);
      std::memcpy(b.data() + 2 * i, &h, 2);
    }
    if (element == 1) b.as<int8_t>()[i] = static_cast<int8_t>(static_cast<int>(rng.below(20)) - 10);
  }
}

/// A random weight of any canonical format and scaling.
inline QTensor random_qtensor(Rng& rng, FormatId format, int64_t n, int64_t k, Scaling scaling) {
  QTensor w;
  w.format = format;
  w.n = n;
  w.k = k;
  const FormatInfo& info = format_info(format);
  w.codes = *Buffer::allocate(n * row_bytes(format, k), "test");
  if (info.kind == ValueKind::kDense) {
    fill_numbers(rng, w.codes, info.pack_bytes);
    return w;
  }
  const FormatOps& ops = format_ops(format);
  std::vector<uint8_t> codes(static_cast<size_t>(k));
  for (int64_t r = 0; r < n; ++r) {
    for (auto& c : codes) {
      c = static_cast<uint8_t>(rng.below(ops.codes));
      if (format == FormatId::kFp8 && (c & 0x7f) == 0x7f) c = 0;  // no NaN
    }
    make_storable(format, codes.data(), k);
    ops.pack(codes.data(), k, w.codes.as<uint8_t>() + r * row_bytes(format, k));
  }
  w.scaling = scaling;
  if (scaling.n_block == Scaling::kRowRanges) w.row_ends = {1, n / 2 + 1, n};
  const int64_t count = w.scale_rows() * w.scale_cols();
  w.scales = *Buffer::allocate(count * scale_bytes(scaling.scale), "test");
  fill_numbers(rng, w.scales, scale_bytes(scaling.scale));
  if (scaling.scale == ScaleKind::kDouble) {
    w.super_scales = *Buffer::allocate(2 * w.scale_rows() * ((w.scale_cols() + kSuperGroup - 1) / kSuperGroup), "test");
    fill_numbers(rng, w.super_scales, 2);
  }
  if (scaling.zero != ZeroKind::kNone) {
    w.zeros = *Buffer::allocate(count * zero_bytes(scaling), "test");
    fill_numbers(rng, w.zeros, zero_bytes(scaling));
  }
  if (info.kind == ValueKind::kTable)
    for (int i = 0; i < 1 << info.code_bits; ++i) w.codebook.push_back(static_cast<float>(rng.normal()));
  return w;
}

inline bool same_bytes(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size())) == 0);
}

}  // namespace lowbit::testing_io
