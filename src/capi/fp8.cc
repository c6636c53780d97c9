// FP8 in blocks: lb_fp8_* structs to what src/ops/fp8.h takes.

#include <cstdint>
#include <cstring>
#include <string>

#include "base/checked.h"
#include "base/threads.h"
#include "base/try.h"
#include "capi/elements.h"
#include "capi/errors.h"
#include "capi/versioned.h"
#include "kernels/cuda_fp8_api.h"
#include "ops/fp8.h"

namespace lowbit::capi {
namespace {

tl::unexpected<Error> bad(const std::string& what, const std::string& got, std::string wanted) {
  return fail(ErrorCode::kInvalidArgument, "fp8 " + what, got, std::move(wanted));
}

Status read_type(const char* name, const lb_type& type, Fp8Element& element) {
  switch (number_of(type)) {
    case LB_F32:
      element = Fp8Element::kF32;
      return {};
    case LB_F16:
      element = Fp8Element::kF16;
      return {};
    case LB_BF16:
      element = Fp8Element::kBf16;
      return {};
  }
  return bad(name, std::to_string(number_of(type)), "LB_F32, LB_F16 or LB_BF16");
}

Status read_order(const char* name, const lb_scale_order& order, bool& by_column) {
  const int number = number_of(order);
  if (number != LB_SCALES_BY_ROW && number != LB_SCALES_BY_COLUMN)
    return bad(name, std::to_string(number), "LB_SCALES_BY_ROW or LB_SCALES_BY_COLUMN");
  by_column = number == LB_SCALES_BY_COLUMN;
  return {};
}

int64_t or_else(int64_t given, int64_t otherwise) { return given == 0 ? otherwise : given; }

/// Blocks in `extent`, without overflow for extents that a check refuses later.
int64_t blocks_in(int64_t extent, int64_t block) { return extent / block + (extent % block != 0 ? 1 : 0); }

int64_t scale_stride(int64_t given, int64_t rows, int64_t columns, bool by_column) {
  if (given != 0 || !by_column) return or_else(given, columns);
  return blocks_in(rows, kFp8ScaleRowMultiple) * kFp8ScaleRowMultiple;
}

Result<Fp8Quant> read_quant(const lb_fp8_quant_args* args, int64_t rows_of_block) {
  lb_fp8_quant_args a{};
  if (args == nullptr) return bad("args", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_fp8_quant_args", args, {}, a));
  if (a.power_of_two != 0 && a.power_of_two != 1) return bad("power_of_two", std::to_string(a.power_of_two), "0 or 1");
  if (rows_of_block != 1 && (a.norm_weight != nullptr || a.up != nullptr))
    return bad("steps", "a norm or a factor", "none for weights");
  Fp8Quant q;
  LOWBIT_TRY(read_type("input_type", a.input_type, q.element));
  LOWBIT_TRY(read_order("scale_order", a.scale_order, q.scales_by_column));
  q.x = a.input;
  q.rows = a.rows;
  q.columns = a.columns;
  q.ldx = or_else(a.input_stride, a.columns);
  q.row_block = or_else(a.block_rows, rows_of_block);
  q.column_block = or_else(a.block_columns, kFp8Block);
  if (q.row_block < 1 || q.column_block < 1)
    return bad("block", std::to_string(q.row_block) + " x " + std::to_string(q.column_block), "1 x 1 or more");
  q.power_of_two = a.power_of_two != 0;
  q.ldscales = scale_stride(a.scale_stride, blocks_in(q.rows, q.row_block), blocks_in(q.columns, q.column_block),
                            q.scales_by_column);
  q.codes = a.codes;
  q.ldcodes = or_else(a.codes_stride, a.columns);
  q.scales = a.scales;
  q.norm_weight = a.norm_weight;
  q.norm_eps = a.norm_eps;
  q.up = a.up;
  q.ldup = or_else(a.up_stride, a.columns);
  return q;
}

Result<Fp8Dequant> read_dequant(const lb_fp8_dequant_args* args) {
  lb_fp8_dequant_args a{};
  if (args == nullptr) return bad("args", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_fp8_dequant_args", args, {}, a));
  Fp8Dequant d;
  LOWBIT_TRY(read_type("output_type", a.output_type, d.element));
  d.codes = a.codes;
  d.rows = a.rows;
  d.columns = a.columns;
  d.ldcodes = or_else(a.codes_stride, a.columns);
  d.row_block = or_else(a.block_rows, kFp8Block);
  d.column_block = or_else(a.block_columns, kFp8Block);
  if (d.column_block < 1) return bad("block_columns", std::to_string(d.column_block), "1 or more");
  d.scales = a.scales;
  d.ldscales = or_else(a.scale_stride, blocks_in(d.columns, d.column_block));
  d.y = a.output;
  d.ldy = or_else(a.output_stride, a.columns);
  return d;
}

/// Checks that single and grouped products share.
template <class Args>
Result<Fp8Gemm> gemm_of(const Args& a) {
  Fp8Gemm g;
  LOWBIT_TRY(read_type("output_type", a.output_type, g.element));
  LOWBIT_TRY(read_order("a_scale_order", a.a_scale_order, g.a_scales_by_column));
  g.m = a.m;
  g.n = a.n;
  g.k = a.k;
  g.a = a.a;
  g.lda = or_else(a.a_stride, a.k);
  g.a_scales = a.a_scales;
  g.lda_scales = scale_stride(a.a_scale_stride, a.m, blocks_in(a.k, kFp8Block), g.a_scales_by_column);
  g.b = a.b;
  g.ldb = or_else(a.b_stride, a.k);
  g.b_scales = a.b_scales;
  g.ldb_scales = or_else(a.b_scale_stride, blocks_in(a.k, kFp8Block));
  g.b_rows = or_else(a.b_block_rows, kFp8Block);
  g.c = a.output;
  g.ldc = or_else(a.output_stride, a.n);
  return g;
}

Result<Fp8Gemm> read_gemm(const lb_fp8_gemm_args* args) {
  lb_fp8_gemm_args a{};
  if (args == nullptr) return bad("args", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_fp8_gemm_args", args, {}, a));
  return gemm_of(a);
}

Result<Fp8Gemm> read_gemm(const lb_fp8_grouped_gemm_args* args, Fp8Groups& groups) {
  lb_fp8_grouped_gemm_args a{};
  if (args == nullptr) return bad("args", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_fp8_grouped_gemm_args", args, {}, a));
  groups = {a.groups, a.group_ends, a.group_rows, a.rows_of_group};
  return gemm_of(a);
}

/// Threads for so many steps of an inner loop: to start them takes as long as a million.
Result<int> threads_for(double steps) {
  constexpr double kWorthThreads = 1e7;
  if (steps < kWorthThreads) return 1;
  return choose_threads(0);
}

Status quantize_on_device(const lb_fp8_quant_args* args, int64_t rows_of_block, void* stream) {
  LOWBIT_TRY_ASSIGN(const Fp8Quant q, read_quant(args, rows_of_block));
  LOWBIT_TRY(check_fp8(q));
  return cuda::quantize_fp8(q, stream);
}

Status dequantize_on_device(const lb_fp8_dequant_args* args, void* stream) {
  LOWBIT_TRY_ASSIGN(const Fp8Dequant d, read_dequant(args));
  LOWBIT_TRY(check_fp8(d));
  return cuda::dequantize_fp8(d, stream);
}

Status gemm_on_device(const lb_fp8_gemm_args* args, void* stream) {
  LOWBIT_TRY_ASSIGN(const Fp8Gemm g, read_gemm(args));
  LOWBIT_TRY(check_fp8(g));
  return cuda::gemm_fp8(g, stream);
}

Status grouped_on_device(const lb_fp8_grouped_gemm_args* args, void* stream) {
  Fp8Groups groups;
  LOWBIT_TRY_ASSIGN(const Fp8Gemm g, read_gemm(args, groups));
  LOWBIT_TRY(check_fp8(g, groups));
  return cuda::grouped_gemm_fp8(g, groups, stream);
}

Status quantize_on_host(const lb_fp8_quant_args* args, int64_t rows_of_block) {
  LOWBIT_TRY_ASSIGN(const Fp8Quant q, read_quant(args, rows_of_block));
  LOWBIT_TRY(check_fp8(q));
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(""));
  LOWBIT_TRY_ASSIGN(const int threads, threads_for(double(q.rows) * double(q.columns)));
  ThreadPool pool(threads);
  return quantize_fp8(q, isa, pool);
}

Status dequantize_on_host(const lb_fp8_dequant_args* args) {
  LOWBIT_TRY_ASSIGN(const Fp8Dequant d, read_dequant(args));
  LOWBIT_TRY(check_fp8(d));
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(""));
  LOWBIT_TRY_ASSIGN(const int threads, threads_for(double(d.rows) * double(d.columns)));
  ThreadPool pool(threads);
  return dequantize_fp8(d, isa, pool);
}

Status gemm_on_host(const lb_fp8_gemm_args* args) {
  LOWBIT_TRY_ASSIGN(const Fp8Gemm g, read_gemm(args));
  LOWBIT_TRY(check_fp8(g));
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(""));
  LOWBIT_TRY_ASSIGN(const int threads, threads_for(double(g.m) * double(g.n) * double(g.k)));
  ThreadPool pool(threads);
  return gemm_fp8(g, isa, pool);
}

Status grouped_on_host(const lb_fp8_grouped_gemm_args* args) {
  Fp8Groups groups;
  LOWBIT_TRY_ASSIGN(const Fp8Gemm g, read_gemm(args, groups));
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(""));
  LOWBIT_TRY_ASSIGN(const int threads, threads_for(double(g.m) * double(g.n) * double(g.k)));
  ThreadPool pool(threads);
  return grouped_gemm_fp8(g, groups, isa, pool);
}

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;

extern "C" {

lb_status lb_act_quant_fp8(const lb_fp8_quant_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::quantize_on_device(args, 1, stream); });
}
lb_status lb_weight_quant_fp8(const lb_fp8_quant_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::quantize_on_device(args, lowbit::kFp8Block, stream); });
}
lb_status lb_weight_dequant_fp8(const lb_fp8_dequant_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::dequantize_on_device(args, stream); });
}
lb_status lb_fp8_gemm(const lb_fp8_gemm_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::gemm_on_device(args, stream); });
}

lb_status lb_act_quant_fp8_host(const lb_fp8_quant_args* args) {
  return guarded([&] { return lowbit::capi::quantize_on_host(args, 1); });
}
lb_status lb_weight_quant_fp8_host(const lb_fp8_quant_args* args) {
  return guarded([&] { return lowbit::capi::quantize_on_host(args, lowbit::kFp8Block); });
}
lb_status lb_weight_dequant_fp8_host(const lb_fp8_dequant_args* args) {
  return guarded([&] { return lowbit::capi::dequantize_on_host(args); });
}
lb_status lb_fp8_gemm_host(const lb_fp8_gemm_args* args) {
  return guarded([&] { return lowbit::capi::gemm_on_host(args); });
}
lb_status lb_fp8_grouped_gemm(const lb_fp8_grouped_gemm_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::grouped_on_device(args, stream); });
}
lb_status lb_fp8_grouped_gemm_host(const lb_fp8_grouped_gemm_args* args) {
  return guarded([&] { return lowbit::capi::grouped_on_host(args); });
}

}  // extern "C"
