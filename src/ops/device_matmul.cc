#include "ops/device_matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/checked.h"
#include "base/try.h"
#include "format/registry.h"
#include "kernels/cuda_lookup.h"
#include "ops/device_codes.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;

bool is_fallback(const cuda::MatmulKernel& k) { return std::string_view(k.name).ends_with("__cuda_warp"); }

constexpr int64_t kManyRows = 64;  // what kernels for more rows than a GEMV takes are chosen with

struct Choice {
  const cuda::MatmulKernel* kernel = nullptr;
  std::string reason;
};

/// `most_rows`: of x that the plan will see, 0: any number. A kernel for one row has an order of the weight for nothing
/// else.
Choice choose_kernel(FormatId format, Activation activation, const cuda::MatmulShape& shape, bool fallback,
                     int64_t most_rows) {
  Choice c;
  for (const cuda::MatmulKernel& k : cuda::matmul_kernels()) {
    if (k.format != format || k.activation != activation || (fallback && !is_fallback(k))) continue;
    if (k.most_rows > 0 && shape.m > k.most_rows) continue;
    if (k.most_rows == 1 && most_rows != 1) continue;
    const std::string refusal = k.refuses(shape);
    if (refusal.empty()) {
      c.kernel = &k;
      if (fallback) {
        c.reason = "the fallback was asked for";
      } else if (activation == Activation::kInt8 && !is_fallback(k)) {
        c.reason = "integer weights and int8 activations: products stay integers";
      } else if (!is_fallback(k)) {
        c.reason = std::string(format_info(format).kind == ValueKind::kFloat ? "E4M3" : "integer") +
                   " weights, exact in 16 bits; f32 activations in three parts";
      } else if (c.reason.empty()) {
        c.reason = activation == Activation::kF32                  ? "f32 activations"
                   : format_info(format).kind == ValueKind::kTable ? "values of a table"
                                                                   : "values that are not integers";
      }
      return c;
    }
    c.reason = std::string(k.name) + " does not take " + refusal;
  }
  return c;
}

/// The kernels for few and for many tokens; `many` is null where one kernel does both.
struct KernelPair {
  const cuda::MatmulKernel *few = nullptr, *many = nullptr;
  std::string reason;
};
KernelPair choose_kernels(FormatId format, Activation activation, cuda::MatmulShape shape,
                          const DeviceMatmulOptions& options) {
  shape.m = 1;
  Choice few = choose_kernel(format, activation, shape, options.fallback, options.most_rows);
  KernelPair pair{few.kernel, nullptr, std::move(few.reason)};
  const int64_t most = few.kernel == nullptr ? 0 : few.kernel->most_rows;
  if (most == 0 || (options.most_rows > 0 && options.most_rows <= most)) return pair;
  shape.m = kManyRows;
  pair.many = choose_kernel(format, activation, shape, options.fallback, options.most_rows).kernel;
  // A GEMV that takes a few rows at a time is faster than one warp per row of the weight.
  if (pair.many != nullptr && is_fallback(*pair.many)) pair.many = nullptr;
  return pair;
}

/// [groups, pitch] of factor(row, scale), each scale's for all of its groups; zeros behind the last row. Some rows at a
/// time, so that what is written lies together.
template <class Factor>
std::vector<float> factors_by_group(int64_t n, int64_t groups, int64_t groups_per_scale, const Factor& factor) {
  constexpr int64_t kRows = 16;
  const int64_t pitch = cuda::factor_rows(n);
  std::vector<float> all(static_cast<size_t>(pitch * groups));
  for (int64_t r = 0; r < n; r += kRows)
    for (int64_t g = 0; g < groups; g += groups_per_scale)
      for (int64_t i = r; i < std::min(n, r + kRows); ++i)
        all[static_cast<size_t>(g * pitch + i)] = factor(i, g / groups_per_scale);
  for (int64_t g = 0; g < groups; ++g)
    if (const int64_t first = g - g % groups_per_scale; first != g)
      std::copy_n(all.begin() + first * pitch, pitch, all.begin() + g * pitch);
  return all;
}

struct Groups {
  int64_t group, groups, groups_per_scale;
  bool x_groups;
};
Groups groups_of(const QTensor& w, Activation activation, int64_t activation_group) {
  if (is_dense(w.format)) return {std::max<int64_t>(1, w.k), 1, 1, false};
  const bool grouped = activation == Activation::kInt8 && activation_group > 0 && w.k > 0;
  const int64_t group = x_group_of(w, grouped ? activation_group : 0);
  const int64_t groups = std::max<int64_t>(1, ceil_div(w.k, group));
  return {group, groups, w.group() >= w.k ? groups : w.group() / group, grouped};
}

cuda::MatmulShape shape_of(const QTensor& w, const Groups& g, bool exact_scales) {
  const bool offsets = w.scaling.zero != ZeroKind::kNone;
  return {1, w.n, w.k, g.group, g.groups, offsets, g.x_groups, g.groups_per_scale, 0, 0, exact_scales};
}

std::string full_name(const cuda::MatmulKernel& kernel, const std::string& scaling, int64_t x_group) {
  std::string name = kernel.name;
  if (x_group > 0) name.insert(name.rfind("__"), "g" + std::to_string(x_group));
  if (!scaling.empty()) name.insert(name.rfind("__"), "_" + scaling);
  return name;
}

/// "; more than 8 rows of floats or one of codes: matmul_..." and which instance 64 rows get.
std::string about_many(const KernelPair& pair, cuda::MatmulShape shape, const std::string& scaling, int64_t x_group) {
  const cuda::MatmulKernel& kernel = pair.many != nullptr ? *pair.many : *pair.few;
  if (kernel.instance == nullptr) return "";
  shape.m = kManyRows;
  const std::string rows = std::to_string(kManyRows) + " rows: " + kernel.instance_name(shape, kernel.instance(shape));
  if (pair.many == nullptr) return "; " + rows;
  return "; more than " + std::to_string(pair.few->most_rows) +
         " rows of floats, or one of codes: " + full_name(kernel, scaling, x_group) + " (" + rows + ")";
}

tl::unexpected<Error> not_built() {
  return fail(ErrorCode::kUnsupported, "device cuda", "a build without CUDA", "cpu", "build where nvcc is installed");
}

/// The kernel for weights that backend/cuda/fp8_weight.h takes.
Result<DeviceKernelChoice> choose_fp8_kernel(const QTensor& w) {
  const std::string scaling = scaling_name(w.scaling);
  if (w.format != FormatId::kFp8 || (scaling != "128x128" && scaling != "g128"))
    return fail(ErrorCode::kUnsupported, "matmul", "fp8 activations with scales of " + scaling,
                "fp8 weights of 128x128 or g128 on a GPU", "--act f32, or --device cpu");
  return DeviceKernelChoice{
      "matmul_fp8_afp8_" + scaling + "__cuda",
      "fp8 activations: tensor cores of compute capability 9.0 for 128x128, else the CPU's order of sums"};
}
tl::unexpected<Error> too_long_group(int64_t group) {
  return fail(ErrorCode::kUnsupported, "matmul weight", "one scale for " + std::to_string(group) + " columns",
              "at most " + std::to_string(kMaxIntegerGroup) + " with int8 activations",
              "use a smaller group, or f32 activations");
}

/// A product whose groups of x have `wide` columns in the kernel's order, which is made of activation groups of 32.
cuda::MatmulShape wide_shape(int64_t m, int64_t n, int64_t k, const Groups& g, int64_t wide) {
  const int64_t columns = round_up(g.groups * wide, 128);
  return {m, n, columns, 32, columns / 32, false, true, wide / 32, g.group, k};
}

/// Columns that groups of x get where these are no multiple of 32, if a kernel takes them then; else 0.
int64_t wide_group(FormatId format, int64_t n, int64_t k, const Groups& g, bool offsets,
                   const DeviceMatmulOptions& options) {
  if (!g.x_groups || g.groups <= 1 || g.groups_per_scale != 1 || g.group % 32 == 0 || g.group > 128) return 0;
  if (offsets || options.fallback || format_info(format).kind == ValueKind::kFloat) return 0;
  const int64_t wide = g.group < 32 ? 32 : g.group < 64 ? 64 : 128;
  if (wide - g.group < codes_before(format)) return 0;
  const KernelPair pair = choose_kernels(format, Activation::kInt8, wide_shape(1, n, k, g, wide), options);
  return pair.few != nullptr && pair.few->instance != nullptr ? wide : 0;
}
std::string about_wide(int64_t group, int64_t wide) {
  return wide == 0 ? "" : "; groups of " + std::to_string(group) + " columns take the room of " + std::to_string(wide);
}

/// Whether sums of a table's values are sums of integers: with int8 activations they have the same bits then.
bool sums_integers(const QTensor& w, const DeviceMatmulOptions& options) {
  return options.activation == Activation::kInt8 ? why_float_sums(w, options.activation_group).empty()
                                                 : has_integers_alone(w);
}

/// Whether kernels take w's codes in `format`, its own or what it expands to, and look them up themselves.
bool keeps_indices(const QTensor& w, FormatId format, const DeviceMatmulOptions& options) {
  if (trellis_of(format) == nullptr && !can_look_up_sorted(w.codebook)) return false;
  const Groups g = groups_of(w, options.activation, options.activation_group);
  if (wide_group(format, w.n, w.k, g, w.scaling.zero != ZeroKind::kNone, options) > 0) return true;
  const KernelPair pair = choose_kernels(format, options.activation, shape_of(w, g, options.exact_scales), options);
  return pair.few != nullptr && pair.few->instance != nullptr;
}

/// The format whose kernels multiply w. A table of integers becomes these where no kernel takes its indices.
FormatId format_on_device(const QTensor& w, const DeviceMatmulOptions& options) {
  const FormatInfo& info = format_info(w.format);
  const bool integers = info.kind == ValueKind::kTable && !options.fallback && sums_integers(w, options);
  if (!integers) return info.expanded;
  for (const FormatId format : {w.format, info.expanded})
    if (keeps_indices(w, format, options)) return format;
  return FormatId::kInt8;
}

constexpr const char* kFloatTable = "values of a table";
/// Without kernels that sum integers where sums are of floats.
DeviceMatmulOptions options_for(const QTensor& w, DeviceMatmulOptions options) {
  options.fallback =
      options.fallback || (format_info(w.format).kind == ValueKind::kTable && !sums_integers(w, options));
  return options;
}

Result<Buffer> allocate_in(Arena* arena, int64_t bytes, const char* what) {
  return arena != nullptr ? arena->allocate(bytes, what) : cuda::allocate(bytes, what);
}

}  // namespace

int DeviceMatmulPlan::bracket(int64_t m) {
  return std::min(kBrackets - 1, m <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<uint64_t>(m - 1))));
}

cuda::MatmulShape DeviceMatmulPlan::shape(int64_t m) const {
  if (wide_ > 0) return wide_shape(m, n_, k_, {group_, groups_, groups_per_scale_, x_groups_}, wide_);
  return {m, n_, k_, group_, groups_, has_offsets_, x_groups_, groups_per_scale_, 0, 0, exact_scales_};
}

Status DeviceMatmulPlan::choose(FormatId format, const DeviceMatmulOptions& options) {
  if (!cuda::built()) return not_built();
  if (activation_ == Activation::kInt8 && group_ > kMaxIntegerGroup) return too_long_group(group_);
  const KernelPair pair = choose_kernels(format, activation_, shape(1), options);
  if (pair.few == nullptr)
    return fail(ErrorCode::kUnsupported, "matmul", format_info(format).name, "a CUDA kernel for it", pair.reason);
  few_.kernel = pair.few;
  many_.kernel = pair.many;
  reason_ = pair.reason + about_many(pair, shape(1), scaling_, scale_columns());
  for (Order* order : {&few_, &many_}) {
    if (order->kernel == nullptr) continue;
    order->row_bytes = order->kernel->row_bytes(kernel_k());
    for (int i = 0; order->kernel->instance != nullptr && i < kBrackets; ++i)
      order->instances[static_cast<size_t>(i)] = order->kernel->instance(shape(int64_t{1} << i));
  }
  return {};
}

std::string DeviceMatmulPlan::kernel_name(int64_t m, cuda::Element x) const {
  const Order& order = order_for(m, x);
  std::string name = full_name(*order.kernel, scaling_, scale_columns());
  if (order.kernel->instance_name != nullptr)
    name += " (" + order.kernel->instance_name(shape(m), order.instances[static_cast<size_t>(bracket(m))]) + ")";
  return name;
}

Status DeviceMatmulPlan::upload_order(Order& order, const uint8_t* rows, int64_t row_bytes, Arena* arena) const {
  const int64_t tile = order.kernel->tile_rows;
  const auto bytes = checked_mul(static_cast<uint64_t>(round_up(n_, tile)), static_cast<uint64_t>(order.row_bytes));
  if (!bytes || *bytes > static_cast<uint64_t>(INT64_MAX))
    return fail(ErrorCode::kOutOfMemory, "matmul weight", "sizes that overflow");
  LOWBIT_TRY_ASSIGN(order.codes, allocate_in(arena, static_cast<int64_t>(*bytes), "matmul weight"));
  if (n_ == 0 || row_bytes == 0) return cuda::fill(order.codes, 0);
  const int64_t rows_at_once = std::min(n_, round_up(std::max<int64_t>(kStagingBytes / row_bytes, 1), tile));
  LOWBIT_TRY_ASSIGN(Buffer staging, cuda::allocate(rows_at_once * row_bytes, "matmul weight"));
  for (int64_t r = 0; r < n_; r += rows_at_once) {
    const int64_t count = std::min(rows_at_once, n_ - r);
    LOWBIT_TRY(cuda::upload(staging, rows + r * row_bytes, count * row_bytes));
    LOWBIT_TRY(order.kernel->relayout(staging.as<uint8_t>(), row_bytes, count, kernel_k(),
                                      order.codes.as<uint8_t>() + r * order.row_bytes, nullptr));
    LOWBIT_TRY(cuda::synchronize(nullptr));
  }
  return {};
}

Status DeviceMatmulPlan::upload_rows(const uint8_t* rows, int64_t row_bytes, Arena* arena) {
  LOWBIT_TRY(upload_order(few_, rows, row_bytes, arena));
  return many_.kernel == nullptr ? Status{} : upload_order(many_, rows, row_bytes, arena);
}

template <class Factor>
Status DeviceMatmulPlan::upload_factors(Buffer& to, const Factor& factor, Arena* arena) const {
  const cuda::MatmulShape s = shape(1);
  const std::vector<float> all =
      factors_by_group(n_, s.groups, std::max<int64_t>(s.groups_per_scale, 1), [&](int64_t r, int64_t g) {
        return wide_ > 0 && g >= groups_ ? 0.0F : factor(r, g);  // behind the last group there may be room
      });
  const int64_t bytes = int64_t{sizeof(float)} * static_cast<int64_t>(all.size());
  LOWBIT_TRY_ASSIGN(to, allocate_in(arena, bytes, "matmul scales"));
  return cuda::upload(to, all.data(), bytes);
}

Result<DeviceMatmulPlan> DeviceMatmulPlan::make(const QTensor& w, const DeviceMatmulOptions& wanted) {
  LOWBIT_TRY(check_qtensor(w, "matmul weight"));
  const DeviceMatmulOptions options = options_for(w, wanted);
  if (const FormatId format = format_on_device(w, options); format != w.format) {
    LOWBIT_TRY_ASSIGN(const QTensor expanded,
                      format == FormatId::kInt8 ? with_integers_of_table(w, options.pool) : expand(w));
    LOWBIT_TRY_ASSIGN(DeviceMatmulPlan of_expanded, make(expanded, options));
    of_expanded.reason_ += about_expanded(w.format, expanded.format);
    return of_expanded;
  }
  if (!options.fallback && wants_sorted_table(w)) {
    LOWBIT_TRY_ASSIGN(const QTensor sorted, with_sorted_table(w, options.pool));
    return make(sorted, options);
  }
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
  plan.has_offsets_ = w.scaling.zero != ZeroKind::kNone;
  plan.exact_scales_ = options.exact_scales;
  plan.scaling_ = dense ? "" : scaling_name(w.scaling);
  plan.wide_ = wide_group(w.format, w.n, w.k, g, plan.has_offsets_, options);
  LOWBIT_TRY(plan.choose(w.format, options));
  if (options.fallback != wanted.fallback) plan.reason_ = kFloatTable;
  plan.reason_ += about_wide(g.group, plan.wide_);
  if (plan.wide_ > 0) {
    LOWBIT_TRY_ASSIGN(const Buffer rows, widen_groups(w, g.group, plan.wide_, plan.kernel_k(), options.pool));
    LOWBIT_TRY(plan.upload_rows(rows.as<uint8_t>(), row_bytes(w.format, plan.kernel_k()), options.arena));
  } else {
    LOWBIT_TRY(plan.upload_rows(w.codes.as<uint8_t>(), row_bytes(w.format, w.k), options.arena));
  }
  // Tensor cores know no NaN among codes: a group that holds one has it as its scale.
  const bool may_hold_nan = w.format == FormatId::kFp8 && !is_fallback(*plan.few_.kernel);
  const auto scale = [&](int64_t r, int64_t s) { return may_hold_nan && holds_nan(w, r, s) ? NAN : w.scale(r, s); };
  const auto offset = [&](int64_t r, int64_t s) { return w.offset(r, s); };
  if (!dense) LOWBIT_TRY(plan.upload_factors(plan.scales_, scale, options.arena));
  if (plan.has_offsets_) LOWBIT_TRY(plan.upload_factors(plan.offsets_, offset, options.arena));
  if (!w.codebook.empty()) {
    std::vector<float> table = w.codebook;
    table.resize(16, 0.0f);
    LOWBIT_TRY_ASSIGN(plan.table_, allocate_in(options.arena, 4 * 16, "codebook"));
    LOWBIT_TRY(cuda::upload(plan.table_, table.data(), 4 * 16));
    if (has_integers_alone(w)) plan.table_bytes_ = cuda::byte_table(table);
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
  plan.has_offsets_ = offsets != nullptr;
  plan.scaling_ = plan.groups_ > 1 ? "g" + std::to_string(plan.group_) : "row";
  LOWBIT_TRY(plan.choose(format, options));
  LOWBIT_TRY(plan.upload_rows(codes, row_bytes(format, k), options.arena));
  const auto of = [&plan](const float* from) {
    return [from, groups = plan.groups_](int64_t r, int64_t g) { return from[r * groups + g]; };
  };
  LOWBIT_TRY(plan.upload_factors(plan.scales_, of(scales), options.arena));
  if (offsets != nullptr) LOWBIT_TRY(plan.upload_factors(plan.offsets_, of(offsets), options.arena));
  return plan;
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
  return order_for(x.m, x.element).kernel->run(call(x, bias, y, y_element, ldy, workspace, stream, overlap));
}

cuda::Matmul DeviceMatmulPlan::call(const DeviceRows& x, const float* bias, void* y, cuda::Element y_element,
                                    int64_t ldy, uint8_t* workspace, void* stream, bool overlap) const {
  const Order& order = order_for(x.m, x.element);
  const cuda::MatmulShape s = shape(x.m);
  cuda::Matmul call;
  call.w = {order.codes.as<uint8_t>(),
            order.row_bytes,
            scales_.empty() ? nullptr : scales_.as<float>(),
            offsets_.empty() ? nullptr : offsets_.as<float>(),
            table_.empty() ? nullptr : table_.as<float>(),
            n_,
            s.k,
            s.group,
            s.groups,
            s.groups_per_scale};
  call.spread = s.spread, call.x_k = s.x_k;
  call.table = table_bytes_;
  call.bias = bias;
  call.x = x.x;
  call.x_element = x.element;
  call.m = x.m;
  call.ldx = x.ldx;
  call.x_scales = x.scales;
  call.x_groups = x_groups_;
  call.exact_scales = exact_scales_;
  call.y = y;
  call.y_element = y_element;
  call.ldy = ldy;
  call.workspace = workspace;
  call.stream = stream;
  call.overlap = overlap;
  call.instance = order.instances[static_cast<size_t>(bracket(x.m))];
  return call;
}

bool DeviceMatmulPlan::takes_halves() const {
  return activation_ == Activation::kF32 && few_.kernel != nullptr && !is_fallback(*few_.kernel);
}

bool takes_halves(const QTensor& w) {
  if (is_dense(w.format)) return false;
  const Groups g = groups_of(w, Activation::kF32, 0);
  const DeviceMatmulOptions floats{.activation = Activation::kF32};
  const KernelPair pair = choose_kernels(format_on_device(w, floats), Activation::kF32, shape_of(w, g, false), floats);
  return pair.few != nullptr && !is_fallback(*pair.few);
}

Result<DeviceKernelChoice> choose_device_kernel(const QTensor& w, const DeviceMatmulOptions& wanted) {
  LOWBIT_TRY(check_qtensor(w, "matmul weight"));
  const DeviceMatmulOptions options = options_for(w, wanted);
  if (!cuda::built()) return not_built();
  const bool dense = is_dense(w.format);
  if (!dense && options.activation == Activation::kFp8) return choose_fp8_kernel(w);
  const Activation activation = dense ? Activation::kF32 : options.activation;
  const Groups g = groups_of(w, activation, options.activation_group);
  const FormatId format = format_on_device(w, options);
  const bool offsets = w.scaling.zero != ZeroKind::kNone;
  const int64_t wide = wide_group(format, w.n, w.k, g, offsets, options);
  const cuda::MatmulShape shape = wide > 0 ? wide_shape(1, w.n, w.k, g, wide) : shape_of(w, g, options.exact_scales);
  const KernelPair pair = choose_kernels(format, activation, shape, options);
  if (pair.few == nullptr)
    return fail(ErrorCode::kUnsupported, "matmul", format_info(w.format).name, "a CUDA kernel for it", pair.reason);
  const std::string scaling = dense ? "" : scaling_name(w.scaling);
  const int64_t x_group = options.exact_scales ? kExactScaleColumns : g.x_groups ? g.group : 0;
  const std::string reason = options.fallback != wanted.fallback ? kFloatTable : pair.reason;
  return DeviceKernelChoice{full_name(*pair.few, scaling, x_group), reason + about_many(pair, shape, scaling, x_group) +
                                                                        about_wide(g.group, wide) +
                                                                        about_expanded(w.format, pair.few->format)};
}

}  // namespace lowbit
