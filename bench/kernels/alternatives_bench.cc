// Other ways to multiply one row of int8 x with 2-bit weights, each checked against plain loops and then timed beside
// the library's kernel: bit-serial planes, masked additions over planes, look-up tables of sums (T-MAC's way), and
// codes that become bytes through a byte permutation. Needs AVX-512 with VBMI and VPOPCNTDQ, but for the tables in
// AVX2.
//
//   lowbit_alternatives_bench [--n 4096] [--k 4096] [--threads 2] [--seconds 0.3] [--mib 512]
//
// One JSON line each: seconds of one product (median, weights from memory: copies in turn up to --mib; 0: one copy),
// GOPS, GB/s. Weights are -2..1 with one scale per row, which is left out here: sums are compared.
// docs/performance-cpu.md has the outcome.

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/rng.h"
#include "base/threads.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

struct Problem {
  int64_t n = 4096, k = 4096;
  std::vector<uint8_t> codes;  // [n, k], 0..3, value = code - 2
  std::vector<int8_t> x;       // [k]
  int32_t x_sum = 0;

  std::vector<int32_t> answer() const {
    std::vector<int32_t> y(static_cast<size_t>(n));
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < k; ++i) y[size_t(r)] += (codes[size_t(r * k + i)] - 2) * x[size_t(i)];
    return y;
  }
};

Problem make_problem(int64_t n, int64_t k) {
  Problem p{n, k, std::vector<uint8_t>(size_t(n * k)), std::vector<int8_t>(size_t(k)), 0};
  Rng rng(1);
  for (uint8_t& c : p.codes) c = uint8_t(rng.below(4));
  for (int8_t& v : p.x) {
    v = int8_t(int(rng.below(255)) - 127);
    p.x_sum += v;
  }
  return p;
}

/// A way: how weights are stored, what is made of x before, and rows [r0, r1) of the product.
struct Way {
  const char* name;
  int64_t rows;  // r0 and r1 are multiples of it
  std::vector<uint8_t> (*store)(const Problem& p);
  std::vector<uint8_t> (*prepare)(const Problem& p);
  void (*run)(const Problem& p, const uint8_t* w, const uint8_t* x, int64_t r0, int64_t r1, int32_t* y);
};

std::vector<uint8_t> as_it_is(const Problem& p) {
  return {reinterpret_cast<const uint8_t*>(p.x.data()), reinterpret_cast<const uint8_t*>(p.x.data()) + p.k};
}

// ---- Planes: [row][k / 512][plane][64 bytes], bit i of a plane is column i ----

std::vector<uint8_t> store_planes(const Problem& p) {
  std::vector<uint8_t> w(size_t(p.n * p.k / 4));
  for (int64_t r = 0; r < p.n; ++r)
    for (int64_t i = 0; i < p.k; ++i)
      for (int plane = 0; plane < 2; ++plane) {
        const int64_t at = r * p.k / 4 + i / 512 * 128 + plane * 64 + i % 512 / 8;
        w[size_t(at)] = uint8_t(w[size_t(at)] | (p.codes[size_t(r * p.k + i)] >> plane & 1) << (i % 8));
      }
  return w;
}

/// x as eight planes of the same kind: [k / 512][8][64 bytes].
std::vector<uint8_t> prepare_bit_serial(const Problem& p) {
  std::vector<uint8_t> planes(size_t(p.k));
  for (int64_t i = 0; i < p.k; ++i)
    for (int bit = 0; bit < 8; ++bit) {
      uint8_t& byte = planes[size_t(i / 512 * 512 + bit * 64 + i % 512 / 8)];
      byte = uint8_t(byte | (uint8_t(p.x[size_t(i)]) >> bit & 1) << (i % 8));
    }
  return planes;
}

/// sum 2^(i + j) popcount(x_i & w_j), bit 7 of x counting as -128.
void run_bit_serial(const Problem& p, const uint8_t* w, const uint8_t* x, int64_t r0, int64_t r1, int32_t* y) {
  for (int64_t r = r0; r < r1; ++r) {
    __m512i sum[8] = {};
    for (int64_t b = 0; b < p.k / 512; ++b) {
      const uint8_t* planes = w + r * p.k / 4 + b * 128;
      _mm_prefetch(reinterpret_cast<const char*>(planes + 4096), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(planes + 4160), _MM_HINT_T1);
      const __m512i w0 = _mm512_loadu_si512(planes), w1 = _mm512_loadu_si512(planes + 64);
#pragma GCC unroll 8
      for (int bit = 0; bit < 8; ++bit) {
        const __m512i xs = _mm512_loadu_si512(x + b * 512 + bit * 64);
        const __m512i c0 = _mm512_popcnt_epi64(_mm512_and_si512(xs, w0));
        const __m512i c1 = _mm512_popcnt_epi64(_mm512_and_si512(xs, w1));
        sum[bit] = _mm512_add_epi64(sum[bit], _mm512_add_epi64(c0, _mm512_add_epi64(c1, c1)));
      }
    }
    int64_t total = 0;
    for (int bit = 0; bit < 8; ++bit)
      total += _mm512_reduce_add_epi64(sum[bit]) * (bit == 7 ? -128 : int64_t{1} << bit);
    y[r] = int32_t(total) - 2 * p.x_sum;
  }
}

/// Bytes of x where the plane has a bit, else 0; 64 columns at a time, four rows share the loads of x.
void run_masked(const Problem& p, const uint8_t* w, const uint8_t* x, int64_t r0, int64_t r1, int32_t* y) {
  const __m512i one = _mm512_set1_epi8(1), two = _mm512_set1_epi8(2);
  for (int64_t r = r0; r < r1; r += 4) {
    __m512i sum[4] = {};
    for (int64_t i = 0; i < p.k; i += 64) {
      const __m512i xs = _mm512_loadu_si512(x + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const uint8_t* plane = w + (r + j) * p.k / 4 + i / 512 * 128 + i % 512 / 8;
        uint64_t m0, m1;
        __builtin_memcpy(&m0, plane, 8);
        __builtin_memcpy(&m1, plane + 64, 8);
        if (i % 512 == 0) _mm_prefetch(reinterpret_cast<const char*>(plane + 2048), _MM_HINT_T1);
        if (i % 512 == 256) _mm_prefetch(reinterpret_cast<const char*>(plane + 2048 + 64), _MM_HINT_T1);
        sum[j] = _mm512_dpbusd_epi32(sum[j], one, _mm512_maskz_mov_epi8(m0, xs));
        sum[j] = _mm512_dpbusd_epi32(sum[j], two, _mm512_maskz_mov_epi8(m1, xs));
      }
    }
    for (int j = 0; j < 4; ++j) y[r + j] = _mm512_reduce_add_epi32(sum[j]) - 2 * p.x_sum;
  }
}

// ---- Tables: [panel of R rows][k / 8][plane][R bytes]; a byte holds a plane's bits of eight columns ----

template <int R>
std::vector<uint8_t> store_bytes_of_planes(const Problem& p) {
  std::vector<uint8_t> w(size_t(p.n * p.k / 4));
  for (int64_t r = 0; r < p.n; ++r)
    for (int64_t i = 0; i < p.k; ++i)
      for (int plane = 0; plane < 2; ++plane) {
        const int64_t at = r / R * (R * p.k / 4) + (i / 8 * 2 + plane) * R + r % R;
        w[size_t(at)] = uint8_t(w[size_t(at)] | (p.codes[size_t(r * p.k + i)] >> plane & 1) << (i % 8));
      }
  return w;
}

/// For every four columns the 16 sums of subsets of their x: 16 low bytes, then 16 high bytes.
std::vector<uint8_t> prepare_tables(const Problem& p) {
  std::vector<uint8_t> tables(size_t(p.k / 4 * 32));
  for (int64_t g = 0; g < p.k / 4; ++g)
    for (int subset = 0; subset < 16; ++subset) {
      int sum = 0;
      for (int i = 0; i < 4; ++i) sum += subset >> i & 1 ? p.x[size_t(4 * g + i)] : 0;
      tables[size_t(32 * g + subset)] = uint8_t(sum);
      tables[size_t(32 * g + 16 + subset)] = uint8_t(sum >> 8);
    }
  return tables;
}

struct Wide {  // 64 rows
  using V = __m512i;
  static constexpr int kRows = 64;
  static V load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static V table(const uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V zero() { return _mm512_setzero_si512(); }
  static V low(V v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static V high(V v) { return low(_mm512_srli_epi16(v, 4)); }
  static V look_up(V table, V index) { return _mm512_shuffle_epi8(table, index); }
  static V add16(V a, V b) { return _mm512_add_epi16(a, b); }
  static V even(V lo, V hi) { return _mm512_unpacklo_epi8(lo, hi); }
  static V odd(V lo, V hi) { return _mm512_unpackhi_epi8(lo, hi); }
};
struct Narrow {  // 32 rows
  using V = __m256i;
  static constexpr int kRows = 32;
  static V load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const V*>(p)); }
  static V table(const uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V zero() { return _mm256_setzero_si256(); }
  static V low(V v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static V high(V v) { return low(_mm256_srli_epi16(v, 4)); }
  static V look_up(V table, V index) { return _mm256_shuffle_epi8(table, index); }
  static V add16(V a, V b) { return _mm256_add_epi16(a, b); }
  static V even(V lo, V hi) { return _mm256_unpacklo_epi8(lo, hi); }
  static V odd(V lo, V hi) { return _mm256_unpackhi_epi8(lo, hi); }
};

/// sum[0], sum[1] += int16 sums of the rows' subsets: rows 0..7 of each 16 in the first, 8..15 in the second.
template <class T>
inline __attribute__((always_inline)) void add_subsets(typename T::V index, const uint8_t* tables, typename T::V* sum) {
  const typename T::V lo = T::look_up(T::table(tables), index), hi = T::look_up(T::table(tables + 16), index);
  sum[0] = T::add16(sum[0], T::even(lo, hi));
  sum[1] = T::add16(sum[1], T::odd(lo, hi));
}

template <class T>
void run_tables(const Problem& p, const uint8_t* w, const uint8_t* x, int64_t r0, int64_t r1, int32_t* y) {
  using V = typename T::V;
  constexpr int R = T::kRows;
  constexpr int64_t kColumns = 256;  // 64 sums of at most 508 fit in int16
  for (int64_t r = r0; r < r1; r += R) {
    const uint8_t* panel = w + r * p.k / 4;
    int32_t total[R] = {};
    for (int64_t k0 = 0; k0 < p.k; k0 += kColumns) {
      V sum[2][2] = {{T::zero(), T::zero()}, {T::zero(), T::zero()}};
      for (int64_t i = k0 / 8; i < std::min(k0 + kColumns, p.k) / 8; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(panel + 2 * i * R + 4096), _MM_HINT_T1);
        if (R == 64) _mm_prefetch(reinterpret_cast<const char*>(panel + 2 * i * R + 4160), _MM_HINT_T1);
        for (int plane = 0; plane < 2; ++plane) {
          const V byte = T::load(panel + (2 * i + plane) * R);
          add_subsets<T>(T::low(byte), x + 64 * i, sum[plane]);
          add_subsets<T>(T::high(byte), x + 64 * i + 32, sum[plane]);
        }
      }
      for (int half = 0; half < 2; ++half) {
        int16_t s0[R / 2], s1[R / 2];
        __builtin_memcpy(s0, &sum[0][half], sizeof s0);
        __builtin_memcpy(s1, &sum[1][half], sizeof s1);
        for (int i = 0; i < R / 2; ++i) total[i / 8 * 16 + half * 8 + i % 8] += s0[i] + 2 * s1[i];
      }
    }
    for (int i = 0; i < R; ++i) y[r + i] = total[i] - 2 * p.x_sum;
  }
}

// ---- Bytes by permutation: the library's panels of 16 rows, codes through a table of values ----

/// [panel of 16 rows][k / 16][row][4 bytes]: field s of byte j is column 16 b + 4 s + j.
std::vector<uint8_t> store_panels(const Problem& p) {
  std::vector<uint8_t> w(size_t(p.n * p.k / 4));
  for (int64_t r = 0; r < p.n; ++r)
    for (int64_t i = 0; i < p.k; ++i) {
      const int64_t at = r / 16 * (16 * p.k / 4) + i / 16 * 64 + r % 16 * 4 + i % 4;
      w[size_t(at)] = uint8_t(w[size_t(at)] | p.codes[size_t(r * p.k + i)] << (2 * (i % 16 / 4)));
    }
  return w;
}

/// kPermute: the low nibble of a shifted byte chooses one of 16 bytes (what a codebook of int8 values needs); else a
/// mask.
template <bool kPermute>
void run_panels(const Problem& p, const uint8_t* w, const uint8_t* x, int64_t r0, int64_t r1, int32_t* y) {
  const __m512i values = _mm512_set1_epi32(0x03020100), mask = _mm512_set1_epi8(3);
  for (int64_t r = r0; r < r1; r += 32) {
    const uint8_t *first = w + r * p.k / 4, *second = first + 16 * p.k / 4;
    __m512i sum[2][2] = {};
    for (int64_t b = 0; b < p.k / 16; ++b) {
      _mm_prefetch(reinterpret_cast<const char*>(first + 64 * b + 4096), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(second + 64 * b + 4096), _MM_HINT_T1);
      const __m512i w0 = _mm512_loadu_si512(first + 64 * b), w1 = _mm512_loadu_si512(second + 64 * b);
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        int32_t four;
        __builtin_memcpy(&four, x + 16 * b + 4 * s, 4);
        const __m512i xs = _mm512_set1_epi32(four);
        __m512i c0 = _mm512_and_si512(_mm512_srli_epi16(w0, unsigned(2 * s)), mask);
        __m512i c1 = _mm512_and_si512(_mm512_srli_epi16(w1, unsigned(2 * s)), mask);
        if constexpr (kPermute) {
          c0 = _mm512_permutexvar_epi8(c0, values);
          c1 = _mm512_permutexvar_epi8(c1, values);
        }
        sum[0][s % 2] = _mm512_dpbusd_epi32(sum[0][s % 2], c0, xs);
        sum[1][s % 2] = _mm512_dpbusd_epi32(sum[1][s % 2], c1, xs);
      }
    }
    const __m512i less = _mm512_set1_epi32(2 * p.x_sum);
    for (int j = 0; j < 2; ++j)
      _mm512_storeu_si512(y + r + 16 * j, _mm512_sub_epi32(_mm512_add_epi32(sum[j][0], sum[j][1]), less));
  }
}

const Way kWays[] = {
    {"bit-serial planes, and + popcount", 4, store_planes, prepare_bit_serial, run_bit_serial},
    {"masked additions over planes", 4, store_planes, as_it_is, run_masked},
    {"tables of sums, 64 rows", 64, store_bytes_of_planes<64>, prepare_tables, run_tables<Wide>},
    {"tables of sums, 32 rows (AVX2)", 32, store_bytes_of_planes<32>, prepare_tables, run_tables<Narrow>},
    {"panels, codes through vpermb", 32, store_panels, as_it_is, run_panels<true>},
    {"panels, codes masked", 32, store_panels, as_it_is, run_panels<false>},
};

double median_seconds(const std::function<void()>& work, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (const auto start = Clock::now();
       times.size() < 5 || std::chrono::duration<double>(Clock::now() - start).count() < seconds;) {
    const auto begin = Clock::now();
    work();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print_line(const Problem& p, const std::string& name, double seconds, double bytes, bool checked, int threads) {
  std::printf(
      R"({"way": "%s", "n": %ld, "k": %ld, "threads": %d, "seconds": %.9f, "gops": %.1f, "gb_s": %.2f, "checked": %s})"
      "\n",
      name.c_str(), long(p.n), long(p.k), threads, seconds, 2e-9 * double(p.n * p.k) / seconds, 1e-9 * bytes / seconds,
      checked ? "true" : "false");
  std::fflush(stdout);
}

bool time_way(const Problem& p, const Way& way, ThreadPool& pool, double seconds, int64_t mib) {
  const std::vector<uint8_t> stored = way.store(p);
  const size_t copies = size_t(std::max<int64_t>(1, (mib << 20) / int64_t(stored.size())));
  std::vector<uint8_t> weights(copies * stored.size() + 8192);  // prefetches may run past the end
  for (size_t c = 0; c < copies; ++c)
    std::copy(stored.begin(), stored.end(), weights.begin() + long(c * stored.size()));
  std::vector<int32_t> y(size_t(p.n));
  size_t turn = 0;
  const auto work = [&] {
    const std::vector<uint8_t> x = way.prepare(p);
    const uint8_t* w = weights.data() + turn++ % copies * stored.size();
    const int64_t blocks = p.n / way.rows;
    pool.parallel_for(blocks, std::max<int64_t>(1, blocks / (8 * pool.size())), [&](int64_t b, int64_t e, int) {
      way.run(p, w, x.data(), b * way.rows, e * way.rows, y.data());
    });
  };
  work();
  const bool checked = y == p.answer();
  print_line(p, way.name, median_seconds(work, seconds), double(stored.size()), checked, pool.size());
  return checked;
}

bool time_library(const Problem& p, Isa isa, ThreadPool& pool, double seconds, int64_t mib) {
  TimedMatmul o;
  o.format = FormatId::kInt2;
  o.n = p.n;
  o.k = p.k;
  o.isa = isa;
  o.cold = mib > 0;
  o.cold_bytes = mib << 20;
  o.seconds = seconds;
  const auto t = time_matmul(o, pool);
  if (!t) return false;
  print_line(p, "library: " + t->kernel, t->seconds, double(t->weight_bytes), t->checked, pool.size());
  return t->checked;
}

}  // namespace
}  // namespace lowbit

int main(int argc, char** argv) {
  using namespace lowbit;
  std::map<std::string, double> given = {
      {"--n", 4096}, {"--k", 4096}, {"--threads", cpu_info().physical_cores}, {"--seconds", 0.3}, {"--mib", 512}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (given.count(argv[i]) == 0) {
      std::fprintf(stderr, "error: no option %s\n", argv[i]);
      return 2;
    }
    given[argv[i]] = std::atof(argv[i + 1]);
  }
  const auto& features = cpu_info().features;
  if (!isa_available(Isa::kAvx512) ||
      std::find(features.begin(), features.end(), "avx512_vpopcntdq") == features.end()) {
    std::fprintf(stderr, "error: needs AVX-512 with VNNI, VBMI and VPOPCNTDQ\n");
    return 2;
  }
  const int64_t n = int64_t(given["--n"]), k = int64_t(given["--k"]), mib = int64_t(given["--mib"]);
  if (n < 64 || n % 64 != 0 || k < 512 || k % 512 != 0 || n * k > int64_t{1} << 30) {
    std::fprintf(stderr, "error: --n must be a multiple of 64 and --k of 512\n");
    return 2;
  }
  const Problem p = make_problem(n, k);
  ThreadPool pool(std::max(1, int(given["--threads"])));
  std::printf("{\"machine\": \"%s\", \"mib\": %ld}\n", cpu_info().model.c_str(), long(mib));
  bool good = true;
  for (const Way& way : kWays) good = time_way(p, way, pool, given["--seconds"], mib) && good;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512})
    if (isa_available(isa)) good = time_library(p, isa, pool, given["--seconds"], mib) && good;
  return good ? 0 : 1;
}
