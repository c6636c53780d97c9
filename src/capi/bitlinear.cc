// Integers of few bits: the structs of lowbit.h to what src/ops/bitlinear.h takes.

#include "ops/bitlinear.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/cpu.h"
#include "base/float.h"
#include "base/threads.h"
#include "base/try.h"
#include "capi/elements.h"
#include "capi/errors.h"
#include "capi/versioned.h"
#include "kernels/cuda_operators_api.h"

namespace lowbit::capi {
namespace {

constexpr int64_t kLargestExtent = int64_t{1} << 30, kLargestStride = int64_t{1} << 32;
constexpr double kWorthThreads = 1e8;  // products

tl::unexpected<Error> bad(const std::string& what, const std::string& got, std::string wanted) {
  return fail(ErrorCode::kInvalidArgument, what, got, std::move(wanted));
}

Status check_type(const char* what, const lb_type& type) {
  const int number = number_of(type);
  if (number == LB_F32 || number == LB_F16 || number == LB_BF16) return {};
  return bad(what, std::to_string(number), "LB_F32, LB_F16 or LB_BF16");
}

/// A matrix in memory: `stride` is set to `columns` where it is 0. `columns` and stride in elements of `bytes`.
Status check_rows(const char* what, const void* data, int64_t rows, int64_t columns, int64_t bytes, int64_t& stride) {
  if (rows < 0 || rows > kLargestExtent || columns < 0 || columns > kLargestExtent)
    return bad(std::string(what) + " shape", std::to_string(rows) + " x " + std::to_string(columns), "0 to 2^30");
  if (stride == 0) stride = columns;
  if (stride < 0 || stride > kLargestStride || (rows > 1 && stride < columns) ||
      stride > INT64_MAX / bytes / std::max<int64_t>(rows, 1))
    return bad(std::string(what) + " stride", std::to_string(stride), "at least a row, and rows that fit into memory");
  if (data == nullptr && rows > 0 && columns > 0) return bad(what, "NULL", "memory");
  return {};
}

int64_t bytes_of(lb_type type) { return type == LB_F32 ? 4 : 2; }

std::vector<float> read_all(const void* p, lb_type type, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = read(p, type, i);
  return values;
}
std::vector<float> read_rows(const void* p, lb_type type, int64_t rows, int64_t columns, int64_t stride) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows * columns; ++i)
    values[static_cast<size_t>(i)] = read(p, type, i / columns * stride + i % columns);
  return values;
}
void write_rows(const std::vector<float>& values, void* p, lb_type type, int64_t columns, int64_t stride) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    write(p, type, at / columns * stride + at % columns, values[i]);
  }
}

Result<int> threads_for(double products) { return products > kWorthThreads ? choose_threads(0) : Result<int>(1); }

float as_bf16(float v) { return bf16_to_f32(f32_to_bf16(v)); }

Status read_args(const lb_int8_quant_args* args, lb_int8_quant_args& a) {
  if (args == nullptr) return bad("quantize_activations_int8", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_int8_quant_args", args, {}, a));
  LOWBIT_TRY(check_type("quantize_activations_int8 input_type", a.input_type));
  if (number_of(a.scale_type) != LB_F32 && number_of(a.scale_type) != LB_BF16)
    return bad("quantize_activations_int8 scale_type", std::to_string(number_of(a.scale_type)), "LB_F32 or LB_BF16");
  LOWBIT_TRY(check_rows("quantize_activations_int8 input", a.input, a.m, a.k, bytes_of(a.input_type), a.input_stride));
  LOWBIT_TRY(check_rows("quantize_activations_int8 codes", a.codes, a.m, a.k, 1, a.codes_stride));
  if (a.scales == nullptr && a.m > 0) return bad("quantize_activations_int8 scales", "NULL", "memory");
  return {};
}

Status quantize(const lb_int8_quant_args* args) {
  lb_int8_quant_args a{};
  LOWBIT_TRY(read_args(args, a));
  std::vector<float> row;
  for (int64_t i = 0; i < a.m; ++i) {
    const auto* from = static_cast<const uint8_t*>(a.input) + i * a.input_stride * bytes_of(a.input_type);
    row = read_all(from, a.input_type, a.k);
    float s = 0;
    quantize_activations_int8(row.data(), 1, a.k, a.k, a.codes + i * a.codes_stride, a.k, &s,
                              a.scale_type == LB_BF16 ? as_bf16 : nullptr);
    write(a.scales, a.scale_type, i, s);
  }
  return {};
}

Status read_args(const lb_bitlinear_args* args, lb_bitlinear_args& a) {
  if (args == nullptr) return bad("bitlinear", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_bitlinear_args", args, {}, a));
  LOWBIT_TRY(check_type("bitlinear scale_type", a.scale_type));
  LOWBIT_TRY(check_type("bitlinear output_type", a.output_type));
  const int order = number_of(a.weight_order);
  if (order != LB_INT2_ROWS && order != LB_INT2_TILES)
    return bad("bitlinear weight_order", std::to_string(order), "LB_INT2_ROWS or LB_INT2_TILES");
  if (order == LB_INT2_TILES) a.weight_stride = 0;
  LOWBIT_TRY(check_rows("bitlinear x", a.x, a.m, a.k, 1, a.x_stride));
  LOWBIT_TRY(check_rows("bitlinear weight", a.weight, a.n, int2_row_bytes(a.k), 1, a.weight_stride));
  LOWBIT_TRY(check_rows("bitlinear output", a.output, a.m, a.n, bytes_of(a.output_type), a.output_stride));
  if (a.row_ends == nullptr) a.ranges = 1;
  if (a.ranges < 1 || a.ranges > std::max<int64_t>(a.n, 1))
    return bad("bitlinear ranges", std::to_string(a.ranges), "1 to n");
  if (a.m == 0 || a.n == 0) return {};
  if (a.x_scales == nullptr || a.weight_scales == nullptr) return bad("bitlinear scales", "NULL", "memory");
  if (a.x_scales_multiply != 0 && a.x_scales_multiply != 1)
    return bad("bitlinear x_scales_multiply", std::to_string(a.x_scales_multiply), "0 or 1");
  return {};
}

Status bitlinear(const lb_bitlinear_args* args) {
  lb_bitlinear_args a{};
  LOWBIT_TRY(read_args(args, a));
  if (a.m == 0 || a.n == 0) return {};
  const int order = number_of(a.weight_order);
  const std::vector<float> s = read_all(a.x_scales, a.scale_type, a.m);
  const std::vector<float> ws = read_all(a.weight_scales, a.scale_type, a.ranges);
  std::vector<float> y(static_cast<size_t>(a.m * a.n));
  LOWBIT_TRY_ASSIGN(const int threads, threads_for(double(a.m) * double(a.n) * double(a.k)));
  ThreadPool pool(threads);
  Bitlinear call;
  call.m = a.m;
  call.n = a.n;
  call.k = a.k;
  call.x = a.x;
  call.ldx = a.x_stride;
  call.s = s.data();
  call.weight = a.weight;
  call.weight_stride = a.weight_stride;
  call.order = order == LB_INT2_TILES ? Int2Order::kTiles : Int2Order::kRows;
  call.ws = ws;
  if (a.row_ends != nullptr) call.row_ends = {a.row_ends, static_cast<size_t>(a.ranges)};
  call.multiplies = a.x_scales_multiply == 1;
  call.y = y.data();
  call.ldy = a.n;
  LOWBIT_TRY(bitlinear_int8xint2(call, pool));
  write_rows(y, a.output, a.output_type, a.n, a.output_stride);
  return {};
}

Status reorder(const char* what, const void* rows, int64_t stride, int64_t n, int64_t k, const void* tiles) {
  if (stride == 0) stride = int2_row_bytes(std::max<int64_t>(k, 0));
  LOWBIT_TRY(check_rows(what, rows, n, int2_row_bytes(std::max<int64_t>(k, 0)), 1, stride));
  if (k < 0 || k > kLargestExtent) return bad(std::string(what) + " k", std::to_string(k), "0 to 2^30");
  return tiles == nullptr && n > 0 && k > 0 ? Status(bad(what, "NULL", "memory")) : Status();
}

Status read_args(const lb_binarize_args* args, lb_binarize_args& a) {
  if (args == nullptr) return bad("binarize_activations", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_binarize_args", args, {}, a));
  LOWBIT_TRY(check_type("binarize_activations input_type", a.input_type));
  LOWBIT_TRY(check_rows("binarize_activations input", a.input, a.m, a.k, bytes_of(a.input_type), a.input_stride));
  LOWBIT_TRY(check_rows("binarize_activations bits", a.bits, a.m, ceil_div(a.k, 8), 1, a.bits_stride));
  if (a.scales == nullptr && a.m > 0) return bad("binarize_activations scales", "NULL", "memory");
  return {};
}

Status binarize(const lb_binarize_args* args) {
  lb_binarize_args a{};
  LOWBIT_TRY(read_args(args, a));
  const std::vector<float> x = read_rows(a.input, a.input_type, a.m, a.k, a.input_stride);
  binarize_activations(x.data(), a.m, a.k, a.k, a.bits, a.bits_stride, a.scales);
  return {};
}

Status read_args(const lb_binary_matmul_args* args, lb_binary_matmul_args& a) {
  if (args == nullptr) return bad("binary_matmul", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_binary_matmul_args", args, {}, a));
  LOWBIT_TRY(check_type("binary_matmul output_type", a.output_type));
  if (a.k < 0 || a.k > kLargestExtent) return bad("binary_matmul k", std::to_string(a.k), "0 to 2^30");
  LOWBIT_TRY(check_rows("binary_matmul x", a.x, a.m, ceil_div(a.k, 8), 1, a.x_stride));
  LOWBIT_TRY(check_rows("binary_matmul weight", a.weight, a.n, ceil_div(a.k, 8), 1, a.weight_stride));
  LOWBIT_TRY(check_rows("binary_matmul output", a.output, a.m, a.n, bytes_of(a.output_type), a.output_stride));
  return {};
}

Status multiply_bits(const lb_binary_matmul_args* args) {
  lb_binary_matmul_args a{};
  LOWBIT_TRY(read_args(args, a));
  if (a.m == 0 || a.n == 0) return {};
  LOWBIT_TRY_ASSIGN(const int threads, threads_for(double(a.m) * double(a.n) * double(a.k) / 8));
  ThreadPool pool(threads);
  std::vector<float> y(static_cast<size_t>(a.m * a.n));
  BinaryProduct call;
  call.m = a.m;
  call.n = a.n;
  call.k = a.k;
  call.x = a.x;
  call.x_stride = a.x_stride;
  call.x_scales = a.x_scales;
  call.weight = a.weight;
  call.weight_stride = a.weight_stride;
  call.w_scales = a.weight_scales;
  call.bias = a.bias;
  call.y = y.data();
  call.ldy = a.n;
  binary_matmul(call, pool);
  write_rows(y, a.output, a.output_type, a.n, a.output_stride);
  return {};
}

// ---- In device memory

cuda::Element element_of(lb_type type) {
  return type == LB_F32 ? cuda::Element::kF32 : type == LB_F16 ? cuda::Element::kF16 : cuda::Element::kBf16;
}

Status quantize_on_device(const lb_int8_quant_args* args, void* stream) {
  lb_int8_quant_args a{};
  LOWBIT_TRY(read_args(args, a));
  return cuda::int8_rows({.x = a.input,
                          .x_element = element_of(a.input_type),
                          .m = a.m,
                          .k = a.k,
                          .ldx = a.input_stride,
                          .codes = a.codes,
                          .ldcodes = a.codes_stride,
                          .scales = a.scales,
                          .scale_element = element_of(a.scale_type)},
                         stream);
}

Status bitlinear_on_device(const lb_bitlinear_args* args, void* stream) {
  lb_bitlinear_args a{};
  LOWBIT_TRY(read_args(args, a));
  const bool tiles = number_of(a.weight_order) == LB_INT2_TILES;
  LOWBIT_TRY(check_int2_product(a.m, a.n, a.k, tiles ? Int2Order::kTiles : Int2Order::kRows));
  return cuda::int2_product({.m = a.m,
                             .n = a.n,
                             .k = a.k,
                             .x = a.x,
                             .ldx = a.x_stride,
                             .s = a.x_scales,
                             .weight = a.weight,
                             .weight_stride = a.weight_stride,
                             .tiles = tiles,
                             .ws = a.weight_scales,
                             .scale_element = element_of(a.scale_type),
                             .row_ends = a.row_ends,
                             .ranges = a.ranges,
                             .multiplies = a.x_scales_multiply == 1,
                             .y = a.output,
                             .y_element = element_of(a.output_type),
                             .ldy = a.output_stride},
                            stream);
}

Status binarize_on_device(const lb_binarize_args* args, void* stream) {
  lb_binarize_args a{};
  LOWBIT_TRY(read_args(args, a));
  return cuda::bit_rows({.x = a.input,
                         .x_element = element_of(a.input_type),
                         .m = a.m,
                         .k = a.k,
                         .ldx = a.input_stride,
                         .bits = a.bits,
                         .bits_stride = a.bits_stride,
                         .scales = a.scales},
                        stream);
}

Status multiply_bits_on_device(const lb_binary_matmul_args* args, void* stream) {
  lb_binary_matmul_args a{};
  LOWBIT_TRY(read_args(args, a));
  return cuda::bit_product({.m = a.m,
                            .n = a.n,
                            .k = a.k,
                            .x = a.x,
                            .weight = a.weight,
                            .x_stride = a.x_stride,
                            .weight_stride = a.weight_stride,
                            .x_scales = a.x_scales,
                            .weight_scales = a.weight_scales,
                            .bias = a.bias,
                            .y = a.output,
                            .y_element = element_of(a.output_type),
                            .ldy = a.output_stride},
                           stream);
}

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;

extern "C" {

lb_status lb_quantize_activations_int8(const lb_int8_quant_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::quantize_on_device(args, stream); });
}
lb_status lb_quantize_activations_int8_host(const lb_int8_quant_args* args) {
  return guarded([&] { return lowbit::capi::quantize(args); });
}
lb_status lb_bitlinear_int8xint2(const lb_bitlinear_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::bitlinear_on_device(args, stream); });
}
lb_status lb_bitlinear_int8xint2_host(const lb_bitlinear_args* args) {
  return guarded([&] { return lowbit::capi::bitlinear(args); });
}
lb_status lb_int2_to_tiles(const uint8_t* rows, int64_t row_stride, int64_t n, int64_t k, uint8_t* tiles) {
  return guarded([&]() -> lowbit::Status {
    LOWBIT_TRY(lowbit::capi::reorder("lb_int2_to_tiles", rows, row_stride, n, k, tiles));
    return lowbit::int2_to_tiles(rows, row_stride == 0 ? lowbit::int2_row_bytes(k) : row_stride, n, k, tiles);
  });
}
lb_status lb_int2_from_tiles(const uint8_t* tiles, int64_t n, int64_t k, uint8_t* rows, int64_t row_stride) {
  return guarded([&]() -> lowbit::Status {
    LOWBIT_TRY(lowbit::capi::reorder("lb_int2_from_tiles", rows, row_stride, n, k, tiles));
    return lowbit::int2_from_tiles(tiles, n, k, rows, row_stride == 0 ? lowbit::int2_row_bytes(k) : row_stride);
  });
}
lb_status lb_binarize_activations(const lb_binarize_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::binarize_on_device(args, stream); });
}
lb_status lb_binarize_activations_host(const lb_binarize_args* args) {
  return guarded([&] { return lowbit::capi::binarize(args); });
}
lb_status lb_binary_matmul(const lb_binary_matmul_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::multiply_bits_on_device(args, stream); });
}
lb_status lb_binary_matmul_host(const lb_binary_matmul_args* args) {
  return guarded([&] { return lowbit::capi::multiply_bits(args); });
}

}  // extern "C"
