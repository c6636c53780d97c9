#include <algorithm>
#include <array>
#include <string>

#include "base/checked.h"
#include "kernels/cuda/quantized_mm.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_api.h"

namespace lowbit::cuda {
namespace {

constexpr int64_t kLargestExtent = int64_t{1} << 30;

Status check(int bits, const QuantizedMm& c) {
  const auto bad = [](const char* what, std::string got, std::string wanted) -> Status {
    return fail(ErrorCode::kInvalidArgument, std::string("quantized_mm ") + what, std::move(got), std::move(wanted));
  };
  if (bits != 1 && bits != 2 && bits != 4 && bits != 8) return bad("bits", std::to_string(bits), "1, 2, 4 or 8");
  for (const auto& [name, v] : {std::pair{"m", c.m}, std::pair{"n", c.n}, std::pair{"k", c.k}})
    if (v < 0 || v > kLargestExtent) return bad(name, std::to_string(v), "0 to 2^30");
  if (c.input_element == Element::kInt8 || c.output_element == Element::kInt8)
    return bad("type", "int8", "f32, f16 or bf16");
  if (c.m == 0 || c.n == 0) return {};
  if (c.output == nullptr || (c.k > 0 && (c.input == nullptr || c.weight == nullptr)))
    return bad("pointers", "null", "device memory");
  if (c.m > 1 && (c.input_stride < c.k || c.output_stride < c.n))
    return bad("strides", std::to_string(c.input_stride) + " and " + std::to_string(c.output_stride),
               "at least k and n elements");
  if (c.n > 1 && c.weight_stride < ceil_div(c.k * bits, 8))
    return bad("weight_stride", std::to_string(c.weight_stride) + " bytes", std::to_string(ceil_div(c.k * bits, 8)));
  if (c.group < 0) return bad("group", std::to_string(c.group), "0 or more columns");
  if (c.row_ends != nullptr && (c.scales == nullptr || c.ranges < 1 || c.ranges > kLargestExtent || c.group != 0))
    return bad("row_ends", std::to_string(c.ranges) + " ranges", "a scale for each of 1 or more, and group 0");
  return {};
}

}  // namespace

Status quantized_mm(int bits, const QuantizedMm& c) {
  if (auto s = check(bits, c); !s) return s;
  if (c.m == 0 || c.n == 0) return {};
  QuantizedConfig p{};
  p.m = c.m;
  p.n = c.n;
  p.k = c.k;
  p.input_stride = c.input_stride;
  p.weight_stride = c.weight_stride;
  p.output_stride = c.output_stride;
  p.scale = c.scale;
  p.scales = c.scales;
  const bool grouped = c.scales != nullptr && c.group > 0 && c.group < c.k;
  p.group = grouped ? c.group : std::max<int64_t>(c.k, 1);
  p.groups = std::max<int64_t>(1, ceil_div(c.k, p.group));
  p.row_ends = c.row_ends;
  p.ranges = static_cast<int>(c.ranges);
  p.bias = c.bias;
  p.input_element = c.input_element;
  p.output_element = c.output_element;
  // Found by log2 of the width: no chain of comparisons.
  static constexpr std::array kLaunchers = {&launch_quantized_mm<1>, &launch_quantized_mm<2>, &launch_quantized_mm<4>,
                                            &launch_quantized_mm<8>};
  const auto index = static_cast<size_t>(__builtin_ctz(static_cast<unsigned>(bits)));
  return check_cuda(kLaunchers[index](c.input, c.weight, c.output, p, c.overlap, static_cast<cudaStream_t>(c.stream)),
                    "quantized_mm");
}

}  // namespace lowbit::cuda
