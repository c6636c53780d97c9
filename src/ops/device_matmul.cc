#include "ops/device_matmul.h"

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/try.h"
#include "format/registry.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;

bool is_dense(FormatId id) { return format_info(id).kind == ValueKind::kDense; }
bool is_fallback(const cuda::MatmulKernel& k) { return std::string_view(k.name).ends_with("__cuda_warp"); }

struct Choice {
  const cuda::MatmulKernel* kernel = nullptr;
  std::string reason;
};

Choice choose_kernel(FormatId format, Activation activation, const cuda::MatmulShape& shape, bool fallback) {
  Choice c;
  for (const cuda::MatmulKernel& k : cuda::matmul_kernels()) {
    if (k.format != format || k.activation != activation || (fallback && !is_fallback(k))) continue;
    const std::string refusal = k.refuses(shape);
    if (refusal.empty()) {
      c.kernel = &k;
      if (fallback) {
        c.reason = "the fallback was asked for";
      } else if (!is_fallback(k)) {
        c.reason = "integer weights and int8 activations: products stay integers";
      } else if (c.reason.empty()) {
        c.reason = activation == Activation::kF32 ? "f32 activations" : "values that are not integers";
      }
      return c;
    }
    c.reason = std::string(k.name) + " does not take " + refusal;
  }
  return c;
}

/// Scales and offsets of each row and group of `group` columns: [n, groups].
void expand_factors(const QTensor& w, int64_t group, int64_t groups, std::vector<float>& scales,
                    std::vector<float>& offsets) {
  const bool has_offsets = w.scaling.zero != ZeroKind::kNone;
  scales.resize(static_cast<size_t>(w.n * groups));
  if (has_offsets) offsets.resize(scales.size());
  for (int64_t r = 0; r < w.n; ++r)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t column = g * group / std::max<int64_t>(w.group(), 1);
      scales[static_cast<size_t>(r * groups + g)] = w.scale(r, column);
      if (has_offsets) offsets[static_cast<size_t>(r * groups + g)] = w.offset(r, column);
    }
}

struct Groups {
  int64_t group, groups, groups_per_scale;
  bool x_groups;
};
Groups groups_of(const QTensor& w, Activation activation, int64_t activation_group) {
  if (is_dense(w.format)) return {std::max<int64_t>(1, w.k), 1, 1, false};
  const bool grouped = activation == Activation::kInt8 && activation_group > 0 && w.k > 0;
  const int64_t group = segment_of(w, grouped ? activation_group : 0);
  const int64_t groups = std::max<int64_t>(1, ceil_div(w.k, group));
  return {group, groups, w.group() >= w.k ? groups : w.group() / group, grouped};
}

std::string full_name(const cuda::MatmulKernel& kernel, const std::string& scaling, int64_t x_group) {
  std::string name = kernel.name;
  if (x_group > 0) name.insert(name.rfind("__"), "g" + std::to_string(x_group));
  if (!scaling.empty()) name.insert(name.rfind("__"), "_" + scaling);
  return name;
}

tl::unexpected<Error> not_built() {
  return fail(ErrorCode::kUnsupported, "device cuda", "a build without CUDA", "cpu", "build where nvcc is installed");
}

tl::unexpected<Error> too_long_group(int64_t group) {
  return fail(ErrorCode::kUnsupported, "matmul weight", "one scale for " + std::to_string(group) + " columns",
              "at most " + std::to_string(kMaxIntegerGroup) + " with int8 activations",
              "use a smaller group, or f32 activations");
}

}  // namespace

Status DeviceMatmulPlan::choose(FormatId format, const DeviceMatmulOptions& options, bool offsets) {
  if (!cuda::built()) return not_built();
  if (activation_ == Activation::kInt8 && group_ > kMaxIntegerGroup) return too_long_group(group_);
  const Choice choice =
      choose_kernel(format, activation_, {1, n_, k_, group_, groups_, offsets, x_groups_}, options.fallback);
  if (choice.kernel == nullptr)
    return fail(ErrorCode::kUnsupported, "matmul", format_info(format).name, "a CUDA kernel for it", choice.reason);
  kernel_ = choice.kernel;
  reason_ = choice.reason;
  row_bytes_ = kernel_->row_bytes(k_);
  return {};
}

Status DeviceMatmulPlan::upload_rows(const uint8_t* rows, int64_t row_bytes) {
  const int64_t tile = kernel_->tile_rows;
  const auto bytes = checked_mul(static_cast<uint64_t>(round_up(n_, tile)), static_cast<uint64_t>(row_bytes_));
  if (!bytes || *bytes > static_cast<uint64_t>(INT64_MAX))
    return fail(ErrorCode::kOutOfMemory, "matmul weight", "sizes that overflow");
  LOWBIT_TRY_ASSIGN(codes_, cuda::allocate(static_cast<int64_t>(*bytes), "matmul weight"));
  if (n_ == 0 || row_bytes == 0) return cuda::fill(codes_, 0);
  const int64_t rows_at_once = std::min(n_, round_up(std::max<int64_t>(kStagingBytes / row_bytes, 1), tile));
  LOWBIT_TRY_ASSIGN(Buffer staging, cuda::allocate(rows_at_once * row_bytes, "matmul weight"));
  for (int64_t r = 0; r < n_; r += rows_at_once) {
    const int64_t count = std::min(rows_at_once, n_ - r);
    LOWBIT_TRY(cuda::upload(staging, rows + r * row_bytes, count * row_bytes));
    LOWBIT_TRY(
        kernel_->relayout(staging.as<uint8_t>(), row_bytes, count, k_, codes_.as<uint8_t>() + r * row_bytes_, nullptr));
    LOWBIT_TRY(cuda::synchronize(nullptr));
  }
  return {};
}

Status DeviceMatmulPlan::upload_factors(const float* scales, const float* offsets) {
  const int64_t bytes = 4 * n_ * groups_;
  std::vector<float> transposed(static_cast<size_t>(n_ * groups_));
  const auto send = [&](const float* from, Buffer& to) -> Status {
    for (int64_t r = 0; r < n_; ++r)
      for (int64_t g = 0; g < groups_; ++g) transposed[static_cast<size_t>(g * n_ + r)] = from[r * groups_ + g];
    LOWBIT_TRY_ASSIGN(to, cuda::allocate(bytes, "matmul scales"));
    return cuda::upload(to, transposed.data(), bytes);
  };
  LOWBIT_TRY(send(scales, scales_));
  if (offsets != nullptr) LOWBIT_TRY(send(offsets, offsets_));
  return {};
}

Result<DeviceMatmulPlan> DeviceMatmulPlan::make(const QTensor& w, const DeviceMatmulOptions& options) {
  LOWBIT_TRY(check_qtensor(w, "matmul weight"));
  DeviceMatmulPlan plan;
  plan.n_ = w.n;
  plan.k_ = w.k;
  const bool dense = is_dense(w.format);
  plan.activation_ = dense ? Activation::kF32 : options.activation;
  const Groups g = groups_of(w, plan.activation_, options.activation_group);
  plan.group_ = g.group;
  plan.groups_ = g.groups;
  plan.groups_per_scale_ = g.groups_per_scale;
  plan.x_groups_ = g.x_groups;
  LOWBIT_TRY(plan.choose(w.format, options, w.scaling.zero != ZeroKind::kNone));
  plan.kernel_name_ = full_name(*plan.kernel_, dense ? "" : scaling_name(w.scaling), g.x_groups ? g.group : 0);
  LOWBIT_TRY(plan.upload_rows(w.codes.as<uint8_t>(), row_bytes(w.format, w.k)));
  if (!dense) {
    std::vector<float> scales, offsets;
    expand_factors(w, g.group, g.groups, scales, offsets);
    LOWBIT_TRY(plan.upload_factors(scales.data(), offsets.empty() ? nullptr : offsets.data()));
  }
  if (!w.codebook.empty()) {
    std::vector<float> table = w.codebook;
    table.resize(16, 0.0f);
    LOWBIT_TRY_ASSIGN(plan.table_, cuda::allocate(4 * 16, "codebook"));
    LOWBIT_TRY(cuda::upload(plan.table_, table.data(), 4 * 16));
  }
  return plan;
}

Result<DeviceMatmulPlan> DeviceMatmulPlan::make_derived(FormatId format, const uint8_t* codes, int64_t n, int64_t k,
                                                        const float* scales, const float* offsets, int64_t group,
                                                        const DeviceMatmulOptions& options) {
  if (n < 0 || k < 1 || group < 1 || is_dense(format) || format_info(format).kind == ValueKind::kTable)
    return fail(ErrorCode::kInvalidArgument, "matmul weight", std::string("format ") + format_info(format).name,
                "packed values without a table, n >= 0, k and group >= 1");
  DeviceMatmulPlan plan;
  plan.n_ = n;
  plan.k_ = k;
  plan.activation_ = options.activation;
  plan.group_ = std::min(group, k);
  plan.groups_ = ceil_div(k, plan.group_);
  plan.x_groups_ = options.activation == Activation::kInt8 && options.activation_group > 0;
  LOWBIT_TRY(plan.choose(format, options, offsets != nullptr));
  plan.kernel_name_ = full_name(*plan.kernel_, plan.groups_ > 1 ? "g" + std::to_string(plan.group_) : "row",
                                plan.x_groups_ ? plan.group_ : 0);
  LOWBIT_TRY(plan.upload_rows(codes, row_bytes(format, k)));
  LOWBIT_TRY(plan.upload_factors(scales, offsets));
  return plan;
}

int64_t DeviceMatmulPlan::workspace_bytes(int64_t m, cuda::Element x) const {
  return kernel_->workspace_bytes({m, n_, k_, group_, groups_, !offsets_.empty(), x_groups_}, x);
}

Status DeviceMatmulPlan::run(const DeviceRows& x, const float* bias, void* y, cuda::Element y_element, int64_t ldy,
                             uint8_t* workspace, void* stream, bool overlap) const {
  const bool int8 = x.element == cuda::Element::kInt8;
  if (int8 && (activation_ != Activation::kInt8 || x.scales == nullptr))
    return fail(ErrorCode::kShapeMismatch, "matmul x", x.scales == nullptr ? "int8 without scales" : "int8",
                activation_ == Activation::kInt8 ? "int8 with scales" : "floats");
  if (y_element == cuda::Element::kInt8) return fail(ErrorCode::kInvalidArgument, "matmul y", "int8", "a float type");
  if (x.m < 0 || (x.m > 1 && (x.ldx < k_ || ldy < n_)))
    return fail(ErrorCode::kShapeMismatch, "matmul strides",
                std::to_string(x.m) + " rows, ldx " + std::to_string(x.ldx) + ", ldy " + std::to_string(ldy),
                "ldx >= " + std::to_string(k_) + ", ldy >= " + std::to_string(n_));
  if (x.m == 0 || n_ == 0) return {};
  if (workspace == nullptr && workspace_bytes(x.m, x.element) > 0)
    return fail(ErrorCode::kInvalidArgument, "matmul workspace", "none",
                std::to_string(workspace_bytes(x.m, x.element)) + " bytes");
  cuda::Matmul call;
  call.w = {codes_.as<uint8_t>(),
            row_bytes_,
            scales_.empty() ? nullptr : scales_.as<float>(),
            offsets_.empty() ? nullptr : offsets_.as<float>(),
            table_.empty() ? nullptr : table_.as<float>(),
            n_,
            k_,
            group_,
            groups_,
            groups_per_scale_};
  call.bias = bias;
  call.x = x.x;
  call.x_element = x.element;
  call.m = x.m;
  call.ldx = x.ldx;
  call.x_scales = x.scales;
  call.x_groups = x_groups_;
  call.y = y;
  call.y_element = y_element;
  call.ldy = ldy;
  call.workspace = workspace;
  call.stream = stream;
  call.overlap = overlap;
  return kernel_->run(call);
}

Result<DeviceKernelChoice> choose_device_kernel(const QTensor& w, const DeviceMatmulOptions& options) {
  LOWBIT_TRY(check_qtensor(w, "matmul weight"));
  if (!cuda::built()) return not_built();
  const bool dense = is_dense(w.format);
  const Activation activation = dense ? Activation::kF32 : options.activation;
  const Groups g = groups_of(w, activation, options.activation_group);
  const Choice choice =
      choose_kernel(w.format, activation,
                    {1, w.n, w.k, g.group, g.groups, w.scaling.zero != ZeroKind::kNone, g.x_groups}, options.fallback);
  if (choice.kernel == nullptr)
    return fail(ErrorCode::kUnsupported, "matmul", format_info(w.format).name, "a CUDA kernel for it", choice.reason);
  return DeviceKernelChoice{full_name(*choice.kernel, dense ? "" : scaling_name(w.scaling), g.x_groups ? g.group : 0),
                            choice.reason};
}

}  // namespace lowbit
