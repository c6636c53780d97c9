#include "ops/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"
#include "base/try.h"
#include "format/scale_row.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

static_assert(kSuperGroups == kSuperGroup);

bool exact_in_f16(float v) { return f16_to_f32(f32_to_f16(v)) == v; }

PanelShape panel_shape(const QTensor& w, int64_t activation_group) {
  PanelShape s;
  s.k = w.k;
  s.group = std::max<int64_t>(1, w.k);
  s.groups = w.k > 0 ? 1 : 0;
  s.x_group = s.group;
  s.x_groups = s.groups;
  if (is_dense(w.format)) return s;
  s.group = std::max<int64_t>(1, std::min(w.group(), w.k));
  s.groups = ceil_div(w.k, s.group);
  s.x_group = x_group_of(w, activation_group);
  s.x_groups = ceil_div(w.k, s.x_group);
  s.offsets = w.scaling.zero != ZeroKind::kNone;
  s.half_scales = true;
  s.half_offsets = s.offsets;
  s.double_scales = w.scaling.scale == ScaleKind::kDouble && s.groups > 1;
  if ((w.scaling.scale == ScaleKind::kF16 || s.double_scales) && !s.offsets) {
    s.half_scales = !s.double_scales;
    return s;
  }
  const int64_t scale_rows = w.scale_rows();  // rows of one block share their scales: look at one of each
  for (int64_t r = 0, seen = -1; r < w.n && seen + 1 < scale_rows; ++r) {
    if (w.scale_row_of(r) == seen) continue;
    seen = w.scale_row_of(r);
    for (int64_t g = 0; g < w.scale_cols(); ++g) {
      if (w.scaling.scale != ScaleKind::kF16 && !s.double_scales)
        s.half_scales = s.half_scales && exact_in_f16(w.scale(r, g));
      if (s.offsets) s.half_offsets = s.half_offsets && exact_in_f16(w.offset(r, g));
    }
    if (!s.half_scales && !s.half_offsets) break;
  }
  if (s.double_scales) s.half_scales = false;
  return s;
}

/// The kernel that is looked for.
struct Wanted {
  FormatId format;  // or, where a table has no kernel for it, what it is expanded to
  Activation activation;
  bool int8_table;  // kernels that multiply a codebook's entries as integers may be taken
};

bool fits(const MatmulKernel& kernel, FormatId format, const Wanted& wanted, const PanelShape& s) {
  if (s.run > 0 && format_info(format).expanded != format) return false;  // codes that go on from group to group
  return kernel.format == format && kernel.activation == wanted.activation &&
         (!kernel.int8_table || wanted.int8_table) && (!kernel.pairs || has_bf16_pairs()) &&
         (s.groups <= 1 || s.group % kernel.group_multiple == 0) &&
         (s.x_groups <= 1 || s.x_group % kernel.group_multiple == 0);
}

const MatmulKernel* find_kernel(const KernelTable& table, const Wanted& wanted, const PanelShape& s) {
  for (const FormatId format : {wanted.format, format_info(wanted.format).expanded})
    for (int i = 0; i < table.matmul_count; ++i)
      if (fits(table.matmul[i], format, wanted, s)) return table.matmul + i;
  return nullptr;
}

/// Groups of x that no fast kernel takes as they are get columns that are zero in x, up to the next multiple of
/// `multiple`.
PanelShape spread(const PanelShape& s, int64_t multiple) {
  PanelShape wide = s;
  wide.run = s.x_group;
  wide.x_group = round_up(s.x_group, multiple);
  wide.k = s.x_groups * wide.x_group;
  wide.group = s.groups == 1 ? wide.k : s.group / s.x_group * wide.x_group;
  return wide;
}

struct KernelChoice {
  const MatmulKernel* kernel = nullptr;
  std::string reason;
};

KernelChoice choose(const Wanted& wanted, const PanelShape& s, const MatmulOptions& options) {
  KernelChoice choice;
  if (options.reference) {
    choice.kernel = find_kernel(ref_table(), wanted, s);
    choice.reason = "the reference was asked for";
    return choice;
  }
  if (options.first_table != nullptr) {
    choice.kernel = find_kernel(*options.first_table, wanted, s);
    choice.reason = std::string("asked for: ") + options.first_table->isa;
    if (choice.kernel != nullptr) return choice;
  }
  std::string without;
  for (const KernelTable* table : kernel_tables(options.isa)) {
    choice.kernel = find_kernel(*table, wanted, s);
    if (choice.kernel != nullptr) {
      choice.reason = without.empty() ? std::string("strongest instruction set in use: ") + table->isa
                                      : without + " has no kernel for " + format_info(wanted.format).name + " x " +
                                            activation_name(wanted.activation) + " with groups of " +
                                            std::to_string(s.group) + "; " + table->isa + " has";
      return choice;
    }
    without += (without.empty() ? "" : ", ") + std::string(table->isa);
  }
  return choice;
}

/// "matmul_int4_a8__avx2_16x6" -> "matmul_int4_a8_g64__avx2_16x6", or "matmul_int4_a8g64_row__avx2_16x6"
std::string full_name(const MatmulKernel& kernel, const QTensor& w, int64_t activation_group) {
  std::string name = kernel.name;
  if (is_dense(w.format)) return name;
  if (activation_group > 0) name.insert(name.rfind("__"), "g" + std::to_string(activation_group));
  name.insert(name.rfind("__"), "_" + scaling_name(w.scaling));
  return name;
}

/// Scales of the panel's rows, from row `first` of w on, as they are stored.
void gather_double_scales(const QTensor& w, int64_t first, int64_t groups, uint8_t* out, CanonicalRows& rows) {
  const int64_t supers = ceil_div(groups, kSuperGroup);
  int8_t* codes = reinterpret_cast<int8_t*>(out);
  uint16_t* factors = reinterpret_cast<uint16_t*>(out + round_up(rows.rows * groups, 2));
  rows.scale_codes = codes;
  rows.super_scales = factors;
  for (int64_t r = first; r < first + rows.rows; ++r, codes += groups, factors += supers) {
    const int64_t from = w.scale_row_of(r);
    std::copy_n(w.scales.as<int8_t>() + from * groups, groups, codes);
    std::copy_n(w.super_scales.as<uint16_t>() + from * supers, supers, factors);
  }
}

/// Writes the panels; each worker expands the scales of one panel at a time.
Status write_panels(const QTensor& w, const MatmulKernel& kernel, const PanelShape& s, int64_t panel_bytes,
                    Buffer& panels, ThreadPool& pool) {
  const int64_t rows_per_panel = kernel.panel_rows, count = ceil_div(w.n, rows_per_panel);
  const int64_t factor_bytes = round_up(4 * rows_per_panel * s.groups, 64);
  const int64_t scratch_bytes = round_up(kernel.scratch_bytes(0, s), 64);
  const int64_t worker_bytes = scratch_bytes + 3 * factor_bytes;
  LOWBIT_TRY_ASSIGN(Buffer workers, Buffer::allocate(std::max<int64_t>(64, worker_bytes * pool.size()), "matmul load"));
  const bool dense = is_dense(w.format);
  pool.parallel_for(count, std::max<int64_t>(1, 64 / rows_per_panel), [&](int64_t begin, int64_t end, int worker) {
    uint8_t* scratch = workers.as<uint8_t>() + worker * worker_bytes;
    float* scales = reinterpret_cast<float*>(scratch + scratch_bytes);
    float* offsets = reinterpret_cast<float*>(scratch + scratch_bytes + factor_bytes);
    uint8_t* stored = scratch + scratch_bytes + 2 * factor_bytes;  // scales of PanelShape::double_scales
    for (int64_t p = begin; p < end; ++p) {
      CanonicalRows rows;
      rows.rows = std::min(rows_per_panel, w.n - p * rows_per_panel);
      rows.columns = w.k;
      rows.format = w.format;
      rows.codes = w.row(p * rows_per_panel);
      rows.row_stride_bytes = rows.rows > 1 ? w.row(p * rows_per_panel + 1) - rows.codes : 0;
      if (!dense) {
        for (int64_t r = 0; r < rows.rows; ++r) {
          scales_of_row(w, p * rows_per_panel + r, scales + r * s.groups);
          for (int64_t g = 0; s.offsets && g < s.groups; ++g)
            offsets[r * s.groups + g] = w.offset(p * rows_per_panel + r, g);
        }
        rows.scales = scales;
        rows.offsets = s.offsets ? offsets : nullptr;
        if (s.double_scales) gather_double_scales(w, p * rows_per_panel, s.groups, stored, rows);
      }
      kernel.relayout(rows, s, panels.as<uint8_t>() + p * panel_bytes, scratch);
    }
  });
  return {};
}

}  // namespace

int64_t x_group_of(const QTensor& w, int64_t activation_group) {
  const int64_t group = std::max<int64_t>(1, std::min(w.group(), w.k));
  const bool divides = w.group() >= w.k || group % std::max<int64_t>(activation_group, 1) == 0;
  return activation_group > 0 && activation_group < group && divides ? activation_group : group;
}

bool takes_exact_scales(const QTensor& w) {
  const FormatInfo& info = format_info(w.format);
  constexpr int kLargest = 16;  // 16 * 127 * kExactScaleColumns < 2^18, which six bits make 2^24
  return info.kind == ValueKind::kInteger && std::max(-info.min_value, info.max_value) <= kLargest &&
         w.group() == kExactScaleColumns && w.k > w.group();
}

bool has_integers_alone(const QTensor& w) {
  return std::ranges::all_of(w.codebook, [](float v) { return v == std::nearbyint(v) && v >= -128 && v <= 127; });
}

std::string why_float_sums(const QTensor& w, int64_t activation_group) {
  const FormatInfo& info = format_info(w.format);
  if (info.kind == ValueKind::kInteger) return "";
  if (info.kind != ValueKind::kTable) return std::string("values of ") + info.name + " are not integers";
  if (!has_integers_alone(w)) return "the table has values that are not integers of 8 bits";
  int64_t largest = 1;
  for (const float v : w.codebook) largest = std::max(largest, int64_t(std::fabs(v)));
  constexpr int64_t kExact = 1 << 24;  // integers up to here are floats
  const int64_t columns = x_group_of(w, activation_group), longest = kExact / (127 * largest);
  if (columns <= longest) return "";
  return "sums of " + std::to_string(columns) + " columns, more than " + std::to_string(longest) +
         ", may pass 2^24 and be rounded";
}

std::string about_expanded(FormatId stored, FormatId in_memory) {
  if (stored == in_memory) return "";
  return std::string("; ") + format_info(stored).name + " becomes " + format_info(in_memory).name + " in memory";
}

Result<MatmulPlan> MatmulPlan::make(const QTensor& w, const MatmulOptions& options, ThreadPool& pool) {
  LOWBIT_TRY(check_qtensor(w, "matmul weight"));
  MatmulPlan plan;
  plan.format_ = w.format;
  plan.activation_ = is_dense(w.format) ? Activation::kF32 : options.activation;
  plan.n_ = w.n;
  plan.k_ = w.k;
  const bool fp8 = plan.activation_ == Activation::kFp8;
  const bool grouped = fp8 || (plan.activation_ == Activation::kInt8 && options.activation_group > 0 && w.k > 0);
  plan.shape_ = panel_shape(w, grouped ? options.activation_group : 0);
  plan.activation_group_ = grouped ? plan.shape_.x_group : 0;  // before it may be padded
  plan.exact_scales_ = options.exact_scales;
  if (plan.activation_ == Activation::kInt8 && plan.shape_.x_group > kMaxIntegerGroup)
    return fail(ErrorCode::kUnsupported, "matmul weight",
                "one scale for " + std::to_string(plan.shape_.x_group) + " columns",
                "at most " + std::to_string(kMaxIntegerGroup) + " with int8 activations",
                "use a smaller group, or f32 activations");
  const bool int8 = plan.activation_ == Activation::kInt8;
  const std::string floats = int8 ? why_float_sums(w, options.activation_group) : "";
  const Wanted wanted{plan.format_, plan.activation_, int8 && floats.empty()};
  KernelChoice choice = choose(wanted, plan.shape_, options);
  constexpr int64_t kLaneColumns = 4;
  if (int8 && floats.empty() && !options.reference && plan.shape_.x_groups > 1 &&
      plan.shape_.x_group % kLaneColumns != 0) {
    const PanelShape wide = spread(plan.shape_, kLaneColumns);
    KernelChoice other = choose(wanted, wide, options);
    if (other.kernel != nullptr && other.kernel->group_multiple > 1) {
      choice = std::move(other);
      choice.reason += "; groups padded to " + std::to_string(wide.x_group) + " columns";
      plan.shape_ = wide;
    }
  }
  if (choice.kernel == nullptr || (fp8 && plan.shape_.offsets))
    return fail(ErrorCode::kUnsupported, "matmul",
                std::string(format_info(w.format).name) + (plan.shape_.offsets ? " with zero points" : "") + " x " +
                    activation_name(plan.activation_),
                fp8 ? "fp8 weights without zero points" : "a kernel for it");
  plan.kernel_ = choice.kernel;
  plan.blocking_ = &default_blocking(plan.kernel_->name);
  plan.reason_ = std::move(choice.reason);
  if (plan.activation_ != options.activation) plan.reason_ += "; dense weights take f32 activations";
  plan.reason_ += about_expanded(w.format, plan.kernel_->format);
  if (!floats.empty()) plan.reason_ += "; sums of floats: " + floats;
  plan.kernel_name_ = full_name(*plan.kernel_, w, plan.activation_group_);
  if (format_info(w.format).kind == ValueKind::kTable) {
    plan.codebook_ = w.codebook;
    plan.codebook_.resize(16, 0.0f);
  }
  for (size_t i = 0; plan.kernel_->int8_table && i < 16; ++i)
    plan.table_int8_.push_back(static_cast<int8_t>(w.codebook[i % w.codebook.size()]));
  plan.panel_bytes_ = plan.kernel_->panel_bytes(plan.shape_);
  const auto bytes = checked_mul(uint64_t(plan.panel_bytes_), uint64_t(ceil_div(w.n, plan.kernel_->panel_rows)));
  if (!bytes || *bytes > uint64_t(INT64_MAX))
    return fail(ErrorCode::kOutOfMemory, "matmul weight", "sizes that overflow");
  if (*bytes == 0) return plan;
  Arena own;
  Arena& arena = options.arena != nullptr ? *options.arena : own;
  LOWBIT_TRY_ASSIGN(plan.panels_, arena.allocate(int64_t(*bytes), "matmul weight"));
  LOWBIT_TRY(write_panels(w, *plan.kernel_, plan.shape_, plan.panel_bytes_, plan.panels_, pool));
  return plan;
}

Result<MatmulPlan> MatmulPlan::copy(ThreadPool& pool) const {
  MatmulPlan plan;
  static_cast<MatmulChoice&>(plan) = *this;
  if (panels_.empty()) return plan;
  LOWBIT_TRY_ASSIGN(plan.panels_, Buffer::allocate(panels_.size(), "matmul weight", Pages::kLarge));
  constexpr int64_t kPiece = int64_t{1} << 20;
  pool.parallel_for(ceil_div(panels_.size(), kPiece), 1, [&](int64_t begin, int64_t end, int) {
    const int64_t from = begin * kPiece, to = std::min(end * kPiece, panels_.size());
    std::memcpy(plan.panels_.data() + from, panels_.data() + from, static_cast<size_t>(to - from));
  });
  return plan;
}

}  // namespace lowbit
