#pragma once
// Kernels of src/kernels/cuda/block/ for a host compiler: the threads of a block are fibers that wait for each other at barriers and
// shuffles, blocks run one after the other, and shared memory is static.

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

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

/// Where a thread of a block, or what runs them in turn, goes on. ucontext asks the system to keep signals at each
/// switch, which takes most of a test's time.
#if defined(__x86_64__)
struct Context {
  void* stack = nullptr;
};
extern "C" void lowbit_switch_fibers(void** from, void* to);
asm(R"(
.text
.globl lowbit_switch_fibers
.type lowbit_switch_fibers, @function
lowbit_switch_fibers:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lowbit_switch_fibers, .-lowbit_switch_fibers
)");
inline void switch_to(Context& from, Context& to) { lowbit_switch_fibers(&from.stack, to.stack); }
inline void begin(Context& context, char* stack, size_t size, void (*entry)()) {
  constexpr int kSaved = 6;
  auto** const top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) / 16 * 16) - 2;
  *top = reinterpret_cast<void*>(entry);
  std::fill_n(top - kSaved, kSaved, nullptr);
  context.stack = top - kSaved;
}
#else
struct Context {
  ucontext_t of;
};
inline void switch_to(Context& from, Context& to) { swapcontext(&from.of, &to.of); }
inline void begin(Context& context, char* stack, size_t size, void (*entry)()) {
  getcontext(&context.of);
  context.of.uc_stack.ss_sp = stack;
  context.of.uc_stack.ss_size = size;
  context.of.uc_link = nullptr;
  makecontext(&context.of, entry, 0);
}
#endif

struct Fiber {
  Context context;
  bool done = false;
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

/// What launches leave behind while a stream is recorded, in place of running.
using Recording = std::vector<std::function<void()>>;
inline Recording* recording = nullptr;
inline void now_or_recorded(std::function<void()> work) {
  if (recording != nullptr) {
    recording->push_back(std::move(work));
  } else {
    work();
  }
}

constexpr size_t kStack = 64 << 10;
/// Of a thread of a block; the next launch uses it again.
inline char* stack_of(size_t thread) {
  static std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= thread) stacks.emplace_back(new char[kStack]);
  return stacks[thread].get();
}

inline void meet(Meeting& m) {
  const uint64_t round = m.round;
  if (++m.arrived == m.wanted) {
    m.arrived = 0;
    ++m.round;
  }
  while (m.round == round) switch_to(machine->fibers[machine->current].context, machine->scheduler);
}

inline void enter() {
  machine->body();
  machine->fibers[machine->current].done = true;
  switch_to(machine->fibers[machine->current].context, machine->scheduler);
}

}  // namespace lowbit::fibers

namespace lowbit::cuda {

inline dim3 threadIdx, blockIdx;

inline void __syncthreads() { fibers::meet(fibers::machine->all); }

inline float exchange(float v, int from) {
  fibers::Machine& m = *fibers::machine;
  const size_t thread = m.current, warp = thread / 32;
  m.lanes[thread] = v;
  fibers::meet(m.warps[warp]);
  const float taken = m.lanes[warp * 32 + static_cast<size_t>(from)];
  fibers::meet(m.warps[warp]);
  return taken;
}
inline float __shfl_down_sync(unsigned, float v, int delta, int width) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return exchange(v, lane % width + delta < width ? lane + delta : lane);
}
inline unsigned __shfl_xor_sync(unsigned, unsigned v, int mask, int) {
  return std::bit_cast<unsigned>(exchange(std::bit_cast<float>(v), static_cast<int>(threadIdx.x % 32) ^ mask));
}
inline float __shfl_sync(unsigned, float v, int source, int width) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return exchange(v, lane / width * width + source);
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
inline unsigned long long atomicMin(unsigned long long* to, unsigned long long v) {
  const auto before = *to;
  *to = std::min(before, v);
  return before;
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
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        m.all = {static_cast<int>(block.x), 0, 0};
        m.warps.assign((block.x + 31) / 32, {32, 0, 0});
        for (size_t i = 0; i < m.fibers.size(); ++i) {
          m.fibers[i].done = false;
          fibers::begin(m.fibers[i].context, fibers::stack_of(i), fibers::kStack, fibers::enter);
        }
        for (bool left = true; left;) {
          left = false;
          for (size_t i = 0; i < m.fibers.size(); ++i) {
            if (m.fibers[i].done) continue;
            left = true;
            m.current = i;
            threadIdx = dim3(static_cast<unsigned>(i));
            switch_to(m.scheduler, m.fibers[i].context);
          }
        }
      }
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t, cudaStream_t, bool,
                   Arguments... arguments) {
  const std::function<void()> body = [=] { kernel(static_cast<Parameters>(arguments)...); };
  fibers::now_or_recorded([=] { run_blocks(body, grid, block); });
  return cudaSuccess;
}

}  // namespace lowbit::cuda
