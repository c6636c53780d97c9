#pragma once
// A cooperative launch for a host compiler: the threads of all thread blocks are fibers that take turns, and wait for each other at
// barriers, in exchanges of a warp and by looking at memory.

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#undef __global__
#undef __device__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace lowbit::chain_fibers {

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};

/// Counts arrivals; a round is over when all have come.
struct Meeting {
  int arrived = 0;
  uint64_t round = 0;
};

/// A barrier of the copy engine.
struct CopyBarrier {
  int64_t bytes = 0;
  int wanted = 0, arrived = 0, phase = 0;
  void settle() {
    if (arrived != wanted || bytes != 0) return;
    arrived = 0;
    ++phase;
  }
};

struct Block {
  static constexpr size_t kLaneWords = 6;
  uint8_t* shared = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  Meeting named[8];
  std::vector<uint32_t> lanes;
  std::vector<CopyBarrier> barriers;
};
inline Block* block = nullptr;
inline size_t current = 0;
inline ucontext_t scheduler;
inline std::function<void()> body;

inline void yield() { swapcontext(&block->fibers[current].context, &scheduler); }
inline void meet(Meeting& m, int wanted) {
  const uint64_t round = m.round;
  if (++m.arrived == wanted) {
    m.arrived = 0;
    ++m.round;
  }
  while (m.round == round) yield();
}
inline void enter() {
  body();
  block->fibers[current].done = true;
  yield();
}

/// A function of its own, since getcontext() may return twice.
[[gnu::noinline]] inline void prepare(Fiber& f) {
  constexpr size_t kStack = 64 << 10;
  f.stack = std::make_unique<char[]>(kStack);
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack.get();
  f.context.uc_stack.ss_size = kStack;
  f.context.uc_link = nullptr;
  makecontext(&f.context, enter, 0);
}

/// Every lane shows `count` words; take() sees word i of lane l of the warp.
template <class Take>
inline auto exchange(const uint32_t* words, size_t count, const Take& take) {
  const size_t thread = current, first = thread / 32 * 32;
  Block& b = *block;
  for (size_t i = 0; i < count; ++i) b.lanes[thread * Block::kLaneWords + i] = words[i];
  meet(b.warps[thread / 32], 32);
  const auto result = take([&](int lane, size_t i) { return b.lanes[(first + size_t(lane)) * Block::kLaneWords + i]; });
  meet(b.warps[thread / 32], 32);
  return result;
}

}  // namespace lowbit::chain_fibers

namespace lowbit::cuda {

inline dim3 threadIdx, blockIdx, gridDim;
using std::max;
using std::min;

inline void __syncthreads() {
  chain_fibers::meet(chain_fibers::block->named[0], int(chain_fibers::block->fibers.size()));
}
inline uint32_t __shfl_xor_sync(unsigned, uint32_t v, int mask) {
  const int lane = int(chain_fibers::current % 32);
  return chain_fibers::exchange(&v, 1, [&](const auto& word) { return word(lane ^ mask, 0); });
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t v) {
  return chain_fibers::exchange(&v, 1, [](const auto& word) {
    uint32_t most = 0;
    for (int l = 0; l < 32; ++l) most = max(most, word(l, 0));
    return most;
  });
}
inline int __reduce_add_sync(unsigned, int v) {
  const auto mine = uint32_t(v);
  return chain_fibers::exchange(&mine, 1, [](const auto& word) {
    int sum = 0;
    for (int l = 0; l < 32; ++l) sum += int(word(l, 0));
    return sum;
  });
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int8_t(a >> (8 * i)) * int8_t(b >> (8 * i));
  return c;
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= uint32_t(both >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  return r;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline uint32_t atomicAdd(uint32_t* to, uint32_t v) {
  const uint32_t before = *to;
  *to += v;
  return before;
}

/// Runs a kernel with one thread block per multiprocessor of an imagined device. False: they wait for each other for ever.
template <class Arguments>
bool launch_together(void (*kernel)(Arguments), const Arguments& arguments, int grid, int threads,
                     size_t shared_bytes) {
  constexpr int kMostRounds = 100000;
  std::vector<chain_fibers::Block> blocks(static_cast<size_t>(grid));
  chain_fibers::body = [&] { kernel(arguments); };
  gridDim = dim3(static_cast<unsigned>(grid));
  for (chain_fibers::Block& b : blocks) {
    b.shared = static_cast<uint8_t*>(std::aligned_alloc(128, (shared_bytes + 127) / 128 * 128));
    std::memset(b.shared, 0xcd, shared_bytes);
    b.fibers.resize(static_cast<size_t>(threads));
    b.warps.resize(static_cast<size_t>(threads / 32));
    b.lanes.resize(static_cast<size_t>(threads) * chain_fibers::Block::kLaneWords);
    b.barriers.resize(shared_bytes / 8);
    for (auto& f : b.fibers) chain_fibers::prepare(f);
  }
  bool left = true;
  for (int round = 0; left && round < kMostRounds; ++round) {
    left = false;
    for (size_t b = 0; b < blocks.size(); ++b)
      for (size_t i = 0; i < blocks[b].fibers.size(); ++i) {
        if (blocks[b].fibers[i].done) continue;
        left = true;
        chain_fibers::block = &blocks[b];
        chain_fibers::current = i;
        threadIdx = dim3(static_cast<unsigned>(i));
        blockIdx = dim3(static_cast<unsigned>(b));
        swapcontext(&chain_fibers::scheduler, &blocks[b].fibers[i].context);
      }
  }
  for (chain_fibers::Block& b : blocks) std::free(b.shared);
  return !left;
}

}  // namespace lowbit::cuda
