#pragma once
// src/kernels/cuda/matmul_chain_ptx.cuh for fibers.

namespace lowbit::cuda {

inline uint8_t* shared_memory() { return chain_fibers::block->shared; }
template <class T>
inline void settle(T&) {}
template <class T>
inline T shared_value(uint32_t at) {
  T v;
  std::memcpy(&v, chain_fibers::block->shared + at, sizeof v);
  return v;
}
template <class T>
inline void set_shared(uint32_t at, T v) {
  std::memcpy(chain_fibers::block->shared + at, &v, sizeof v);
}

inline void load_exchange_16(const void* from, uint32_t (&v)[4]) {
  chain_fibers::yield();
  std::memcpy(v, from, 16);
}
inline void load_exchange_8(const void* from, uint32_t (&v)[2]) {
  chain_fibers::yield();
  std::memcpy(v, from, 8);
}
inline void store_exchange(void* to, uint32_t v) { std::memcpy(to, &v, 4); }
inline void store_exchange_8(void* to, uint32_t v, uint32_t w) {
  store_exchange(to, v);
  store_exchange(static_cast<uint8_t*>(to) + 4, w);
}
inline void expect_more(uint32_t barrier, uint32_t bytes) { barrier_at(barrier).bytes += bytes; }
inline int load_finished(uint32_t from) {
  chain_fibers::yield();
  return shared_value<int>(from);
}
inline void store_finished(uint32_t to, int v) { set_shared(to, v); }
inline uint4 load_shared_16(uint32_t from) { return shared_value<uint4>(from); }
inline uint32_t load_shared_4(uint32_t from) { return shared_value<uint32_t>(from); }
inline void store_shared_4(uint32_t to, uint32_t v) { set_shared(to, v); }
inline void add_shared_at(uint32_t to, int v) { set_shared(to, shared_value<int>(to) + v); }
inline int2 take_sums(uint32_t at) {
  const int2 v = shared_value<int2>(at);
  set_shared(at, int2{0, 0});
  return v;
}
inline uint32_t bf16_pair(float first, float second) {
  return f32_to_bf16(first) | uint32_t(f32_to_bf16(second)) << 16;
}
inline void meet(int id, int threads) { chain_fibers::meet(chain_fibers::block->named[id], threads); }

}  // namespace lowbit::cuda
