#include "tests/conformance/cuda/gemm/gemm_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/gemm/weight_order/stored_bits.h"

namespace lowbit::cuda {
namespace {

struct Random {
  uint64_t state;
  uint64_t next() {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int below(int n) { return int(next() % uint64_t(n)); }
  float unit() { return float(int64_t(next() >> 40)) / float(1 << 24); }
};

/// Packs one row of random codes canonically and tells their values, integers or those of a table; those of floats are
/// codes.
using Table = std::array<int8_t, 16>;
using PackRow = void (*)(Random&, int64_t k, bool extremes, const Table& table, uint8_t* row, int8_t* values);
template <class F>
void pack_row(Random& random, int64_t k, bool extremes, const Table& table, uint8_t* row, int8_t* values) {
  for (int64_t i = 0; i < k; ++i) {
    unsigned code = unsigned(random.below(F::Codec::kCodes));
    if constexpr (F::Codec::kKind == CodecKind::kInteger) {
      if (extremes) code = F::Codec::code(F::Codec::kMin);
      values[i] = int8_t(F::Codec::value(code));
    } else if constexpr (F::Codec::kKind == CodecKind::kFloat) {
      if (extremes) code = F::Codec::code(448.0f);
      if (F::Codec::value(code) != F::Codec::value(code)) code ^= 1;
      values[i] = int8_t(code);
    } else if constexpr (F::Codec::kKind == CodecKind::kTable) {
      values[i] = table[code];
    }
    F::put(row + i / F::kElems * F::kPackBytes, int(i % F::kElems), code);
  }
}
void pack_trellis_row(Random& random, int64_t k, bool, const Table& table, uint8_t* row, int8_t* values) {
  unsigned window = 0;
  for (int64_t i = 0; i < k; ++i) {
    const unsigned code = unsigned(random.below(4));
    window = Trellis<2>::next(window, code);
    row[i / 4] |= uint8_t(code << 2 * (i % 4));
    values[i] = table[kTrellisCodes<2>[window]];
  }
}
struct Packer {
  PackRow pack;
  int elems, pack_bytes;
};
template <class F>
struct PackerOf {
  static constexpr Packer value{&pack_row<F>, F::kElems, F::kPackBytes};
};
const Packer& packer_of(FormatId format) {
  static constexpr auto kPackers = make_table<PackerOf>(RandomAccessFormatList{});
  static constexpr Packer kTrellisPacker{&pack_trellis_row, Trellis2::kElems, Trellis2::kPackBytes};
  return format == FormatId::kTrellis2 ? kTrellisPacker : kPackers[size_t(format) - kDenseFormats];
}

template <class T>
T* upload(const std::vector<T>& host, std::vector<void*>& owned) {
  void* p = nullptr;
  must(cudaMalloc(&p, std::max<size_t>(host.size() * sizeof(T), 16)), "cudaMalloc");
  must(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  owned.push_back(p);
  return static_cast<T*>(p);
}

uint16_t half_bits(float v, GemmActivation a) { return a == GemmActivation::kF16 ? f32_to_f16(v) : f32_to_bf16(v); }
float half_value(uint16_t v, GemmActivation a) { return a == GemmActivation::kF16 ? f16_to_f32(v) : bf16_to_f32(v); }
int64_t output_bytes(GemmOutput o) { return o == GemmOutput::kF32 ? 4 : 2; }

}  // namespace

void must(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  std::exit(3);
}

std::string GemmCase::text() const {
  static const char* const kX[] = {"int8", "f16", "bf16", "bit"};
  static const char* const kY[] = {"f32", "f16", "bf16"};
  char s[256];
  std::snprintf(s, sizeof s,
                "format %d x %s y %s m %lld n %lld k %lld group %lld pad %lld,%lld shift %lld per scale %lld%s%s%s%s%s",
                int(format), kX[int(activation)], kY[int(output)], (long long)m, (long long)n, (long long)k,
                (long long)group, (long long)x_pad, (long long)y_pad, (long long)x_shift, (long long)per_scale,
                x_groups ? " x-groups" : "", offsets ? " offsets" : "", bias ? " bias" : "",
                extremes ? " extremes" : "", overlap ? " overlap" : "");
  return s;
}

CaseData::CaseData(const GemmCase& c, uint64_t seed, int copies)
    : c_(c),
      is_bits_(c.activation == GemmActivation::kBit),
      is_int8_(is_bits_ || c.activation == GemmActivation::kInt8) {
  const bool one_group = c.group <= 0 || c.group >= c.k;
  group_ = one_group ? std::max<int64_t>(c.k, 1) : c.group;
  groups_ = one_group ? 1 : (c.k + group_ - 1) / group_;
  ldx_ = c.k + c.x_pad, ldy_ = c.n + c.y_pad;
  const Packer& packer = packer_of(c.format);
  row_bytes_ = (c.k + packer.elems - 1) / packer.elems * packer.pack_bytes;
  const std::vector<uint8_t> codes = draw(seed);
  sum_x();
  upload_weights(codes, copies);
  upload_x();
  d_y_ = upload(std::vector<uint8_t>(size_t(c.m * ldy_ * output_bytes(c.output))), device_);
  poison();
  must(cudaDeviceSynchronize(), "set up");
}

std::vector<uint8_t> CaseData::draw(uint64_t seed) {
  const GemmCase& c = c_;
  Random random{seed};
  const Packer& packer = packer_of(c.format);
  Table table;
  for (int8_t& entry : table) entry = int8_t(c.extremes ? -128 : random.below(256) - 128);
  if (c.format != FormatId::kTrellis2) std::ranges::sort(table);  // as kernels get codebooks
  for (size_t i = 0; i < 16; ++i) table_[i / 4] |= uint32_t(uint8_t(table[i])) << 8 * (i % 4);
  std::vector<uint8_t> codes(size_t(row_bytes_ * c.n));
  values_.resize(size_t(c.n * c.k));
  for (int64_t i = 0; i < c.n; ++i)
    packer.pack(random, c.k, c.extremes, table, codes.data() + i * row_bytes_, values_.data() + i * c.k);
  scales_.resize(size_t(c.n * groups_));
  for (float& s : scales_) s = (0.5f + random.unit()) * 0.01f;
  // Terms that are subnormal, and some that are 2^40 times as large.
  if (is_int8_ && c.extremes && c.output == GemmOutput::kF32 && random.below(2) == 0)
    for (float& s : scales_) s *= random.below(3) == 0 ? 0x1p-92f : 0x1p-132f;
  if (c.offsets) {
    offsets_.resize(scales_.size());
    for (float& o : offsets_) o = (random.unit() - 0.5f) * 0.02f;
  }
  for (int64_t i = 0; c.per_scale > 1 && i < c.n * groups_; ++i) {
    const int64_t g = i % groups_, first = i - g % c.per_scale;
    scales_[size_t(i)] = scales_[size_t(first)];
    if (c.offsets) offsets_[size_t(i)] = offsets_[size_t(first)];
  }
  if (c.bias) {
    bias_.resize(size_t(c.n));
    for (float& b : bias_) b = random.unit() - 0.5f;
  }
  // Poison between the tokens: a kernel that reads it is seen.
  if (is_int8_) {
    xq_.assign(size_t(c.x_shift + c.m * ldx_ + 16), int8_t(77));
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        xq_[size_t(c.x_shift + m * ldx_ + k)] = int8_t(is_bits_     ? 2 * random.below(2) - 1
                                                       : c.extremes ? (k % 997 == 5 ? 126 : -127)
                                                                    : random.below(255) - 127);
    x_scale_.resize(size_t(c.m * (c.x_groups ? groups_ : 1)));
    for (float& s : x_scale_) s = (0.5f + random.unit()) * 0.02f;
    for (int64_t i = 0; c.exact_x_scales && i < c.m * groups_; ++i) {  // one of six bits for all that share a scale
      const int64_t first = i - i % groups_ % c.per_scale;
      x_scale_[size_t(i)] = bits_to_f32(f32_to_bits(x_scale_[size_t(first)]) & ~0x3ffffu);
    }
  } else {
    xh_.assign(size_t(c.x_shift + c.m * ldx_ + 16), 0x7fff);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        xh_[size_t(c.x_shift + m * ldx_ + k)] =
            half_bits(2 * random.unit() - 1 + (c.extremes ? 100.0f : 0.0f), c.activation);
  }
  return codes;
}

void CaseData::sum_x() {
  const GemmCase& c = c_;
  if (c.offsets && c.per_scale == 0) {
    x_sums_.assign(size_t(c.m * groups_), 0.0f);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k) x_sums_[size_t(m * groups_ + k / group_)] += x_at(m, k);
  }
  if (c.offsets && c.per_scale > 0) {  // times the scales of x, over the groups that share a scale
    const int64_t wide = (groups_ + c.per_scale - 1) / c.per_scale;
    x_sums_.assign(size_t(c.m * wide), 0.0f);
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t g = 0; g < groups_; ++g) {
        float sum = 0, &total = x_sums_[size_t(m * wide + g / c.per_scale)];
        for (int64_t k = g * group_; k < std::min(c.k, (g + 1) * group_); ++k) sum += x_at(m, k);
        total = std::fma(sum, x_scale_[size_t(m * groups_ + g)], total);
      }
  }
}

void CaseData::upload_weights(const std::vector<uint8_t>& codes, int copies) {
  const GemmCase& c = c_;
  uint8_t* d_codes = upload(codes, device_);
  if (is_bits_) {
    d_bit_terms_ = upload(std::vector<int32_t>(size_t(padded_rows(c.n)), 12345), device_);
    if (relayout_bit_terms(d_codes, row_bytes_, c.n, c.k, d_bit_terms_, nullptr) != GemmStatus::kOk)
      std::fprintf(stderr, "relayout_bit_terms failed\n");
  }
  tiles_ = tile_bytes(c.format, c.activation, c.n, c.k);
  must(cudaMalloc(&d_tiles_, std::max<size_t>(tiles_ * size_t(copies), 16)), "cudaMalloc");
  device_.push_back(d_tiles_);
  if (relayout_weights(c.format, c.activation, d_codes, row_bytes_, c.n, c.k, d_tiles_, nullptr) != GemmStatus::kOk)
    std::fprintf(stderr, "relayout failed: %s\n", c.text().c_str());
  for (int i = 1; i < copies; ++i)
    must(cudaMemcpy(static_cast<uint8_t*>(d_tiles_) + size_t(i) * tiles_, d_tiles_, tiles_, cudaMemcpyDeviceToDevice),
         "copy");
  auto scales = [&](const std::vector<float>& host) {
    float* in = upload(host, device_);
    float* out = upload(std::vector<float>(size_t(groups_ * padded_rows(c.n)), NAN), device_);
    if (relayout_scales(in, c.n, groups_, out, nullptr) != GemmStatus::kOk)
      std::fprintf(stderr, "relayout_scales failed\n");
    return out;
  };
  d_scales_ = scales(scales_);
  if (c.offsets) d_offsets_ = scales(offsets_);
  if (c.bias) d_bias_ = upload(bias_, device_);
}

void CaseData::upload_x() {
  const GemmCase& c = c_;
  if (c.offsets) d_x_sums_ = upload(x_sums_, device_);
  if (is_bits_) {  // rows of ldx_ columns, a multiple of 8
    std::vector<uint8_t> packed(size_t(c.m * ldx_ / 8 + 16));
    std::vector<int32_t> terms(size_t(c.m));
    for (int64_t m = 0; m < c.m; ++m)
      for (int64_t k = 0; k < c.k; ++k)
        if (x_at(m, k) > 0) packed[size_t(m * ldx_ / 8 + k / 8)] |= uint8_t(1u << k % 8), terms[size_t(m)] -= 2;
    d_x_ = upload(packed, device_);
    d_x_bit_terms_ = upload(terms, device_);
    d_x_scale_ = upload(x_scale_, device_);
  } else if (is_int8_) {
    d_x_ = upload(xq_, device_);
    d_x_scale_ = upload(x_scale_, device_);
  } else {
    d_x_ = upload(xh_, device_);
  }
}

CaseData::~CaseData() {
  for (void* p : device_) cudaFree(p);
}

void CaseData::poison() { must(cudaMemset(d_y_, 0xff, size_t(c_.m * ldy_ * output_bytes(c_.output))), "poison"); }

GemmProblem CaseData::problem(int copy) const {
  GemmProblem p;
  p.w = {c_.format, c_.activation, c_.n,        c_.k, c_.group, static_cast<uint8_t*>(d_tiles_) + size_t(copy) * tiles_,
         d_scales_, d_offsets_,    d_bit_terms_};
  std::copy_n(table_, 4, p.w.table);
  p.m = c_.m;
  const bool bits = c_.activation == GemmActivation::kBit;
  p.x = static_cast<uint8_t*>(d_x_) + (bits ? 0 : c_.x_shift * (c_.activation == GemmActivation::kInt8 ? 1 : 2));
  p.x_bit_terms = d_x_bit_terms_;
  p.ldx = ldx_;
  p.x_scale = d_x_scale_;
  p.x_scale_row_stride = c_.x_groups ? groups_ : 1, p.x_scale_group_stride = c_.x_groups ? 1 : 0;
  p.x_sums = d_x_sums_, p.bias = d_bias_;
  p.y = d_y_, p.output = c_.output, p.ldy = ldy_;
  p.overlap_previous = c_.overlap, p.exact_x_scales = c_.exact_x_scales;
  return p;
}

float CaseData::x_at(int64_t m, int64_t k) const {
  const size_t at = size_t(c_.x_shift + m * ldx_ + k);
  return c_.activation == GemmActivation::kInt8 || c_.activation == GemmActivation::kBit
             ? float(xq_[at])
             : half_value(xh_[at], c_.activation);
}

double CaseData::expected(int64_t m, int64_t n, double* magnitude) const {
  const int64_t group = groups_ == 1 ? c_.k : c_.group;
  const int8_t* w = values_.data() + n * c_.k;
  const float bias = c_.bias ? bias_[size_t(n)] : 0.0f;
  if (c_.activation == GemmActivation::kInt8 || c_.activation == GemmActivation::kBit) {  // src/kernels/ref/matmul.cc
    const int8_t* x = xq_.data() + c_.x_shift + m * ldx_;
    float acc = 0, part = 0;
    for (int64_t g = 0; g < groups_; ++g) {
      int32_t sum = 0;
      for (int64_t k = g * group; k < std::min(c_.k, (g + 1) * group); ++k) sum += int32_t(w[k]) * x[k];
      const float xs = c_.x_groups ? x_scale_[size_t(m * groups_ + g)] : 1.0f;
      if (c_.per_scale > 0) {
        part = std::fma(float(sum), xs, part);
        if ((g + 1) % c_.per_scale != 0 && g + 1 != groups_) continue;
        acc = std::fma(part, scales_[size_t(n * groups_ + g)], acc);
        const int64_t wide = (groups_ + c_.per_scale - 1) / c_.per_scale;
        if (c_.offsets)
          acc = std::fma(x_sums_[size_t(m * wide + g / c_.per_scale)], offsets_[size_t(n * groups_ + g)], acc);
        part = 0;
        continue;
      }
      acc = std::fma(float(sum) * xs, scales_[size_t(n * groups_ + g)], acc);
      if (c_.offsets) acc = std::fma(x_sums_[size_t(m * groups_ + g)] * xs, offsets_[size_t(n * groups_ + g)], acc);
    }
    return c_.x_groups ? double(acc + bias) : double(std::fma(acc, x_scale_[size_t(m)], bias));
  }
  double acc = bias, size = std::fabs(bias);
  for (int64_t k = 0; k < c_.k; ++k) {
    const size_t at = size_t(n * groups_ + k / std::max<int64_t>(group, 1));
    const double value = c_.format == FormatId::kFp8 ? e4m3_to_f32(uint8_t(w[k])) : float(w[k]);
    const double term = value * scales_[at] * x_at(m, k), offset = c_.offsets ? double(offsets_[at]) * x_at(m, k) : 0;
    acc += term + offset, size += std::fabs(term) + std::fabs(offset);
  }
  *magnitude = size;
  return acc;
}

std::vector<uint8_t> CaseData::output() const {
  std::vector<uint8_t> host(size_t(c_.m * ldy_ * output_bytes(c_.output)));
  must(cudaMemcpy(host.data(), d_y_, host.size(), cudaMemcpyDeviceToHost), "read y");
  return host;
}

std::string CaseData::check(int64_t samples, double* worst) const {
  const int64_t bytes = output_bytes(c_.output);
  const std::vector<uint8_t> host = output();
  const uint8_t* y = host.data();
  auto value = [&](int64_t i) -> float {
    if (c_.output == GemmOutput::kF32) {
      float v;
      std::memcpy(&v, y + 4 * i, 4);
      return v;
    }
    uint16_t v;
    std::memcpy(&v, y + 2 * i, 2);
    return c_.output == GemmOutput::kF16 ? f16_to_f32(v) : bf16_to_f32(v);
  };
  for (int64_t m = 0; m < c_.m; ++m) {
    for (int64_t n = c_.n; n < ldy_; ++n)
      for (int64_t b = 0; b < bytes; ++b)
        if (y[(m * ldy_ + n) * bytes + b] != 0xff) return "wrote behind a row";
    for (int64_t n = 0; n < c_.n; ++n)
      if (std::isnan(value(m * ldy_ + n))) return "unwritten or NaN at " + std::to_string(m) + "," + std::to_string(n);
  }
  Random random{uint64_t(samples) + 17};
  const int64_t all = c_.m * c_.n, count = samples == 0 ? all : std::min(all, samples);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = samples == 0 || samples >= all ? i : int64_t(random.next() % uint64_t(all)), m = at / c_.n,
                  n = at % c_.n;
    double magnitude = 0;
    const double want = expected(m, n, &magnitude);
    const float got = value(m * ldy_ + n);
    bool right;
    if (c_.activation == GemmActivation::kInt8 || c_.activation == GemmActivation::kBit) {
      const float w = float(want);
      right = got == (c_.output == GemmOutput::kF32   ? w
                      : c_.output == GemmOutput::kF16 ? f16_to_f32(f32_to_f16(w))
                                                      : bf16_to_f32(f32_to_bf16(w)));
    } else {
      // 1e-6 of the terms' magnitudes; behind a 16-bit output two of its last places (bf16: 2^-8 relative each).
      const double unit = c_.output == GemmOutput::kF32
                              ? 0
                              : std::fabs(want) * (c_.output == GemmOutput::kBf16 ? 0x1p-7 : 0x1p-10) + 1e-7;
      const double error = std::fabs(got - want);
      if (c_.output == GemmOutput::kF32) *worst = std::max(*worst, error / std::max(magnitude, 1e-30));
      right = error <= unit + 1e-6 * magnitude;
    }
    if (!right) {
      char s[128];
      std::snprintf(s, sizeof s, "y[%lld, %lld] = %.9g, not %.9g", (long long)m, (long long)n, got, want);
      return s;
    }
  }
  return "";
}

}  // namespace lowbit::cuda
