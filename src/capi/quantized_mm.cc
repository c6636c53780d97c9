#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/float.h"
#include "base/threads.h"
#include "base/try.h"
#include "capi/elements.h"
#include "capi/errors.h"
#include "capi/versioned.h"
#include "format/registry.h"
#include "kernels/cuda_api.h"
#include "ops/matmul.h"

namespace lowbit::capi {
namespace {

constexpr int64_t kLargestExtent = int64_t{1} << 30, kLargestStride = int64_t{1} << 32;

tl::unexpected<Error> bad_mm(const char* what, const std::string& got, std::string wanted) {
  return fail(ErrorCode::kInvalidArgument, std::string("quantized_mm ") + what, got, std::move(wanted));
}

/// Checks of both versions. The device version checks the rest itself and does not read row_ends.
Status read_args(const lb_quantized_mm_args* args, lb_quantized_mm_args& a) {
  if (args == nullptr) return bad_mm("args", "NULL", "arguments");
  LOWBIT_TRY(read_versioned("lb_quantized_mm_args", args, {}, a));
  for (const lb_type* type : {&a.input_type, &a.output_type}) {
    int number = 0;  // C may have written any; an lb_type of C++ may hold only its own
    static_assert(sizeof number == sizeof *type);
    std::memcpy(&number, type, sizeof number);
    if (number != LB_F32 && number != LB_F16 && number != LB_BF16)
      return bad_mm("type", std::to_string(number), "LB_F32, LB_F16 or LB_BF16");
  }
  return {};
}

cuda::Element element_of(lb_type type) {
  return type == LB_F32 ? cuda::Element::kF32 : type == LB_F16 ? cuda::Element::kF16 : cuda::Element::kBf16;
}

Status run_on_device(const lb_quantized_mm_args* args, void* stream) {
  lb_quantized_mm_args a{};
  LOWBIT_TRY(read_args(args, a));
  cuda::QuantizedMm call;
  call.input = a.input;
  call.weight = a.weight;
  call.output = a.output;
  call.m = a.m;
  call.n = a.n;
  call.k = a.k;
  call.input_stride = a.input_stride;
  call.weight_stride = a.weight_stride;
  call.output_stride = a.output_stride;
  call.scale = a.scale;
  call.scales = a.scales;
  call.group = a.group;
  call.row_ends = a.row_ends;
  call.ranges = a.ranges;
  call.bias = a.bias;
  call.input_element = element_of(a.input_type);
  call.output_element = element_of(a.output_type);
  call.stream = stream;
  return cuda::quantized_mm(static_cast<int>(std::min<uint32_t>(a.bits, 64)), call);
}

Status check_host_args(const lb_quantized_mm_args& a) {
  for (const auto& [name, v] : {std::pair{"m", a.m}, std::pair{"n", a.n}, std::pair{"k", a.k}})
    if (v < 0 || v > kLargestExtent) return bad_mm(name, std::to_string(v), "0 to 2^30");
  if (a.bits != 1 && a.bits != 2 && a.bits != 4 && a.bits != 8)
    return bad_mm("bits", std::to_string(a.bits), "1, 2, 4 or 8");
  if (a.m == 0 || a.n == 0) return {};
  if (a.output == nullptr || (a.k > 0 && (a.input == nullptr || a.weight == nullptr)))
    return bad_mm("pointers", "NULL", "memory");
  if (a.m > 1 && (a.input_stride < a.k || a.output_stride < a.n))
    return bad_mm("strides", std::to_string(a.input_stride) + " and " + std::to_string(a.output_stride),
                  "at least k and n");
  struct Stride {
    const char* name;
    int64_t stride, rows, bytes;
  };
  for (const auto& [name, stride, rows, bytes] :
       {Stride{"input_stride", a.input_stride, a.m, 4}, Stride{"output_stride", a.output_stride, a.m, 4},
        Stride{"weight_stride", a.weight_stride, a.n, 1}})
    if (stride < 0 || stride > std::min(kLargestStride, INT64_MAX / bytes / rows))
      return bad_mm(name, std::to_string(stride), "rows that fit into memory");
  const int64_t row_bytes = ceil_div(a.k * static_cast<int64_t>(a.bits), 8);
  if (a.n > 1 && a.weight_stride < row_bytes)
    return bad_mm("weight_stride", std::to_string(a.weight_stride) + " bytes", "at least " + std::to_string(row_bytes));
  if (a.group < 0) return bad_mm("group", std::to_string(a.group), "0 or more");
  if (a.row_ends == nullptr) return {};
  if (a.scales == nullptr || a.ranges < 1 || a.group != 0)
    return bad_mm("row_ends", "no scales, no ranges or a group", "scales of ranges");
  for (int64_t r = 0, last = 0; r < a.ranges; last = a.row_ends[r++])
    if (a.row_ends[r] <= last || a.row_ends[r] > a.n || (r + 1 == a.ranges && a.row_ends[r] != a.n))
      return bad_mm("row_ends", std::to_string(a.row_ends[r]) + " at " + std::to_string(r),
                    "ascending ends, the last n");
  return {};
}

/// The weight as a tensor of its own: packed rows side by side.
Result<QTensor> pack_weight(const lb_quantized_mm_args& a) {
  constexpr FormatId kFormats[] = {FormatId::kBinary, FormatId::kInt2, FormatId::kInt4, FormatId::kInt8};
  QTensor w;
  w.format = kFormats[__builtin_ctz(a.bits)];
  w.n = a.n;
  w.k = a.k;
  const bool grouped = a.scales != nullptr && a.group > 0 && a.group < a.k;
  w.scaling.scale = ScaleKind::kF32;
  w.scaling.k_block = grouped ? a.group : Scaling::kAll;
  w.scaling.n_block = a.scales == nullptr ? Scaling::kAll : a.row_ends != nullptr ? Scaling::kRowRanges : 1;
  if (a.row_ends != nullptr) w.row_ends.assign(a.row_ends, a.row_ends + a.ranges);
  const int64_t bytes = row_bytes(w.format, a.k);
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(a.n * bytes, "quantized_mm weight"));
  for (int64_t r = 0; r < a.n && bytes > 0; ++r)
    std::memcpy(w.codes.as<uint8_t>() + r * bytes, a.weight + r * a.weight_stride, static_cast<size_t>(bytes));
  const int64_t scales = w.scale_rows() * w.scale_cols();
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(4 * scales, "quantized_mm scales"));
  for (int64_t i = 0; i < scales; ++i) w.scales.as<float>()[i] = a.scales == nullptr ? a.scale : a.scale * a.scales[i];
  return w;
}

Status run_on_host(const lb_quantized_mm_args* args) {
  lb_quantized_mm_args a{};
  LOWBIT_TRY(read_args(args, a));
  LOWBIT_TRY(check_host_args(a));
  if (a.m == 0 || a.n == 0) return {};
  constexpr double kWorthThreads = 1e8;
  int threads = 1;
  if (double(a.m) * double(a.n) * double(a.k) > kWorthThreads) {
    LOWBIT_TRY_ASSIGN(threads, choose_threads(0));
  }
  ThreadPool pool(threads);
  LOWBIT_TRY_ASSIGN(const QTensor w, pack_weight(a));
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(""));
  LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(w, {Activation::kF32, isa, false, 0}, pool));
  const bool floats = a.input_type == LB_F32 && a.output_type == LB_F32;
  std::vector<float> x, y;
  if (!floats) {
    x.resize(static_cast<size_t>(a.m * a.k));
    y.resize(static_cast<size_t>(a.m * a.n));
    for (int64_t i = 0; i < a.m * a.k; ++i)
      x[static_cast<size_t>(i)] = read(a.input, a.input_type, i / a.k * a.input_stride + i % a.k);
  }
  ActivationRows rows;
  LOWBIT_TRY(rows.prepare(plan.activation(), floats ? static_cast<const float*>(a.input) : x.data(), a.m, a.k,
                          floats ? a.input_stride : a.k, isa, pool));
  LOWBIT_TRY(
      plan.run(rows, a.bias, floats ? static_cast<float*>(a.output) : y.data(), floats ? a.output_stride : a.n, pool));
  if (floats) return {};
  for (int64_t i = 0; i < a.m * a.n; ++i)
    write(a.output, a.output_type, i / a.n * a.output_stride + i % a.n, y[static_cast<size_t>(i)]);
  return {};
}

lb_quantized_mm_args plain_args(const float* input, const uint8_t* weight, float scale, const float* bias,
                                float* output, uint32_t m, uint32_t n, uint32_t k, uint32_t bits, uint32_t input_stride,
                                uint32_t weight_stride, uint32_t output_stride) {
  lb_quantized_mm_args a{};
  a.struct_size = sizeof a;
  a.input = input;
  a.weight = weight;
  a.output = output;
  a.bias = bias;
  a.m = m;
  a.n = n;
  a.k = k;
  a.input_stride = input_stride;
  a.weight_stride = weight_stride;
  a.output_stride = output_stride;
  a.bits = bits;
  a.scale = scale;
  return a;
}

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;

extern "C" {

lb_status lb_quantized_mm_args_run(const lb_quantized_mm_args* args, void* stream) {
  return guarded([&] { return lowbit::capi::run_on_device(args, stream); });
}
lb_status lb_quantized_mm_args_run_host(const lb_quantized_mm_args* args) {
  return guarded([&] { return lowbit::capi::run_on_host(args); });
}

lb_status lb_quantized_mm(const float* input, const uint8_t* weight, float scale, const float* bias, float* output,
                          uint32_t m, uint32_t n, uint32_t k, uint32_t bits, uint32_t input_stride,
                          uint32_t weight_stride, uint32_t output_stride, void* stream) {
  const auto args = lowbit::capi::plain_args(input, weight, scale, bias, output, m, n, k, bits, input_stride,
                                             weight_stride, output_stride);
  return lb_quantized_mm_args_run(&args, stream);
}
lb_status lb_quantized_mm_host(const float* input, const uint8_t* weight, float scale, const float* bias, float* output,
                               uint32_t m, uint32_t n, uint32_t k, uint32_t bits, uint32_t input_stride,
                               uint32_t weight_stride, uint32_t output_stride) {
  const auto args = lowbit::capi::plain_args(input, weight, scale, bias, output, m, n, k, bits, input_stride,
                                             weight_stride, output_stride);
  return lb_quantized_mm_args_run_host(&args);
}

}  // extern "C"
