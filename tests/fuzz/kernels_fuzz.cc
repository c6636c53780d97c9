// Kernels of every instruction set against the reference, bit for bit: shapes, formats, scalings and x from the input.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/cpu.h"
#include "fuzz_bytes.h"
#include "fuzz_limits.h"
#include "kernels/registry.h"
#include "kernels/tables.h"
#include "ops/matmul.h"
#include "tests/conformance/matmul_cases.h"

namespace {

using namespace lowbit;  // NOLINT
using conformance::Case;
using fuzz::Bytes;

// Most of the time makes eight plans of one input: each scale of each row is looked for in every one of them, which
// takes longest for ranges of rows and groups of few columns.
constexpr int64_t kMostProducts = 100'000, kMostWeights = 40'000, kMostScales = 4096;

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all = [] {
    std::vector<Isa> found;
    for (const Isa isa : {Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
      if (isa_available(isa)) found.push_back(isa);
    for (const Isa isa : found) std::fprintf(stderr, "kernels: %s against the reference\n", isa_name(isa));
    return found;
  }();
  return all;
}

/// Any NaN equals any NaN.
bool same(float a, float b) { return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

void compare(const std::vector<float>& want, const std::vector<float>& got, const char* what) {
  fuzz::require(want.size() == got.size(), what);
  for (size_t i = 0; i < want.size(); ++i) {
    if (same(want[i], got[i])) continue;
    std::fprintf(stderr, "fuzz: element %zu of %zu: %a, wanted %a\n", i, want.size(), double(got[i]), double(want[i]));
    fuzz::require(false, what);
  }
}

/// Numbers of any bits, the input's over and over.
std::vector<float> floats(Bytes& in, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  const auto bytes = in.left();
  for (size_t i = 0; i < x.size() && bytes.size() >= 4; ++i)
    std::memcpy(&x[i], &bytes[i * 4 % (bytes.size() - 3)], sizeof x[i]);
  return x;
}

Case case_of(Bytes& in) {
  Case c;
  do c.format = formats()[static_cast<size_t>(in.below(static_cast<int64_t>(formats().size())))].id;
  while (!format_info(c.format).canonical && !in.empty());
  c.seed = in.number<uint16_t>();
  c.m = in.below(40);
  c.n = in.below(140);
  c.k = 1 + in.below(900);
  c.ldx = c.k + in.below(3);
  c.ldy = c.n + in.below(3);
  c.bias = in.below(2) == 0;
  c.activation_group = in.pick<int64_t>({0, 0, 32, 64, 96, 128, 256});
  c.shift = in.below(4);
  c.weights = in.pick({conformance::Fill::kNormal, conformance::Fill::kExtreme});
  Scaling& s = c.scaling;
  s.k_block = in.below(4) == 0 ? int64_t{Scaling::kAll} : 1 + in.below(400);
  s.n_block = in.pick<int64_t>({1, 1, Scaling::kAll, Scaling::kRowRanges, 3, 16, 128});
  s.scale = in.pick({ScaleKind::kF16, ScaleKind::kF32, ScaleKind::kBf16, ScaleKind::kPow2, ScaleKind::kDouble});
  s.zero = in.pick({ZeroKind::kNone, ZeroKind::kOffset, ZeroKind::kPointI8, ZeroKind::kPointF16});
  return c;
}

constexpr float kUntouched = 12345.5f;

/// Nothing where the plan is refused.
std::vector<float> product(const Case& c, const QTensor& w, const std::vector<float>& x, Activation activation, Isa isa,
                           bool reference) {
  static ThreadPool one(1), three(3);
  ThreadPool& pool = reference ? one : three;
  const auto plan = MatmulPlan::make(w, {activation, isa, reference, c.activation_group}, pool);
  if (!plan) return {};
  ActivationRows rows;
  fuzz::require(rows.prepare(plan->activation(), x.data() + c.shift, c.m, c.k, c.ldx, isa, pool).has_value(), "x");
  std::vector<float> bias(static_cast<size_t>(c.n + c.shift), 0.5f),
      y(static_cast<size_t>(c.shift + c.m * c.ldy + 1), kUntouched);
  fuzz::require(plan->run(rows, c.bias ? bias.data() + c.shift : nullptr, y.data() + c.shift, c.ldy, pool).has_value(),
                "a run");
  return y;
}

bool is_small(const Case& c) {
  const int64_t groups = c.scaling.k_block == Scaling::kAll ? 1 : ceil_div(c.k, c.scaling.k_block);
  return c.m * c.n * c.k <= kMostProducts && c.n * c.k <= kMostWeights && c.n * groups <= kMostScales;
}

void matmul(Bytes& in) {
  const Case c = case_of(in);
  if (!format_info(c.format).canonical || !is_small(c)) return;
  if (c.n == 0 && c.scaling.n_block == Scaling::kRowRanges) return;
  const auto w = conformance::try_weights(c);
  if (!w) return;
  const std::vector<float> x = floats(in, c.m * c.ldx + 1 + c.shift);
  for (const Activation activation : {Activation::kInt8, Activation::kF32}) {
    const auto want = product(c, *w, x, activation, Isa::kScalar, true);
    for (const Isa isa : isas()) compare(want, product(c, *w, x, activation, isa, false), c.name().c_str());
  }
}

void elementwise(Bytes& in) {
  const int64_t n = 1 + in.below(600);
  const float eps = in.pick({0.0f, 1e-5f, 1.0f});
  const std::vector<float> x = floats(in, 2 * n), a(x.begin(), x.begin() + n), b(x.begin() + n, x.end());
  std::vector<float> logits = a;
  float most = std::numeric_limits<float>::lowest();
  for (float& l : logits) {
    if (!(l < std::numeric_limits<float>::infinity())) l = 0;
    most = std::max(most, l);
  }
  const float temperature = in.pick({1e-30f, 0.5f, 1.0f, 1e6f});
  for (const Isa isa : isas()) {
    std::vector<float> y[2] = {a, a};
    std::vector<uint16_t> half[2];
    uint64_t weights[2];
    for (int i = 0; i < 2; ++i) {
      const VectorOps& ops = i == 0 ? kRefVectorOps : vector_ops(isa);
      std::vector<float> out(static_cast<size_t>(n));
      const auto keep = [&](const std::vector<float>& v) { y[i].insert(y[i].end(), v.begin(), v.end()); };
      ops.silu_mul(a.data(), b.data(), n, out.data()), keep(out);
      ops.rms_norm(a.data(), b.data(), n, eps, out.data()), keep(out);
      keep({ops.rms_factor(a.data(), n, eps), ops.dot_f32(a.data(), b.data(), n)});
      out = a, ops.add(b.data(), n, out.data()), keep(out);
      out = a, ops.scale(out.data(), b[0], n), keep(out);
      out = a, ops.hadamard(out.data(), n, n & -n), keep(out);
      out = a, ops.rope(out.data(), b.data(), b.data() + n / 2, n / 2), keep(out);
      weights[i] = ops.sum_token_weights(logits.data(), n, most, temperature);
      half[i].resize(static_cast<size_t>(n));
      ops.f32_to_f16(a.data(), n, half[i].data());
    }
    compare(y[0], y[1], "vector operations that differ");
    fuzz::require(half[0] == half[1], "halves that differ");
    fuzz::require(weights[0] == weights[1], "weights of tokens that differ");
  }
}

void quantized_rows(Bytes& in) {
  const int64_t n = 1 + in.below(600), group = in.pick<int64_t>({n, 32, 64, 128}), padded = (n + 63) / 64 * 64;
  const bool weight = in.below(2) == 1;
  const float factor = weight ? in.number<float>() : 1.0f;
  const std::vector<float> x = floats(in, n), w = floats(in, n);
  const bool exact = in.below(2) == 1;
  const auto groups = static_cast<size_t>((n + group - 1) / group);
  for (const Isa isa : isas()) {
    std::vector<int8_t> codes[2];
    std::vector<float> scales[2];
    std::vector<int32_t> sums[2];
    for (int i = 0; i < 2; ++i) {
      codes[i].assign(static_cast<size_t>(padded) + 1, 99), scales[i].assign(groups, -1), sums[i].assign(groups, 7);
      (i == 0 ? kRefVectorOps : vector_ops(isa))
          .quantize_groups_int8(x.data(), weight ? w.data() : nullptr, factor, n, group, padded, exact, codes[i].data(),
                                scales[i].data(), sums[i].data());
    }
    compare(scales[0], scales[1], "scales that differ");
    fuzz::require(codes[0] == codes[1] && sums[0] == sums[1], "codes that differ");
  }
}

void attention(Bytes& in) {
  const int64_t d = 1 + in.below(140), queries = in.below(20), ldo = (d + 15) / 16 * 16;
  std::vector<int32_t> begin, end;
  for (int64_t j = 0; j < queries; ++j) {
    begin.push_back(static_cast<int32_t>(in.below(kAttentionSpan)));
    end.push_back(begin.back() + static_cast<int32_t>(in.below(kAttentionSpan + 1 - begin.back())));
  }
  const std::vector<float> q = floats(in, queries * d), rows = floats(in, kAttentionSpan * d);
  std::vector<uint16_t> pages(rows.size());
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(rows[i]));
  for (const Isa isa : isas()) {
    std::vector<float> y[2];
    for (int i = 0; i < 2; ++i) {
      const VectorOps& ops = i == 0 ? kRefVectorOps : vector_ops(isa);
      std::vector<float> m(static_cast<size_t>(queries), 5), l(m), o(static_cast<size_t>(queries * ldo), 7),
          scratch(static_cast<size_t>(queries * kAttentionSpan + kKvPage * ldo + 16));
      SpanArgs a;
      for (int64_t p = 0; p < kSpanPages; ++p) a.keys[p] = a.values[p] = pages.data() + p * kKvPage * d;
      a.d = a.ldq = d, a.ldo = ldo, a.scale = 0.125f, a.queries = queries, a.q = q.data();
      a.begin = begin.data(), a.end = end.data(), a.m = m.data(), a.l = l.data(), a.o = o.data();
      a.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
      ops.attend_span(a);
      for (int64_t j = 0; j < queries; ++j) {
        y[i].push_back(m[static_cast<size_t>(j)] + 0.0f);  // either zero will do
        y[i].push_back(l[static_cast<size_t>(j)]);
        for (int64_t at = 0; at < d; ++at) y[i].push_back(o[static_cast<size_t>(j * ldo + at)]);
        std::vector<float> running = {q[static_cast<size_t>(j * d)], 1},
                           merged(q.begin() + j * d, q.begin() + (j + 1) * d);
        if (begin[static_cast<size_t>(j)] == end[static_cast<size_t>(j)]) continue;
        ops.merge_span(m[static_cast<size_t>(j)], l[static_cast<size_t>(j)], o.data() + j * ldo, d, running.data(),
                       merged.data());
        y[i].insert(y[i].end(), running.begin(), running.end());
        y[i].insert(y[i].end(), merged.begin(), merged.end());
      }
    }
    compare(y[0], y[1], "attention that differs");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  Bytes in(data, size);
  constexpr void (*kChecks[])(Bytes&) = {matmul, elementwise, quantized_rows, attention};
  kChecks[in.byte() % 4](in);
  return 0;
}
