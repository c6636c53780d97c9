#pragma once
// Fibers for kernels that run on the host: stacks, and the step from one to another.

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

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
.weak lowbit_switch_fibers
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

constexpr size_t kStack = 64 << 10;
/// Of a thread; the next launch uses it again. Stacks that begin at the same place of a page would share a few lines of
/// the caches, which takes most of the time of a switch.
inline char* stack_of(size_t thread) {
  constexpr size_t kLine = 64, kColours = 61, kApart = 5;  // lines
  static std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() <= thread) stacks.emplace_back(new char[kStack + kColours * kLine]);
  return stacks[thread].get() + thread * kApart % kColours * kLine;
}

}  // namespace lowbit::fibers
