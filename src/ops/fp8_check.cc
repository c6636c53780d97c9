// Checks of FP8 in blocks, for every device.

#include <algorithm>
#include <initializer_list>
#include <string>

#include "base/checked.h"
#include "base/try.h"
#include "ops/fp8.h"

namespace lowbit {
namespace {

constexpr int64_t kLargestExtent = int64_t{1} << 31;

tl::unexpected<Error> bad(const std::string& where, std::string got, std::string wanted, std::string hint = {}) {
  return fail(ErrorCode::kInvalidArgument, "fp8 " + where, std::move(got), std::move(wanted), std::move(hint));
}

struct Named {
  const char* name;
  int64_t value;
};

Status check_extents(std::initializer_list<Named> extents) {
  for (const auto& [name, value] : extents)
    if (value < 0 || value > kLargestExtent) return bad(name, std::to_string(value), "0 to 2^31");
  return {};
}

/// Rows of `columns` elements of `bytes` each, `stride` elements apart.
Status check_matrix(const char* name, const void* data, int64_t rows, int64_t columns, int64_t stride, int64_t bytes) {
  if (rows == 0 || columns == 0) return {};
  if (data == nullptr) return bad(name, "NULL", "memory");
  if (rows > 1 && stride < columns)
    return bad(std::string(name) + " stride", std::to_string(stride), std::to_string(columns) + " or more");
  const int64_t most = INT64_MAX / bytes / rows;
  if (stride > most || columns > most)
    return bad(std::string(name) + " stride", std::to_string(stride), "rows that fit into memory");
  return {};
}

Status check_blocks(int64_t row_block, int64_t column_block) {
  if (row_block < 1 || row_block > kLargestExtent)
    return bad("rows of a block", std::to_string(row_block), "1 to 2^31", "1 for activations, 128 for weights");
  if (column_block < 1 || column_block > kLargestExtent)
    return bad("columns of a block", std::to_string(column_block), "1 to 2^31", "128");
  return {};
}

}  // namespace

Status check_fp8(const Fp8Quant& q) {
  LOWBIT_TRY(check_extents({{"rows", q.rows}, {"columns", q.columns}}));
  LOWBIT_TRY(check_blocks(q.row_block, q.column_block));
  LOWBIT_TRY(check_matrix("x", q.x, q.rows, q.columns, q.ldx, fp8_element_bytes(q.element)));
  LOWBIT_TRY(check_matrix("codes", q.codes, q.rows, q.columns, q.ldcodes, 1));
  const int64_t rows = ceil_div(q.rows, q.row_block), columns = ceil_div(q.columns, q.column_block);
  if (q.scales_by_column) {
    LOWBIT_TRY(check_matrix("scales", q.scales, columns, rows, q.ldscales, 4));
  } else {
    LOWBIT_TRY(check_matrix("scales", q.scales, rows, columns, q.ldscales, 4));
  }
  if (q.up != nullptr) LOWBIT_TRY(check_matrix("up", q.up, q.rows, q.columns, q.ldup, fp8_element_bytes(q.element)));
  if ((q.norm_weight != nullptr || q.up != nullptr) && q.row_block != 1)
    return bad("rows of a block", std::to_string(q.row_block), "1 with a norm or a product of gate and up");
  if (q.norm_weight != nullptr && q.up != nullptr) return bad("steps", "a norm and gate times up", "one of the two");
  return {};
}

Status check_fp8(const Fp8Dequant& d) {
  LOWBIT_TRY(check_extents({{"rows", d.rows}, {"columns", d.columns}}));
  LOWBIT_TRY(check_blocks(d.row_block, d.column_block));
  LOWBIT_TRY(check_matrix("codes", d.codes, d.rows, d.columns, d.ldcodes, 1));
  LOWBIT_TRY(check_matrix("scales", d.scales, ceil_div(d.rows, d.row_block), ceil_div(d.columns, d.column_block),
                          d.ldscales, 4));
  return check_matrix("y", d.y, d.rows, d.columns, d.ldy, fp8_element_bytes(d.element));
}

Status check_fp8(const Fp8Gemm& g) {
  LOWBIT_TRY(check_extents({{"m", g.m}, {"n", g.n}, {"k", g.k}}));
  if (g.m == 0 || g.n == 0) return {};
  LOWBIT_TRY(check_blocks(g.b_rows, kFp8Block));
  const int64_t blocks = ceil_div(g.k, kFp8Block);
  LOWBIT_TRY(check_matrix("a", g.a, g.m, g.k, g.lda, 1));
  LOWBIT_TRY(check_matrix("b", g.b, g.n, g.k, g.ldb, 1));
  if (g.a_scales_by_column) {
    LOWBIT_TRY(check_matrix("a's scales", g.a_scales, blocks, g.m, g.lda_scales, 4));
  } else {
    LOWBIT_TRY(check_matrix("a's scales", g.a_scales, g.m, blocks, g.lda_scales, 4));
  }
  LOWBIT_TRY(check_matrix("b's scales", g.b_scales, ceil_div(g.n, g.b_rows), blocks, g.ldb_scales, 4));
  return check_matrix("c", g.c, g.m, g.n, g.ldc, fp8_element_bytes(g.element));
}

Status check_fp8(const Fp8Gemm& g, const Fp8Groups& groups) {
  constexpr int64_t kMostGroups = 1 << 16;
  LOWBIT_TRY(check_fp8(g));
  if (groups.count < 1 || groups.count > kMostGroups) return bad("groups", std::to_string(groups.count), "1 to 65536");
  if ((groups.ends == nullptr) == (groups.rows == nullptr))
    return bad("groups", groups.ends == nullptr ? "neither ends nor rows" : "ends and rows", "one of the two");
  if (groups.rows != nullptr && (groups.rows_of_group < 0 || groups.rows_of_group > g.m / groups.count))
    return bad("rows_of_group", std::to_string(groups.rows_of_group), "at most " + std::to_string(g.m / groups.count),
               "a has room for so many rows of each group");
  if (g.m == 0 || g.n == 0) return {};
  LOWBIT_TRY(check_matrix("b of all groups", g.b, groups.count * g.n, g.k, g.ldb, 1));
  return check_matrix("b's scales of all groups", g.b_scales, groups.count * ceil_div(g.n, g.b_rows),
                      ceil_div(g.k, kFp8Block), g.ldb_scales, 4);
}

}  // namespace lowbit
