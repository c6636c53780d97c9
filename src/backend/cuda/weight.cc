#include "backend/cuda/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "backend/cuda/weight_parts.h"
#include "base/try.h"
#include "format/registry.h"
#include "kernels/cuda_block_api.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};

/// Products that have the CPU's bits.
CudaKernelChoice exact_kernel(const QTensor& w, Halves halves) {
  return {std::string("matmul_") + format_info(w.format).name + "_af32__cuda_128x128",
          fmt::format("{} activations: the CPU's order of sums", halves_name(halves))};
}
bool runs_halves(const QTensor& w, const XSpec& x) {
  return x.activation == Activation::kF32 && x.rounding.halves != Halves::kNone && takes_halves(w);
}
std::string about_halves(Halves halves) {
  return fmt::format("{} activations: tensor cores, sums within a bound; up to 8 rows with their norm in one launch",
                     halves_name(halves));
}

}  // namespace

Result<CudaKernelChoice> choose_cuda_kernel(const QTensor& w, const XSpec& x) {
  LOWBIT_TRY_ASSIGN(DeviceKernelChoice choice, choose_device_kernel(w, {.activation = x.activation,
                                                                        .activation_group = x.group,
                                                                        .exact_scales = x.rounding.exact_scales}));
  if (runs_halves(w, x)) return CudaKernelChoice{std::move(choice.name), about_halves(x.rounding.halves)};
  if (x.activation == Activation::kF32) return exact_kernel(w, x.rounding.halves);
  return CudaKernelChoice{std::move(choice.name), std::move(choice.reason)};
}

Result<Buffer> to_device(std::span<const float> values, const char* what) {
  const int64_t bytes = int64_t(values.size()) * kFloat;
  LOWBIT_TRY_ASSIGN(Buffer buffer, cuda::allocate(bytes, what));
  LOWBIT_TRY(cuda::upload(buffer, values.data(), bytes));
  return buffer;
}

Result<std::unique_ptr<CudaWeight>> CudaWeight::make(const std::string& name, const QTensor& w,
                                                     const std::vector<float>& bias, const XSpec& x, WeightUse use,
                                                     bool exact, Arena& arena, ThreadPool& pool) {
  const bool products = use != WeightUse::kRows;
  auto weight = std::make_unique<CudaWeight>();
  weight->name = name;
  weight->format = w.format;
  weight->n = w.n;
  weight->k = w.k;
  weight->multiplies = products;
  weight->activation = x.activation;
  weight->rounding = x.rounding;
  if (!bias.empty()) {
    LOWBIT_TRY_ASSIGN(weight->bias, to_device(bias, "bias"));
  }
  if (weight->takes_codes()) {
    DeviceMatmulOptions options;
    options.activation_group = x.group;
    options.exact_scales = x.rounding.exact_scales;
    options.arena = &arena;
    options.pool = &pool;
    LOWBIT_TRY_ASSIGN(weight->plan, DeviceMatmulPlan::make(w, options));
    weight->kernel = weight->plan.kernel_name();
    weight->reason = weight->plan.reason();
  } else if (weight->takes_fp8()) {
    LOWBIT_TRY_ASSIGN(weight->fp8, CudaFp8Weight::make(name, w));
    weight->kernel = weight->fp8.kernel_name();
    weight->reason = "fp8 activations: tensor cores of compute capability 9.0, elsewhere the CPU's order of sums";
  } else if (products && !exact && runs_halves(w, x)) {
    LOWBIT_TRY_ASSIGN(weight->plan,
                      DeviceMatmulPlan::make(w, {.activation = Activation::kF32, .arena = &arena, .pool = &pool}));
    weight->kernel = weight->plan.kernel_name();
    weight->reason = about_halves(x.rounding.halves);
  } else if (products) {
    LOWBIT_TRY(weight->set_values(w, pool));
    CudaKernelChoice choice = exact_kernel(w, x.rounding.halves);
    weight->kernel = std::move(choice.name);
    weight->reason = std::move(choice.reason);
  }
  if (use != WeightUse::kProducts) LOWBIT_TRY(weight->set_table(w, pool));
  LOWBIT_TRY(cuda::synchronize(nullptr));  // where codes were put in order; programs run elsewhere
  return weight;
}

Status CudaWeight::set_values(const QTensor& w, ThreadPool& pool) {
  LOWBIT_TRY_ASSIGN(const WeightParts parts, split_weight(w, pool));
  group = parts.group;
  type = parts.type;
  const int64_t bytes = int64_t(parts.values.size());
  LOWBIT_TRY_ASSIGN(values, cuda::allocate(bytes, "weights"));
  LOWBIT_TRY(cuda::upload(values, parts.values.data(), bytes));
  if (!parts.scales.empty()) {
    LOWBIT_TRY_ASSIGN(scales, to_device(parts.scales, "scales"));
  }
  if (!parts.offsets.empty()) {
    LOWBIT_TRY_ASSIGN(offsets, to_device(parts.offsets, "offsets"));
  }
  return {};
}

Status CudaWeight::set_table(const QTensor& w, ThreadPool& pool) {
  const bool has_points = w.scaling.zero != ZeroKind::kNone && w.scaling.zero != ZeroKind::kOffset;
  if (is_dense(w.format) && !values.empty()) {  // a tied head: the same numbers
    table.codes = values;
    table.format = type == cuda::ValueType::kF16    ? FormatId::kF16
                   : type == cuda::ValueType::kBf16 ? FormatId::kBf16
                                                    : FormatId::kF32;
    table.row_bytes = cuda::value_row_bytes(type, w.k);
    return {};
  } else if (!is_dense(w.format) && has_points) {  // subtracted before they are scaled: no kernel does so
    std::vector<float> all(size_t(w.n * w.k));
    pool.parallel_for(w.n, 16, [&](int64_t begin, int64_t end, int) {
      dequantize_rows(w, begin, end - begin, all.data() + begin * w.k);
    });
    LOWBIT_TRY_ASSIGN(table.codes, to_device(all, "embedding"));
  } else {
    return set_stored_table(w);
  }
  table.row_bytes = w.k * kFloat;
  return {};
}

Status CudaWeight::set_stored_table(const QTensor& w) {
  if (format_info(w.format).expanded != w.format) {
    LOWBIT_TRY_ASSIGN(const QTensor expanded, expand(w));
    return set_stored_table(expanded);
  }
  table.format = w.format;
  table.row_bytes = row_bytes(w.format, w.k);
  LOWBIT_TRY_ASSIGN(table.codes, cuda::allocate(w.n * table.row_bytes, "embedding"));
  LOWBIT_TRY(cuda::upload(table.codes, w.codes.data(), w.n * table.row_bytes));
  if (is_dense(w.format)) return {};
  table.group = std::max<int64_t>(1, std::min(w.group(), w.k));
  std::vector<float> factors, zeros;
  for (int64_t r = 0; r < w.n; ++r)
    for (int64_t g = 0; g < w.scale_cols(); ++g) {
      factors.push_back(w.scale(r, g));
      if (w.scaling.zero != ZeroKind::kNone) zeros.push_back(w.offset(r, g));
    }
  LOWBIT_TRY_ASSIGN(table.scales, to_device(factors, "embedding"));
  if (!zeros.empty()) {
    LOWBIT_TRY_ASSIGN(table.offsets, to_device(zeros, "embedding"));
  }
  if (!w.codebook.empty()) {
    LOWBIT_TRY_ASSIGN(table.values, to_device(w.codebook, "codebook"));
  }
  return {};
}

WeightInfo CudaWeight::info() const {
  if (!multiplies) return {name, "", "", format, n, k, 0, Activation::kF32, 0};
  const int64_t bytes = takes_codes() || takes_halves()
                            ? plan.resident_bytes()
                            : values.size() + scales.size() + offsets.size() + fp8.codes.size() + fp8.scales.size();
  const int64_t x_group = rounding.exact_scales ? kExactScaleColumns
                          : takes_codes()       ? code_group()
                          : takes_fp8()         ? kFp8Block
                                                : 0;
  return {name, kernel, reason, format, n, k, bytes + bias.size(), activation, x_group};
}

cuda::ExactProductPart CudaWeight::exact_product_part(float* y) const {
  cuda::ExactProductPart part;
  part.n = n, part.bias = floats_or_null(bias), part.y = y, part.ldy = n;
  if (takes_fp8()) {
    part.values = fp8.codes.as<uint8_t>(), part.row_bytes = CudaFp8Weight::row_bytes(k);
    part.scales = fp8.scales.as<float>(), part.scale_rows = fp8.scale_rows;
    part.row_step = fp8.blocks(), part.group_step = 1;
  } else {
    part.values = values.as<uint8_t>(), part.row_bytes = cuda::value_row_bytes(type, k);
    part.scales = floats_or_null(scales);
    part.row_step = 1, part.group_step = n;
  }
  return part;
}

cuda::ExactProducts CudaWeight::exact_products() const {
  cuda::ExactProducts call;
  call.type = takes_fp8() ? cuda::ValueType::kE4m3 : type;
  call.k = k;
  call.group = takes_fp8() ? kFp8Block : group;
  call.rounding = takes_fp8()                        ? cuda::RowRounding::kE4m3
                  : rounding.halves == Halves::kBf16 ? cuda::RowRounding::kBf16
                  : rounding.halves == Halves::kF16  ? cuda::RowRounding::kF16
                                                     : cuda::RowRounding::kNone;
  return call;
}

Status CudaWeight::run(const DeviceRows& x, float* y, uint8_t* scratch, void* stream) const {
  if (takes_codes() || takes_halves())
    return plan.run(x, floats_or_null(bias), y, cuda::Element::kF32, n, scratch, stream);
  return cuda::f32_matmul({values.as<uint8_t>(), type, floats_or_null(scales), floats_or_null(offsets),
                           floats_or_null(bias), n, k, group, static_cast<const float*>(x.x), y, x.m, stream});
}

}  // namespace lowbit
