#include "quantize/trellis_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

constexpr int kStates = 64, kCodes = 16;

/// One row a lane, as many as the machine's vectors have: wider ones are split through memory.
template <int W>
struct Lanes {
  typedef float Floats __attribute__((vector_size(4 * W)));
  typedef int32_t Ints __attribute__((vector_size(4 * W)));
  typedef uint8_t Bytes __attribute__((vector_size(W)));
};

/// The cost of every code at column i of rows `first` on.
template <class Floats>
[[gnu::always_inline]] inline void code_costs(const TrellisRows& job, int64_t first, int64_t i, Floats* costs) {
  constexpr auto kRows = static_cast<int64_t>(sizeof(Floats) / sizeof(float));
  Floats x{}, scale{};
  for (int64_t r = 0; r < std::min(kRows, job.rows - first); ++r) {
    x[r] = job.x[first + r][i];
    scale[r] = job.scales[first + r][i / job.group];
  }
  const float h = job.h == nullptr ? 1.0f : job.h[i];
  for (int code = 0; code < kCodes; ++code) {
    const Floats d = x - scale * job.table[code];
    costs[code] = d * d * h;
  }
}

/// One column: the least cost of each state, and which of the states before it that was (the oldest code of the
/// window), for which there are 2^B. State s is the window without its oldest code; the one before it was s >> B with
/// that oldest code on top.
template <int B, int W>
[[gnu::always_inline]] inline void step(const uint8_t* codes, const typename Lanes<W>::Floats* costs,
                                        const typename Lanes<W>::Floats* before, typename Lanes<W>::Floats* after,
                                        uint8_t* from) {
  using Floats = typename Lanes<W>::Floats;
  using Ints = typename Lanes<W>::Ints;
  constexpr int kOldest = kStates >> B;
  for (int s = 0; s < kStates; ++s) {
    Floats best = before[s >> B] + costs[codes[s]];
    Ints oldest{};
#pragma GCC unroll 8
    for (int p = 1; p < 1 << B; ++p) {
      const Floats other = before[(s >> B) + p * kOldest] + costs[codes[s + p * kStates]];
      const Ints less = other < best;
      best = less ? other : best;
      oldest = less ? Ints{} + p : oldest;
    }
    after[s] = best;
    const auto narrow = __builtin_convertvector(oldest, typename Lanes<W>::Bytes);
    __builtin_memcpy(from + s * kTrellisLanes, &narrow, sizeof narrow);
  }
}

/// last: [kStates, kTrellisLanes]
template <int B, int W>
[[gnu::always_inline]] inline void search_rows(const TrellisRows& job, int64_t first, float* last, uint8_t* from) {
  using Floats = typename Lanes<W>::Floats;
  Floats a[kStates], b[kStates], costs[kCodes];
  Floats *before = a, *after = b;
  for (int s = 0; s < kStates; ++s)
    for (int r = 0; r < W; ++r) before[s][r] = s == 0 ? 0.0f : std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < job.k; ++i) {
    code_costs(job, first, i, costs);
    step<B, W>(job.trellis->codes, costs, before, after, from + i * kStates * kTrellisLanes);
    std::swap(before, after);
  }
  for (int s = 0; s < kStates; ++s) __builtin_memcpy(last + s * kTrellisLanes, &before[s], sizeof(Floats));
}

template <int W>
[[gnu::always_inline]] inline void search(const TrellisRows& job, float* last, uint8_t* from) {
  for (int64_t first = 0; first < kTrellisLanes; first += W) {
    if (job.trellis->stored_bits == 2)
      search_rows<2, W>(job, first, last + first, from + first);
    else
      search_rows<3, W>(job, first, last + first, from + first);
  }
}

LOWBIT_VECTOR_VERSION("default")
void search_forward(const TrellisRows& job, float* last, uint8_t* from) { search<4>(job, last, from); }
#ifdef LOWBIT_HAS_VECTOR_VERSIONS
LOWBIT_VECTOR_VERSION("avx2")
void search_forward(const TrellisRows& job, float* last, uint8_t* from) { search<8>(job, last, from); }
LOWBIT_VECTOR_VERSION("avx512f")
void search_forward(const TrellisRows& job, float* last, uint8_t* from) { search<16>(job, last, from); }
#endif

}  // namespace

void search_trellis(const TrellisRows& job, std::vector<uint8_t>& scratch) {
  scratch.resize(static_cast<size_t>(job.k * kStates * kTrellisLanes));
  float last[kStates][kTrellisLanes];
  search_forward(job, last[0], scratch.data());
  unsigned states[kTrellisLanes] = {};
  for (int64_t r = 0; r < job.rows; ++r)
    for (unsigned s = 1; s < kStates; ++s)
      if (last[s][r] < last[states[r]][r]) states[r] = s;
  // Column by column, so that the rows' looks at what lies far apart do not wait for each other.
  for (int64_t i = job.k - 1; i >= 0; --i)
    for (int64_t r = 0; r < job.rows; ++r) {
      const unsigned oldest = scratch[static_cast<size_t>((i * kStates + states[r]) * kTrellisLanes + r)];
      const unsigned window = states[r] + oldest * kStates;
      job.codes[r][i] = job.trellis->codes[window];
      states[r] = window >> job.trellis->stored_bits;
    }
}

}  // namespace lowbit
