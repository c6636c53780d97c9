#pragma once
// In place of src/kernels/cuda/gru/matrix.cuh: the same functions for a host compiler. Every CUDA thread is a fiber;
// what a warp, a block or a cluster does together waits until all of them have come. Addresses of shared memory are
// offsets, with the rank of another block of the cluster above them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/conformance/cuda_emulated/fiber_switch.h"

namespace lowbit::cuda::gru {

using std::max;
using std::min;

namespace emulation {

struct Fiber {
  fibers::Context context;
  int thread = 0, block = 0;
  bool done = false;
};

/// Counts arrivals of a group; a round is over when all of it has come.
struct Meeting {
  int wanted = 0, arrived = 0;
  uint64_t round = 0;
};

struct ByteBarrier {
  int64_t bytes = 0;
  bool armed = false;
  uint64_t phase = 0;
  void complete() {
    if (!armed || bytes != 0) return;
    armed = false;
    ++phase;
  }
};

struct Lane {
  uint4 a;
  uint32_t b0, b1, word;
};

struct Machine {
  int threads = 0, cluster = 1;  // of a block, blocks of a cluster
  std::vector<Fiber> fibers;
  std::vector<std::vector<uint8_t>> memory;  // per block
  std::vector<Meeting> warps, blocks, clusters;
  std::map<std::pair<int, int>, Meeting> named;  // by block and number
  std::vector<Lane> lanes;
  std::map<std::pair<int, uint32_t>, ByteBarrier> barriers;
  fibers::Context scheduler;
  Fiber* current = nullptr;
  std::function<void()> body;
  int64_t idle = 0;  // turns without progress
};
inline Machine* machine = nullptr;

inline void yield() {
  Fiber* const self = machine->current;
  fibers::switch_to(self->context, machine->scheduler);
}
inline void meet(Meeting& m) {
  const uint64_t round = m.round;
  machine->idle = 0;
  if (++m.arrived == m.wanted) {
    m.arrived = 0;
    ++m.round;
  }
  while (m.round == round) yield();
  machine->idle = 0;
}
inline int warp_index() { return (machine->current->block * machine->threads + machine->current->thread) / 32; }
inline Lane* warp_lanes() { return machine->lanes.data() + int64_t{warp_index()} * 32; }
inline int lane() { return machine->current->thread % 32; }
inline void warp_sync() { meet(machine->warps[static_cast<size_t>(warp_index())]); }
inline uint8_t* memory_at(uint32_t address) {
  const int rank = int(address >> 24);
  const int block =
      rank == 0 ? machine->current->block : machine->current->block / machine->cluster * machine->cluster + rank - 1;
  return machine->memory[static_cast<size_t>(block)].data() + (address & 0xffffff);
}
inline ByteBarrier& barrier_at(uint32_t address) {
  const int rank = int(address >> 24);
  const int block =
      rank == 0 ? machine->current->block : machine->current->block / machine->cluster * machine->cluster + rank - 1;
  return machine->barriers[{block, address & 0xffffff}];
}

inline void enter() {
  machine->body();
  machine->current->done = true;
  fibers::switch_to(machine->current->context, machine->scheduler);
}

/// Runs `body` in blocks * threads fibers. False when they wait for each other for ever.
inline bool run(int blocks, int threads, int cluster, int shared_bytes, std::function<void()> body) {
  Machine m;
  machine = &m;
  m.threads = threads;
  m.cluster = cluster;
  m.body = std::move(body);
  m.memory.assign(static_cast<size_t>(blocks), std::vector<uint8_t>(static_cast<size_t>(shared_bytes), 0xcd));
  m.warps.assign(static_cast<size_t>(blocks * threads / 32), {32, 0, 0});
  m.blocks.assign(static_cast<size_t>(blocks), {threads, 0, 0});
  m.clusters.assign(static_cast<size_t>(blocks / cluster), {threads * cluster, 0, 0});
  m.lanes.resize(static_cast<size_t>(blocks * threads));
  m.fibers.resize(static_cast<size_t>(blocks * threads));
  for (size_t i = 0; i < m.fibers.size(); ++i) {
    Fiber& f = m.fibers[i];
    f.thread = int(i) % threads;
    f.block = int(i) / threads;
    fibers::begin(f.context, fibers::stack_of(i), fibers::kStack, enter);
  }
  for (bool left = true; left;) {
    left = false;
    for (Fiber& f : m.fibers) {
      if (f.done) continue;
      left = true;
      m.current = &f;
      fibers::switch_to(m.scheduler, f.context);
    }
    if (left && ++m.idle > 200) return false;
  }
  return true;
}

struct Index {
  bool block;
  operator int() const { return block ? machine->current->block : machine->current->thread; }  // NOLINT
};
struct Dimension {
  operator int() const { return machine->threads; }  // NOLINT
};
struct IndexOf {
  Index x;
};
struct DimensionOf {
  Dimension x;
};

}  // namespace emulation

inline emulation::IndexOf threadIdx{{false}}, blockIdx{{true}};
inline emulation::DimensionOf blockDim;

// ---- Numbers

inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low));
}
inline int __double2loint(double v) { return int(uint32_t(std::bit_cast<uint64_t>(v))); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(bytes >> (8 * (select >> (4 * i) & 7)) & 0xff) << (8 * i);
  return out;
}
template <class T>
void hold(T&) {}
template <class T>
T __ldg(const T* p) {
  return *p;
}

// ---- What threads do together

inline void __syncthreads() { emulation::meet(emulation::machine->blocks[size_t(emulation::machine->current->block)]); }
/// A barrier of `threads` threads of the block, by its number.
inline void named_sync(int number, int threads) {
  emulation::Meeting& m = emulation::machine->named[{emulation::machine->current->block, number}];
  m.wanted = threads;
  emulation::meet(m);
}
inline void pair_sync(int pair) { named_sync(1 + pair, 64); }
inline void warps_sync(int threads) { named_sync(1, threads); }
inline void __syncwarp() { emulation::warp_sync(); }
inline void cluster_sync() {
  emulation::meet(
      emulation::machine->clusters[size_t(emulation::machine->current->block / emulation::machine->cluster)]);
}

inline void mma_s8_u8(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  emulation::Lane* const lanes = emulation::warp_lanes();
  const int lane = emulation::lane();
  lanes[lane].a = a;
  lanes[lane].b0 = b0;
  lanes[lane].b1 = b1;
  emulation::warp_sync();
  const auto weight = [&](int row, int k) {  // words: rows g and g + 8 at columns 4 t.., then both at 16 + 4 t..
    const uint4& v = lanes[row % 8 * 4 + k % 16 / 4].a;
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return int(int8_t(words[row / 8 + 2 * (k / 16)] >> (8 * (k % 4))));
  };
  const auto code = [&](int k, int column) {
    const emulation::Lane& l = lanes[column * 4 + k % 16 / 4];
    return int(uint8_t((k < 16 ? l.b0 : l.b1) >> (8 * (k % 4))));
  };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), column = 2 * (lane % 4) + e % 2;
    uint32_t sum = uint32_t(c[e]);
    for (int k = 0; k < 32; ++k) sum += uint32_t(weight(row, k) * code(k, column));
    c[e] = int(sum);
  }
  emulation::warp_sync();
}

inline void load_blocks(uint32_t (&b)[4], uint32_t address) {
  emulation::Lane* const lanes = emulation::warp_lanes();
  const int lane = emulation::lane();
  if (address % 16 != 0) std::abort();
  lanes[lane].word = address;
  emulation::warp_sync();
  for (int i = 0; i < 4; ++i)
    std::memcpy(&b[i], emulation::memory_at(lanes[8 * i + lane / 4].word) + 4 * (lane % 4), 4);
  emulation::warp_sync();
}

// ---- Memory

inline uint8_t* block_memory() { return emulation::memory_at(0); }
inline uint32_t shared_address(const void* p) {
  // In a cluster a block's own addresses hold its rank too.
  const auto offset = uint32_t(static_cast<const uint8_t*>(p) - emulation::memory_at(0));
  const emulation::Machine& m = *emulation::machine;
  return m.cluster == 1 ? offset : offset | uint32_t(m.current->block % m.cluster + 1) << 24;
}
inline float load_shared_f32(uint32_t address) {
  if (address % 4 != 0) std::abort();
  float v;
  std::memcpy(&v, emulation::memory_at(address), 4);
  return v;
}
inline uint4 load_shared_16(uint32_t address) {
  if (address % 16 != 0) std::abort();
  uint4 v;
  std::memcpy(&v, emulation::memory_at(address), 16);
  return v;
}
inline uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  std::memcpy(&v, emulation::memory_at(address), 4);
  return v;
}
inline uint32_t load_shared_2(uint32_t address) {
  uint16_t v;
  std::memcpy(&v, emulation::memory_at(address), 2);
  return v;
}
inline void store_shared_1(uint32_t address, uint32_t v) { *emulation::memory_at(address) = uint8_t(v); }
inline void store_shared_2(uint32_t address, uint32_t v) {
  if (address % 2 != 0) std::abort();
  const auto word = uint16_t(v);
  std::memcpy(emulation::memory_at(address), &word, 2);
}
inline void store_shared_16(uint32_t address, const uint4& v) {
  if (address % 16 != 0) std::abort();
  std::memcpy(emulation::memory_at(address), &v, 16);
}
inline void store_1(uint8_t* p, uint32_t v) { *p = uint8_t(v); }
inline void store_2(uint8_t* p, uint32_t v) {
  if (reinterpret_cast<uintptr_t>(p) % 2 != 0) std::abort();
  const auto word = uint16_t(v);
  std::memcpy(p, &word, 2);
}
template <class Byte>
Byte* row_at(Byte* data, int row, int stride) {
  return data + int64_t{row} * stride;
}
inline void copies_commit() {}
template <int InFlight>
void copies_wait() {}
inline void copy_async_16(uint32_t to, const void* from) {
  if (to % 16 != 0) std::abort();
  std::memcpy(emulation::memory_at(to), from, 16);
}
inline void wait_for_all_copies() {}
inline void let_successor_start() {}
inline void wait_for_predecessor() {}
inline void store_release(uint32_t* p, uint32_t v) {
  *p = v;
  emulation::machine->idle = 0;
}
inline uint32_t load_acquire(const uint32_t* p) {
  emulation::yield();
  return *p;
}

inline void barrier_init(uint32_t barrier, uint32_t) {
  if (barrier % 8 != 0) std::abort();
  emulation::barrier_at(barrier) = {};
}
inline void barriers_visible() {}
inline uint32_t shared_of(uint32_t address, uint32_t rank) { return (address & 0xffffff) | (rank + 1) << 24; }
inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  emulation::ByteBarrier& b = emulation::barrier_at(barrier);
  if (b.armed) std::abort();
  b.armed = true;
  b.bytes += bytes;
  b.complete();
}
inline void send_16(uint32_t address, const uint4& v, uint32_t barrier) {
  if (address % 16 != 0 || barrier % 8 != 0) std::abort();
  std::memcpy(emulation::memory_at(address), &v, 16);
  emulation::ByteBarrier& b = emulation::barrier_at(barrier);
  b.bytes -= 16;
  b.complete();
  emulation::machine->idle = 0;
}
inline void writes_visible_to_copies() {}
inline void send_bulk(uint32_t address, uint32_t from, uint32_t bytes, uint32_t barrier) {
  if (address % 16 != 0 || from % 16 != 0 || bytes % 16 != 0 || barrier % 8 != 0) std::abort();
  std::memcpy(emulation::memory_at(address), emulation::memory_at(from), bytes);
  emulation::ByteBarrier& b = emulation::barrier_at(barrier);
  b.bytes -= bytes;
  b.complete();
  emulation::machine->idle = 0;
}
inline void wait_for_bytes(uint32_t barrier, uint32_t parity) {
  while (emulation::barrier_at(barrier).phase % 2 == parity) emulation::yield();
  emulation::machine->idle = 0;
}

}  // namespace lowbit::cuda::gru
