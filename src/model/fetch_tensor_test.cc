#include "model/fetch_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "format/registry.h"
#include "model/random_model.h"

namespace lowbit {
namespace {

constexpr int64_t kN = 4, kK = 64, kScales = kN * 2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint16_t kHalfOne = 0x3c00, kHalfInfinity = 0x7c00, kBf16One = 0x3f80, kBf16Infinity = 0x7f80;

template <class T>
Buffer filled(int64_t count, T value) {
  Buffer b = *Buffer::allocate(count * int64_t(sizeof(T)), "test");
  std::fill_n(b.as<T>(), count, value);
  return b;
}

/// [kN, kK] of code 0, two groups a row; scales and zeros are added by who asks.
QTensor weight(FormatId format, ScaleKind scale = ScaleKind::kF16, ZeroKind zero = ZeroKind::kNone) {
  QTensor w;
  w.format = format;
  w.n = kN;
  w.k = kK;
  w.scaling = {1, 32, scale, zero};
  w.codes = filled<uint8_t>(kN * row_bytes(format, kK), 0);
  w.scales = filled<uint16_t>(kScales, kHalfOne);
  return w;
}

/// "" when it is fetched, else the error's text.
std::string fetched(const QTensor& w, int64_t n = kN, int64_t k = kK) {
  MemorySource source;
  source.add("w", w);
  ThreadPool pool(2);
  const auto got = fetch_tensor(source, "w", n, k, pool);
  return got ? "" : got.error().message();
}

/// The last element of a part becomes `value`.
template <class T>
void expect_found(const QTensor& w, Buffer QTensor::*part, T value, const std::string& name) {
  EXPECT_EQ(fetched(w), "") << name;
  QTensor bad = w;
  bad.*part = filled<uint8_t>((w.*part).size(), 0);
  std::memcpy((bad.*part).data(), (w.*part).data(), size_t((w.*part).size()));
  (bad.*part).template as<T>()[(w.*part).size() / int64_t(sizeof(T)) - 1] = value;
  EXPECT_NE(fetched(bad).find("in its " + name + ","), std::string::npos) << name << ": " << fetched(bad);
}

TEST(FetchTensor, WhatIsNotFiniteIsFoundInEveryPart) {
  QTensor dense;
  dense.n = kN;
  dense.k = kK;
  for (const auto& [format, one, infinity] :
       {std::tuple{FormatId::kF16, kHalfOne, kHalfInfinity}, std::tuple{FormatId::kBf16, kBf16One, kBf16Infinity}}) {
    dense.format = format;
    dense.codes = filled<uint16_t>(kN * kK, one);
    expect_found(dense, &QTensor::codes, infinity, "weights");
  }
  dense.format = FormatId::kF32;
  dense.codes = filled<float>(kN * kK, 1);
  expect_found(dense, &QTensor::codes, -kInfinity, "weights");
  expect_found(weight(FormatId::kFp8), &QTensor::codes, uint8_t{0xff}, "weights");
  EXPECT_EQ(fetched(weight(FormatId::kInt8)), "");  // whose codes may be anything

  expect_found(weight(FormatId::kInt4), &QTensor::scales, kHalfInfinity, "scales");
  QTensor w = weight(FormatId::kInt4, ScaleKind::kBf16);
  w.scales = filled<uint16_t>(kScales, kBf16One);
  expect_found(w, &QTensor::scales, kBf16Infinity, "scales");
  w = weight(FormatId::kInt4, ScaleKind::kF32, ZeroKind::kOffset);
  w.scales = w.zeros =
      filled(kScales, std::bit_cast<float>(0x3f807c00u));  // whose lower half would be an infinity in f16
  expect_found(w, &QTensor::scales, kInfinity, "scales");
  expect_found(w, &QTensor::zeros, kInfinity, "zeros");
  for (const ZeroKind zero : {ZeroKind::kOffset, ZeroKind::kPointF16}) {
    w = weight(FormatId::kInt4, ScaleKind::kF16, zero);
    w.zeros = filled<uint16_t>(kScales, kHalfOne);
    expect_found(w, &QTensor::zeros, kHalfInfinity, "zeros");
  }
  w = weight(FormatId::kInt4, ScaleKind::kDouble);
  w.scales = filled<int8_t>(kScales, 1);
  w.super_scales = filled<uint16_t>(kN, kHalfOne);
  expect_found(w, &QTensor::super_scales, kHalfInfinity, "super-scales");

  w = weight(FormatId::kCodebook2);
  w.codebook = {-1, 0, 1, 2};
  EXPECT_EQ(fetched(w), "");
  w.codebook[3] = kInfinity;
  EXPECT_NE(fetched(w).find("in its codebook,"), std::string::npos);
}

TEST(FetchTensor, AnotherShapeIsAnError) {
  const QTensor w = weight(FormatId::kInt4);
  for (const auto& [n, k] :
       {std::pair{kN - 1, kK}, std::pair{kN + 1, kK}, std::pair{kN, kK - 1}, std::pair{kN, kK + 1}})
    EXPECT_NE(fetched(w, n, k).find("config.json and weights disagree"), std::string::npos) << n << " x " << k;
}

}  // namespace
}  // namespace lowbit
