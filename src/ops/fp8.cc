#include "ops/fp8.h"

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/float.h"
#include "base/try.h"
#include "kernels/registry.h"
#include "tensor/buffer.h"

namespace lowbit {
namespace {

constexpr int64_t kElementsPerChunk = 16384;  // a chunk worth waking a thread for

int64_t rows_per_chunk(int64_t columns) {
  return std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(1, columns));
}

template <class T>
T* row_of(T* p, int64_t row, int64_t stride, Fp8Element element) {
  using Byte = std::conditional_t<std::is_const_v<T>, const uint8_t, uint8_t>;
  return static_cast<Byte*>(p) + row * stride * fp8_element_bytes(element);
}

void to_floats(const void* x, Fp8Element element, int64_t n, float* y) {
  if (element == Fp8Element::kF32) {
    std::copy_n(static_cast<const float*>(x), n, y);
    return;
  }
  const auto* const half = static_cast<const uint16_t*>(x);
  for (int64_t i = 0; i < n; ++i) y[i] = element == Fp8Element::kF16 ? f16_to_f32(half[i]) : bf16_to_f32(half[i]);
}

/// Row r of x after its step, in `row` [columns]; `other` [columns] is room for what it is multiplied by.
void apply_step(const Fp8Quant& q, const VectorOps& ops, int64_t r, float* row, float* other) {
  to_floats(row_of(q.x, r, q.ldx, q.element), q.element, q.columns, row);
  if (q.norm_weight != nullptr) return ops.rms_norm(row, q.norm_weight, q.columns, q.norm_eps, row);
  to_floats(row_of(q.up, r, q.ldup, q.element), q.element, q.columns, other);
  ops.silu_mul(row, other, q.columns, row);
}

/// Rows that share scales: those from row `strip` * row_block on.
Fp8QuantArgs strip_args(const Fp8Quant& q, int64_t strip) {
  const int64_t r = strip * q.row_block;
  Fp8QuantArgs a;
  a.x = row_of(q.x, r, q.ldx, q.element);
  a.element = q.element;
  a.rows = std::min(q.row_block, q.rows - r);
  a.columns = q.columns;
  a.ldx = q.ldx;
  a.block = q.column_block;
  a.power_of_two = q.power_of_two;
  a.codes = q.codes + r * q.ldcodes;
  a.ldcodes = q.ldcodes;
  a.scales = q.scales + strip * (q.scales_by_column ? 1 : q.ldscales);
  a.scale_step = q.scales_by_column ? q.ldscales : 1;
  return a;
}

void clear_padding(const Fp8Quant& q) {
  const int64_t rows = ceil_div(q.rows, q.row_block);
  const int64_t end = std::min(round_up(rows, kFp8ScaleRowMultiple), q.ldscales);
  for (int64_t b = 0; b < ceil_div(q.columns, q.column_block); ++b)
    for (int64_t i = rows; i < end; ++i) q.scales[b * q.ldscales + i] = 0.0f;
}

/// Rows of a that are decoded at once: as many as stay in the second-level cache, whole tiles of every kernel.
int64_t rows_per_pass(int64_t k) {
  constexpr int64_t kCacheBytes = 1 << 20, kMultiple = 12;
  return std::max<int64_t>(kMultiple, kCacheBytes / (4 * std::max<int64_t>(1, k)) / kMultiple * kMultiple);
}

/// Rows [first, first + m) of a against all of b.
struct GemmPass {
  const Fp8Gemm& g;
  const Fp8Kernels& kernels;
  int64_t lda;
  float* values;     // [rows, lda]
  uint8_t* scratch;  // of all workers
  int64_t scratch_bytes;

  void run(int64_t first, int64_t m, ThreadPool& pool) const {
    pool.parallel_for(m, rows_per_chunk(g.k), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        decode_fp8_row(kernels, g.a + (first + r) * g.lda, g.k, kernels.a_factor, kernels.pairs, values + r * lda);
    });
    Fp8GemmArgs a;
    a.a = values, a.m = m, a.k = g.k, a.lda = lda;
    a.a_scale_row = g.a_scales_by_column ? 1 : g.lda_scales;
    a.a_scale_block = g.a_scales_by_column ? g.lda_scales : 1;
    a.a_scales = g.k == 0 ? nullptr : g.a_scales + first * a.a_scale_row;
    a.b = g.b, a.n = g.n, a.ldb = g.ldb;
    a.b_scales = g.b_scales, a.ldb_scales = g.ldb_scales, a.b_rows = g.b_rows;
    a.c = row_of(g.c, first, g.ldc, g.element);
    a.element = g.element, a.ldc = g.ldc;
    const int64_t panel = kernels.panel_rows, panels = ceil_div(g.n, panel);
    const int64_t work = std::max<int64_t>(1, panel * std::max<int64_t>(1, g.k) * m);
    const int64_t grain = std::max<int64_t>(1, kElementsPerChunk * 16 / work);
    pool.parallel_for(panels, grain, [&](int64_t begin, int64_t end, int worker) {
      Fp8GemmArgs part = a;
      part.n0 = begin * panel;
      part.n1 = std::min(end * panel, g.n);
      part.scratch = scratch + worker * scratch_bytes;
      kernels.gemm(part);
    });
  }
};

}  // namespace

const Fp8Kernels& fp8_kernels(Isa at_most) {
#if defined(__x86_64__)
  if (at_most >= Isa::kAvx512) return has_bf16_pairs() ? kAvx512PairsFp8 : kAvx512Fp8;
  if (at_most >= Isa::kAvx2) return kAvx2Fp8;
#endif
  static_cast<void>(at_most);
  return kRefFp8;
}

int64_t fp8_row_words(int64_t k, bool pairs) {
  return (ceil_div(k, int64_t{pairs ? 32 : 16}) | 1) * 16;  // an odd number of cache lines
}

void decode_fp8_row(const Fp8Kernels& kernels, const uint8_t* codes, int64_t k, float factor, bool pairs, float* out) {
  if (!pairs) return kernels.decode(codes, k, factor, out);
  constexpr int64_t kChunk = 256;
  float v[kChunk];
  for (int64_t first = 0; first < k; first += kChunk) {
    const int64_t n = std::min(kChunk, k - first);
    kernels.decode(codes + first, n, factor, v);
    if (n % 2 != 0) v[n] = 0.0f;
    for (int64_t i = 0; 2 * i < n; ++i)
      out[first / 2 + i] = bits_to_f32((f32_to_bits(v[2 * i]) & 0xffff0000u) | f32_to_bits(v[2 * i + 1]) >> 16);
  }
}

Status quantize_fp8(const Fp8Quant& q, Isa isa, ThreadPool& pool) {
  LOWBIT_TRY(check_fp8(q));
  if (q.rows == 0 || q.columns == 0) return {};
  const Fp8Kernels& kernels = fp8_kernels(isa);
  const VectorOps& ops = vector_ops(isa);
  const bool step = q.norm_weight != nullptr || q.up != nullptr;
  Buffer rows;
  if (step) {
    LOWBIT_TRY_ASSIGN(rows, Buffer::allocate(2 * 4 * q.columns * pool.size(), "a row of fp8 activations"));
  }
  const int64_t strips = ceil_div(q.rows, q.row_block);
  const int64_t grain = rows_per_chunk(std::min<int64_t>(q.row_block, q.rows) * q.columns);
  pool.parallel_for(strips, grain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t s = begin; s < end; ++s) {
      Fp8QuantArgs a = strip_args(q, s);
      if (step) {
        float* const row = rows.as<float>() + worker * 2 * q.columns;
        apply_step(q, ops, s, row, row + q.columns);
        a.x = row;
        a.element = Fp8Element::kF32;
      }
      kernels.quantize(a);
    }
  });
  if (q.scales_by_column) clear_padding(q);
  return {};
}

Status dequantize_fp8(const Fp8Dequant& d, Isa isa, ThreadPool& pool) {
  LOWBIT_TRY(check_fp8(d));
  if (d.rows == 0 || d.columns == 0) return {};
  const Fp8Kernels& kernels = fp8_kernels(isa);
  pool.parallel_for(d.rows, rows_per_chunk(d.columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      Fp8DequantArgs a;
      a.codes = d.codes + r * d.ldcodes;
      a.columns = d.columns;
      a.block = d.column_block;
      a.scales = d.scales + r / d.row_block * d.ldscales;
      a.y = row_of(d.y, r, d.ldy, d.element);
      a.element = d.element;
      kernels.dequantize(a);
    }
  });
  return {};
}

Status gemm_fp8(const Fp8Gemm& g, Isa isa, ThreadPool& pool) {
  LOWBIT_TRY(check_fp8(g));
  if (g.m == 0 || g.n == 0) return {};
  const Fp8Kernels& kernels = fp8_kernels(isa);
  const int64_t pass = std::min(g.m, rows_per_pass(g.k));
  const int64_t lda = fp8_row_words(g.k, kernels.pairs);
  LOWBIT_TRY_ASSIGN(Buffer values, Buffer::allocate(4 * pass * lda, "values of fp8 activations"));
  const int64_t scratch_bytes = round_up(kernels.gemm_scratch_bytes(pass), 64);
  LOWBIT_TRY_ASSIGN(Buffer scratch, Buffer::allocate(scratch_bytes * pool.size(), "scratch of an fp8 product"));
  const GemmPass run{g, kernels, lda, values.as<float>(), scratch.as<uint8_t>(), scratch_bytes};
  for (int64_t first = 0; first < g.m; first += pass) run.run(first, std::min(pass, g.m - first), pool);
  return {};
}

Status grouped_gemm_fp8(const Fp8Gemm& g, const Fp8Groups& groups, Isa isa, ThreadPool& pool) {
  LOWBIT_TRY(check_fp8(g, groups));
  for (int64_t i = 0, last = 0; groups.ends != nullptr && i < groups.count; last = groups.ends[i++])
    if (groups.ends[i] < last || groups.ends[i] > g.m)
      return fail(ErrorCode::kInvalidArgument, "fp8 group_ends",
                  std::to_string(groups.ends[i]) + " at " + std::to_string(i),
                  "ascending ends, at most " + std::to_string(g.m));
  for (int64_t i = 0; groups.rows != nullptr && i < groups.count; ++i)
    if (groups.rows[i] < 0 || groups.rows[i] > groups.rows_of_group)
      return fail(ErrorCode::kInvalidArgument, "fp8 group_rows",
                  std::to_string(groups.rows[i]) + " at " + std::to_string(i),
                  "0 to " + std::to_string(groups.rows_of_group));
  for (int64_t i = 0; i < groups.count; ++i) {
    const auto [first, last] = fp8_group_range(groups, i, g.m);
    Fp8Gemm part = g;
    part.m = last - first;
    part.a += first * g.lda;
    part.a_scales += g.a_scales_by_column ? first : first * g.lda_scales;
    part.b += i * g.n * g.ldb;
    part.b_scales += i * ceil_div(g.n, g.b_rows) * g.ldb_scales;
    part.c = static_cast<uint8_t*>(g.c) + first * g.ldc * fp8_element_bytes(g.element);
    LOWBIT_TRY(gemm_fp8(part, isa, pool));
  }
  return {};
}

}  // namespace lowbit
