#pragma once
// One thread block chooses the token of a row: from a short list of the largest logits, or from all of them.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda_sample_api.h"

namespace lowbit::cuda::sample {

using Key = unsigned long long;  // the larger, the earlier: by logit, then by id
constexpr int kThreads = 1024, kMostListed = 1024, kDigits = 256, kDigitBits = 8;

__device__ __forceinline__ uint32_t order_of(float logit) {
  const uint32_t bits = logit == 0.0f ? 0u : __float_as_uint(logit);  // both zeros are equal
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ Key key_of(float logit, uint32_t id) {
  return static_cast<Key>(order_of(logit)) << 32 | (0xffffffffu - id);
}
__device__ __forceinline__ uint32_t id_of(Key key) { return 0xffffffffu - static_cast<uint32_t>(key); }
__device__ __forceinline__ float logit_of(Key key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

/// token_weight() of kernels/token_weight.h.
__device__ __forceinline__ Key weight_of(float logit, float largest, float temperature) {
  const float e = logit == largest ? 1.0f : block::exp_f32(__fdiv_rn(__fsub_rn(logit, largest), temperature));
  return static_cast<Key>(__fmul_rn(e, 0x1p40f));
}
__device__ __forceinline__ Key wanted_weight(const TokenRule& rule, Key total) {
  const Key wanted = part_of_weight(total, rule.top_p);
  return wanted > 1 ? wanted : 1;
}

struct Shared {
  Key keys[kMostListed], weights[kMostListed], sums[2][kThreads];
  Key histogram[kDigits], found;
};

/// Sums up to and with each thread's `value`; all threads of the block take part.
__device__ __forceinline__ Key sum_up_to(Key value, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  int from = 0;
  shared.sums[0][thread] = value;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2, from ^= 1) {
    value = shared.sums[from][thread];
    if (thread >= step) value += shared.sums[from][thread - step];
    shared.sums[from ^ 1][thread] = value;
    __syncthreads();
  }
  return value;
}
/// Behind it: of all threads.
__device__ __forceinline__ Key sum_of_all(const Shared& shared) { return shared.sums[0][kThreads - 1]; }

/// The largest first. Shapes: keys [count], a power of two.
__device__ __forceinline__ void sort_keys(Key* keys, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int run = 2; run <= count; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      const int other = thread ^ step;
      if (thread < count && other > thread) {
        const Key a = keys[thread], b = keys[other];
        if ((a < b) == ((thread & run) == 0)) {
          keys[thread] = b;
          keys[other] = a;
        }
      }
      __syncthreads();
    }
}

/// From `count` listed keys, among which are the rule.top_k largest.
__device__ __forceinline__ void choose_listed(const TokenRule& rule, int count, Shared& shared, ChosenToken* to) {
  const int thread = static_cast<int>(threadIdx.x);
  int padded = 2;
  while (padded < count) padded *= 2;
  sort_keys(shared.keys, padded);
  const int most = min(count, rule.top_k);
  const float largest = logit_of(shared.keys[0]);
  const bool in = thread < most;
  const float logit = in ? logit_of(shared.keys[thread]) : 0.0f;
  const Key weight = in ? weight_of(logit, largest, 1.0f) : 0;
  const Key sum = sum_up_to(weight, shared), wanted = wanted_weight(rule, sum_of_all(shared));
  const bool kept = in && (rule.top_p == TokenRule::kAllOfIt || sum - weight < wanted) && weight >= rule.min_p;
  const Key drawn = kept ? weight_of(logit, largest, rule.temperature) : 0;
  if (in) shared.weights[thread] = drawn;
  __syncthreads();
  if (!kept) return;
  Key before = 0, total = 0;  // of those with lower ids, of all
  const uint32_t id = id_of(shared.keys[thread]);
  for (int i = 0; i < most; ++i) {
    const Key other = shared.weights[i];
    total += other;
    if (id_of(shared.keys[i]) < id) before += other;
  }
  const Key left = __umul64hi(rule.random, total);
  if (left >= before && left - before < drawn) *to = {static_cast<int32_t>(id), -1};
}

/// The largest key such that those from it on measure `wanted` at least; of keys from `least` on. They do in all.
template <class Measure>
__device__ __forceinline__ Key cut_at(const float* logits, int vocab, Key least, Key wanted, const Measure& measure,
                                      Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  Key prefix = 0, before = 0;
  for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    if (thread < kDigits) shared.histogram[thread] = 0;
    __syncthreads();
    for (int i = thread; i < vocab; i += kThreads) {
      const Key key = key_of(logits[i], static_cast<uint32_t>(i));
      const Key above = shift == 64 - kDigitBits ? 0 : key >> (shift + kDigitBits);
      if (key >= least && above == prefix) atomicAdd(&shared.histogram[(key >> shift) % kDigits], measure(logits[i]));
    }
    __syncthreads();
    // Digits in descending order: thread t has digit 255 - t.
    const Key here = thread < kDigits ? shared.histogram[kDigits - 1 - thread] : 0;
    const Key sum = before + sum_up_to(here, shared);
    if (sum >= wanted && sum - here < wanted && here > 0) {
      shared.found = static_cast<Key>(kDigits - 1 - thread);
      shared.weights[0] = sum - here;
    }
    __syncthreads();
    prefix = prefix << kDigitBits | shared.found;
    before = shared.weights[0];
    __syncthreads();
  }
  return prefix;
}

/// From all logits of a row, whatever the rule: it reads them many times.
__device__ __forceinline__ void choose_of_all(const TokenRule& rule, const float* logits, int vocab, float largest,
                                              Shared& shared, ChosenToken* to) {
  const int thread = static_cast<int>(threadIdx.x);
  Key least = 0;
  if (rule.top_k > 0 && rule.top_k < vocab)
    least = cut_at(
        logits, vocab, 0, static_cast<Key>(rule.top_k), [](float) { return Key{1}; }, shared);
  const auto weight = [&](float logit) { return weight_of(logit, largest, 1.0f); };
  if (rule.top_p != TokenRule::kAllOfIt) {
    Key own = 0;
    for (int i = thread; i < vocab; i += kThreads)
      if (key_of(logits[i], static_cast<uint32_t>(i)) >= least) own += weight(logits[i]);
    sum_up_to(own, shared);
    const Key wanted = wanted_weight(rule, sum_of_all(shared));
    __syncthreads();
    least = cut_at(logits, vocab, least, wanted, weight, shared);
  }
  const auto drawn = [&](int i) {
    if (key_of(logits[i], static_cast<uint32_t>(i)) < least || weight(logits[i]) < rule.min_p) return Key{0};
    return weight_of(logits[i], largest, rule.temperature);
  };
  const int share = (vocab + kThreads - 1) / kThreads, begin = min(thread * share, vocab),
            end = min(begin + share, vocab);
  Key own = 0;
  for (int i = begin; i < end; ++i) own += drawn(i);
  const Key before = sum_up_to(own, shared) - own, left = __umul64hi(rule.random, sum_of_all(shared));
  if (left < before || left - before >= own) return;
  Key rest = left - before;
  for (int i = begin; i < end; ++i) {
    const Key here = drawn(i);
    if (rest < here) {
      *to = {i, -1};
      return;
    }
    rest -= here;
  }
}

}  // namespace lowbit::cuda::sample
