#include "quantize/trellis_search.h"

#include <cstring>
#include <limits>

#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

constexpr int kStates = 64, kCodes = 16;

// One row a lane: wider than most machines' vectors; the compiler splits it.
using Floats = float __attribute__((vector_size(4 * kTrellisLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kTrellisLanes)));
using Bytes = uint8_t __attribute__((vector_size(kTrellisLanes)));
static_assert(sizeof(Bytes) == kTrellisLanes);

Floats all_of(float v) { return v - Floats{}; }

/// What every code costs at column i.
__attribute__((always_inline)) inline void code_costs(const TrellisRows& job, int64_t i, Floats* costs) {
  Floats x{}, scale{};
  for (int64_t r = 0; r < job.rows; ++r) {
    x[r] = job.x[r][i];
    scale[r] = job.scales[r][i / job.group];
  }
  const float h = job.h == nullptr ? 1.0f : job.h[i];
  for (int code = 0; code < kCodes; ++code) {
    const Floats d = x - scale * job.table[code];
    costs[code] = d * d * h;
  }
}

/// One column: the least cost of each state, and which of the states before it that was (the oldest code of the window), for which
/// there are 2^B. State s is the window without its oldest code; the one before it was s >> B with that oldest code on top.
template <int B>
__attribute__((always_inline)) inline void step(const uint8_t* codes, const Floats* costs, const Floats* before,
                                                Floats* after, uint8_t* from) {
  constexpr int kOldest = kStates >> B;
  for (int s = 0; s < kStates; ++s) {
    Floats best = before[s >> B] + costs[codes[s]];
    Ints oldest{};
    for (int p = 1; p < 1 << B; ++p) {
      const Floats other = before[(s >> B) + p * kOldest] + costs[codes[s + p * kStates]];
      const Ints less = other < best;
      best = less ? other : best;
      oldest = less ? Ints{} + p : oldest;
    }
    after[s] = best;
    const Bytes narrow = __builtin_convertvector(oldest, Bytes);
    std::memcpy(from + s * kTrellisLanes, &narrow, sizeof narrow);
  }
}

template <int B>
__attribute__((always_inline)) inline void walk_forward(const TrellisRows& job, Floats* last, uint8_t* from) {
  Floats a[kStates], b[kStates], costs[kCodes];
  Floats *before = a, *after = b;
  for (int s = 0; s < kStates; ++s) before[s] = all_of(s == 0 ? 0.0f : std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < job.k; ++i) {
    code_costs(job, i, costs);
    step<B>(job.trellis->codes, costs, before, after, from + i * kStates * kTrellisLanes);
    std::swap(before, after);
  }
  std::memcpy(last, before, sizeof a);
}

LOWBIT_VECTOR_CLONES
void walk_forward2(const TrellisRows& job, Floats* last, uint8_t* from) { walk_forward<2>(job, last, from); }
LOWBIT_VECTOR_CLONES
void walk_forward3(const TrellisRows& job, Floats* last, uint8_t* from) { walk_forward<3>(job, last, from); }

}  // namespace

void search_trellis(const TrellisRows& job, std::vector<uint8_t>& scratch) {
  scratch.resize(static_cast<size_t>(job.k * kStates * kTrellisLanes));
  Floats last[kStates];
  (job.trellis->stored_bits == 2 ? walk_forward2 : walk_forward3)(job, last, scratch.data());
  for (int64_t r = 0; r < job.rows; ++r) {
    unsigned state = 0;
    for (unsigned s = 1; s < kStates; ++s)
      if (last[s][r] < last[state][r]) state = s;
    for (int64_t i = job.k - 1; i >= 0; --i) {
      const unsigned oldest = scratch[static_cast<size_t>((i * kStates + state) * kTrellisLanes + r)];
      const unsigned window = state + oldest * kStates;
      job.codes[r][i] = job.trellis->codes[window];
      state = window >> job.trellis->stored_bits;
    }
  }
}

}  // namespace lowbit
