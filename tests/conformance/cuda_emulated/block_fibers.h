#pragma once
// Kernels of src/kernels/cuda/block/ for a host compiler: the threads of a block are fibers that wait for each other at
// barriers and shuffles, blocks run one after the other, and shared memory is static.

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/conformance/cuda_emulated/fiber_switch.h"

#undef __global__
#undef __device__
#undef __forceinline__
#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

namespace lowbit::fibers {

struct Fiber {
  Context context;
  bool started = false, done = false;
};

/// Counts arrivals of a group; a round is over when all of it has come.
struct Meeting {
  int wanted = 0, arrived = 0;
  uint64_t round = 0;
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  Meeting all;
  std::vector<float> lanes;
  Context scheduler;
  size_t current = 0;
  std::function<void()> body;
};
inline Machine* machine = nullptr;

/// Launches that a stream records instead of running them.
using Recording = std::vector<std::function<void()>>;
inline Recording* recording = nullptr;
inline void now_or_recorded(std::function<void()> work) {
  if (recording != nullptr) {
    recording->push_back(std::move(work));
  } else {
    work();
  }
}

void enter();
void go_on_with(size_t thread);

/// The next thread behind `thread`, in turn, that is not done; `thread` itself when there is no other.
inline size_t next_of(size_t thread) {
  const size_t count = machine->fibers.size();
  size_t next = thread;
  do {
    next = next + 1 == count ? 0 : next + 1;
  } while (next != thread && machine->fibers[next].done);
  return next;
}

/// Lets the next thread run; comes back when it is this one's turn.
inline void yield() {
  const size_t self = machine->current, next = next_of(self);
  if (next == self) return;
  Fiber& fiber = machine->fibers[next];
  if (!fiber.started) {
    fiber.started = true;
    begin(fiber.context, stack_of(next), kStack, enter);
  }
  go_on_with(next);
  switch_to(machine->fibers[self].context, fiber.context);
  go_on_with(self);
}

inline void meet(Meeting& m) {
  const uint64_t round = m.round;
  if (++m.arrived == m.wanted) {
    m.arrived = 0;
    ++m.round;
  }
  while (m.round == round) yield();
}

/// Threads that have not begun run on the stack of one that is done: most kernels never wait, and then need no other.
inline void enter() {
  for (;;) {
    const size_t self = machine->current;
    machine->body();
    machine->fibers[self].done = true;
    const size_t next = next_of(self);
    if (next == self) break;
    Fiber& fiber = machine->fibers[next];
    go_on_with(next);
    if (fiber.started) switch_to(machine->fibers[self].context, fiber.context);
    fiber.started = true;
  }
  switch_to(machine->fibers[machine->current].context, machine->scheduler);
}

}  // namespace lowbit::fibers

namespace lowbit::cuda {

inline dim3 threadIdx, blockIdx, gridDim;

}  // namespace lowbit::cuda

namespace lowbit::fibers {

inline void go_on_with(size_t thread) {
  machine->current = thread;
  cuda::threadIdx = dim3(static_cast<unsigned>(thread));
}

}  // namespace lowbit::fibers

namespace lowbit::cuda {

inline void __syncthreads() { fibers::meet(fibers::machine->all); }
inline void __syncwarp() { fibers::meet(fibers::machine->warps[fibers::machine->current / 32]); }

inline void __threadfence_block() {}

inline float exchange(float v, int from) {
  fibers::Machine& m = *fibers::machine;
  const size_t thread = m.current, warp = thread / 32;
  m.lanes[thread] = v;
  fibers::meet(m.warps[warp]);
  const float taken = m.lanes[warp * 32 + static_cast<size_t>(from)];
  fibers::meet(m.warps[warp]);
  return taken;
}
inline float __shfl_down_sync(unsigned, float v, int delta, int width = 32) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return exchange(v, lane % width + delta < width ? lane + delta : lane);
}
inline float __shfl_up_sync(unsigned, float v, int delta, int width) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return exchange(v, lane % width >= delta ? lane - delta : lane);
}
inline unsigned __shfl_xor_sync(unsigned, unsigned v, int mask, int = 32) {
  return std::bit_cast<unsigned>(exchange(std::bit_cast<float>(v), static_cast<int>(threadIdx.x % 32) ^ mask));
}
inline float __shfl_xor_sync(unsigned, float v, int mask) {
  return exchange(v, static_cast<int>(threadIdx.x % 32) ^ mask);
}
inline unsigned long long __shfl_xor_sync(unsigned mask, unsigned long long v, int by, int width) {
  const unsigned high = __shfl_xor_sync(mask, static_cast<unsigned>(v >> 32), by, width);
  return static_cast<unsigned long long>(high) << 32 | __shfl_xor_sync(mask, static_cast<unsigned>(v), by, width);
}
inline float __shfl_sync(unsigned, float v, int source, int width) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return exchange(v, lane / width * width + source);
}

inline unsigned __shfl_sync(unsigned mask, unsigned v, int source, int width) {
  return std::bit_cast<unsigned>(__shfl_sync(mask, std::bit_cast<float>(v), source, width));
}

inline unsigned __reduce_max_sync(unsigned, unsigned v) {
  for (int by = 1; by < 32; by *= 2) v = std::max(v, __shfl_xor_sync(0xffffffffu, v, by));
  return v;
}

inline bool __any_sync(unsigned, bool yes) {
  bool any = false;
  for (int lane = 0; lane < 32; ++lane) any |= exchange(yes ? 1.0f : 0.0f, lane) != 0;
  return any;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline int __float2int_rn(float v) { return static_cast<int>(std::nearbyint(v)); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __double2float_rn(double v) { return static_cast<float>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
  unsigned bytes = 0;
  for (unsigned i = 0; i < 4; ++i)
    bytes |= static_cast<unsigned>(both >> (8 * (which >> (4 * i) & 7u)) & 0xffu) << (8 * i);
  return bytes;
}
inline unsigned long long atomicMin(unsigned long long* to, unsigned long long v) {
  const auto before = *to;
  *to = std::min(before, v);
  return before;
}
template <class T>
inline T atomicMax(T* to, T v) {
  const T before = *to;
  *to = std::max(before, v);
  return before;
}
template <class T>
inline T atomicAdd(T* to, T v) {
  const T before = *to;
  *to += v;
  return before;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<__uint128_t>(a) * b) >> 64);
}
using std::max;
using std::min;

/// Runs a kernel. Threads that wait for each other for ever would hang the test.
inline void run_blocks(const std::function<void()>& body, dim3 grid, dim3 block) {
  fibers::Machine m;
  fibers::machine = &m;
  m.body = body;
  m.fibers.resize(block.x);
  m.lanes.resize(block.x);
  gridDim = grid;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        m.all = {static_cast<int>(block.x), 0, 0};
        m.warps.assign((block.x + 31) / 32, {32, 0, 0});
        for (fibers::Fiber& fiber : m.fibers) fiber.started = fiber.done = false;
        m.fibers[0].started = true;
        fibers::begin(m.fibers[0].context, fibers::stack_of(0), fibers::kStack, fibers::enter);
        fibers::go_on_with(0);
        fibers::switch_to(m.scheduler, m.fibers[0].context);
      }
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t, cudaStream_t, bool,
                   Arguments... arguments) {
  const std::function<void()> body = [=] { kernel(static_cast<Parameters>(arguments)...); };
  fibers::now_or_recorded([=] { run_blocks(body, grid, block); });
  return cudaSuccess;
}
template <class... Parameters, class... Arguments>
cudaError_t launch_cluster(void (*kernel)(Parameters...), dim3 grid, dim3 block, dim3, size_t shared_bytes,
                           cudaStream_t stream, bool overlap, Arguments... arguments) {
  return launch(kernel, grid, block, shared_bytes, stream, overlap, arguments...);
}

}  // namespace lowbit::cuda
