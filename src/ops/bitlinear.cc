#include "ops/bitlinear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rounding.h"
#include "base/try.h"
#include "format/formats.h"
#include "format/tile.h"

namespace lowbit {
namespace {

constexpr int64_t kMostColumns = int64_t{1} << 22;  // 2^22 * 128 * 2 < 2^31
constexpr int64_t kRowsPerTask = 16;

/// The four values of every byte of codes.
constexpr auto kValues = [] {
  std::array<std::array<int16_t, 4>, 256> values{};
  for (int byte = 0; byte < 256; ++byte)
    for (int i = 0; i < 4; ++i) values[size_t(byte)][size_t(i)] = int16_t((byte >> (2 * i) & 3) - 2);
  return values;
}();

Status check_tiles(int64_t n, int64_t k) {
  if (n % Tile16x32::kRows == 0 && k % Tile16x32::kCols == 0) return {};
  return fail(ErrorCode::kShapeMismatch, "int2 tiles", std::to_string(n) + " x " + std::to_string(k),
              "multiples of 16 rows and of 32 columns");
}

/// The word of tiles that element (r, c) lies in, and which of its 16 elements it is.
uint8_t* pack_of(uint8_t* tiles, int64_t r, int64_t c, int64_t k) { return tiles + 4 * Tile16x32::word_of(r, c, k); }

/// Values of row r.
void values_of(const Bitlinear& call, int64_t r, int16_t* values) {
  if (call.order == Int2Order::kTiles) {
    for (int64_t c = 0; c < call.k; c += 16) {
      const uint8_t* pack = call.weight + 4 * Tile16x32::word_of(r, c, call.k);
      for (int e = 0; e < 16; ++e) values[c + e] = int16_t(int(Int2Transposed::code_at(pack, e)) - 2);
    }
    return;
  }
  const uint8_t* row = call.weight + r * call.weight_stride;
  const int64_t whole = call.k / 4;
  for (int64_t b = 0; b < whole; ++b) std::memcpy(values + 4 * b, kValues[row[b]].data(), 8);
  for (int64_t c = 4 * whole; c < call.k; ++c) values[c] = kValues[row[whole]][size_t(c % 4)];
}

int32_t dot(const int16_t* a, const int16_t* b, int64_t k) {
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += int32_t(a[i]) * int32_t(b[i]);
  return sum;
}

Status check(const Bitlinear& call) {
  LOWBIT_TRY(check_int2_product(call.m, call.n, call.k, call.order));
  if (call.row_ends.empty() ? call.ws.size() != 1 : call.ws.size() != call.row_ends.size())
    return fail(ErrorCode::kShapeMismatch, "bitlinear scales", std::to_string(call.ws.size()),
                "one for each range of rows");
  int32_t last = 0;
  for (const int32_t end : call.row_ends) {
    if (end <= last || end > call.n)
      return fail(ErrorCode::kInvalidArgument, "bitlinear row_ends", std::to_string(end), "ascending ends, the last n");
    last = end;
  }
  if (!call.row_ends.empty() && last != call.n)
    return fail(ErrorCode::kInvalidArgument, "bitlinear row_ends", std::to_string(last) + " at the end",
                std::to_string(call.n) + " rows");
  return {};
}

}  // namespace

void quantize_activations_int8(const float* x, int64_t m, int64_t k, int64_t ldx, int8_t* codes, int64_t ldq, float* s,
                               float (*stored)(float)) {
  for (int64_t i = 0; i < m; ++i) {
    const float* row = x + i * ldx;
    float largest = 1e-5f;
    bool finite = true;
    for (int64_t c = 0; c < k; ++c) {
      finite &= std::isfinite(row[c]);
      largest = std::max(largest, std::abs(row[c]));
    }
    s[i] = finite ? 127 / largest : std::numeric_limits<float>::quiet_NaN();
    if (finite && stored != nullptr) s[i] = stored(s[i]);
    for (int64_t c = 0; c < k; ++c)
      codes[i * ldq + c] = finite ? int8_t(std::clamp(round_half_even(row[c] * s[i]), -128.0f, 127.0f)) : int8_t{0};
  }
}

Status int2_to_tiles(const uint8_t* rows, int64_t stride, int64_t n, int64_t k, uint8_t* tiles) {
  LOWBIT_TRY(check_tiles(n, k));
  std::fill_n(tiles, n * k / 4, uint8_t{0});
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < k; ++c)
      Int2Transposed::put(pack_of(tiles, r, c, k), int(c % 16), rows[r * stride + c / 4] >> (2 * (c % 4)) & 3);
  return {};
}

Status int2_from_tiles(const uint8_t* tiles, int64_t n, int64_t k, uint8_t* rows, int64_t stride) {
  LOWBIT_TRY(check_tiles(n, k));
  for (int64_t r = 0; r < n; ++r) {
    std::fill_n(rows + r * stride, k / 4, uint8_t{0});
    for (int64_t c = 0; c < k; ++c) {
      const unsigned code = Int2Transposed::code_at(tiles + 4 * Tile16x32::word_of(r, c, k), int(c % 16));
      uint8_t& byte = rows[r * stride + c / 4];
      byte = uint8_t(byte | code << (2 * (c % 4)));
    }
  }
  return {};
}

Status check_int2_product(int64_t m, int64_t n, int64_t k, Int2Order order) {
  if (m < 0 || n < 0 || k < 0 || k > kMostColumns)
    return fail(ErrorCode::kInvalidArgument, "bitlinear shape",
                std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k),
                "0 or more, at most 2^22 columns");
  return order == Int2Order::kTiles ? check_tiles(n, k) : Status();
}

Status bitlinear_int8xint2(const Bitlinear& call, ThreadPool& pool) {
  LOWBIT_TRY(check(call));
  if (call.m == 0) return {};
  std::vector<int16_t> x(size_t(call.m * call.k));
  for (int64_t i = 0; i < call.m; ++i) std::copy_n(call.x + i * call.ldx, call.k, x.begin() + i * call.k);
  pool.parallel_for(call.n, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    std::vector<int16_t> w(size_t(call.k));
    for (int64_t j = begin; j < end; ++j) {
      values_of(call, j, w.data());
      const auto range =
          std::upper_bound(call.row_ends.begin(), call.row_ends.end(), int32_t(j)) - call.row_ends.begin();
      const float ws = call.ws[size_t(range)];
      for (int64_t i = 0; i < call.m; ++i) {
        const auto sum = float(dot(x.data() + i * call.k, w.data(), call.k));
        call.y[i * call.ldy + j] = (call.multiplies ? sum * call.s[i] : sum / call.s[i]) * ws;
      }
    }
  });
  return {};
}

}  // namespace lowbit
