// The kernel of a chain of matmuls, its own source, compiled for the host and run on fibers: needs no GPU.

// A namespace of its own: the program also holds what nvcc made of it.
#define cuda cuda_chain_on_fibers
#include "tests/conformance/cuda_emulated/chain_fibers.h"
// Behind it: kernels/cuda/bit_gemv.cuh and matmul_chain_ptx.cuh are this folder's.
#include "kernels/cuda/matmul_chain.cuh"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace lowbit {
namespace {

constexpr int kProcessors = 3;  // of the imagined device

struct Matrix {
  int n = 0, k = 0;
  std::vector<int8_t> values;  // -1, 0, 1
  std::vector<float> scales;   // zeros up to a multiple of 16
  std::vector<uint8_t> codes;  // counted, in the order of integer_gemv.h
};

Matrix random_matrix(int n, int k, Rng& rng) {
  Matrix m{n, k, std::vector<int8_t>(size_t(n) * size_t(k)), {}, {}};
  for (int8_t& v : m.values) v = int8_t(int(rng.below(3)) - 1);
  const int tiles = (n + 15) / 16, strips = (k + 255) / 256;
  m.scales.resize(size_t(tiles) * 16);
  for (int r = 0; r < n; ++r) m.scales[size_t(r)] = 0.02f + 0.01f * float(rng.uniform());
  m.codes.resize(size_t(tiles) * size_t(strips) * 1024);
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < k; ++c) {
      const int v = m.values[size_t(r) * size_t(k) + size_t(c)], slot = c % 256 / 16;
      const int at = ((r / 16) * strips + c / 256) * 1024 + r % 16 * 64 + c % 16 / 4 * 16 + slot / 4 * 4 + c % 4;
      m.codes[size_t(at)] |= uint8_t((v < 0 ? 0 : v == 0 ? 1 : 3) << (2 * (slot % 4)));
    }
  return m;
}

/// The table that the kernel reads, as matmul_chain_api.cc makes it; `bytes` of the exchange for each half.
std::vector<cuda::ChainLinear> table_of(const std::vector<Matrix>& chain, bool half, int& bytes) {
  std::vector<cuda::ChainLinear> table;
  int turn = 0;
  bytes = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const Matrix& m = chain[i];
    cuda::ChainLinear l{};
    l.codes = m.codes.data();
    l.scales = m.scales.data();
    l.n = m.n;
    l.k = m.k;
    l.tiles = (m.n + 15) / 16;
    l.strips = (m.k + 255) / 256;
    l.teams = cuda::kChainWarps / l.strips;
    l.team_inverse = 65536 / l.strips + 1;
    l.turn = turn;
    l.least = l.tiles / kProcessors;
    l.longer = l.tiles % kProcessors;
    turn = (turn + l.tiles) % kProcessors;
    l.x = i == 0 ? 0 : table.back().out;
    l.out = bytes;
    l.out_count = i + 1 < chain.size() ? chain[i + 1].k : 0;
    bytes += (l.out_count * (half ? 2 : 4) + 127) / 128 * 128;
    table.push_back(l);
  }
  return table;
}

std::vector<float> expected(const std::vector<Matrix>& chain, std::vector<float> x, bool half) {
  for (size_t i = 0; i < chain.size(); ++i) {
    const Matrix& m = chain[i];
    uint32_t most = 0;
    for (size_t c = 0; c < size_t(m.k); ++c) {
      if (half && i > 0) x[c] = bf16_to_f32(f32_to_bf16(x[c]));
      most = std::max(most, f32_to_bits(x[c]) & 0x7fffffffu);
    }
    const auto q = cuda::quantizer_of(most);
    std::vector<float> y;
    for (size_t r = 0; r < size_t(m.n); ++r) {
      int sum = 0;
      for (size_t c = 0; c < size_t(m.k); ++c)
        sum += q.inverse == 0.0f ? 0 : m.values[r * size_t(m.k) + c] * int(std::nearbyint(x[c] * q.inverse));
      y.push_back(std::fmaf(std::fmaf(float(sum), m.scales[r], 0.0f), q.scale, 0.0f));
    }
    x = y;
  }
  return x;
}

/// Three launches with one workspace: both halves of it, and the first again.
void expect_launches(const std::vector<Matrix>& chain, bool half, Rng& rng) {
  int bytes = 0;
  const auto table = table_of(chain, half, bytes);
  std::vector<uint8_t> exchange(size_t(2 * bytes) + 16, 0xff);
  for (int h = 0; h < 2; ++h)
    for (const cuda::ChainLinear& l : table) {
      const int used = l.out_count * (half ? 2 : 4);
      std::fill_n(exchange.begin() + h * bytes + l.out + used, (used + 127) / 128 * 128 - used, uint8_t{0});
    }
  uint32_t state[2] = {0, 0};
  for (int launch = 0; launch < 3; ++launch) {
    std::vector<float> x;
    for (int c = 0; c < chain[0].k; ++c) x.push_back(float(rng.normal()));
    std::vector<float> y(size_t(chain.back().n), -1e30f);
    cuda::ChainArgs a{};
    a.linears = table.data();
    a.count = int(table.size());
    a.x = x.data();
    a.x_element = cuda::Element::kF32;
    a.y = y.data();
    a.state = state;
    a.exchange = exchange.data();
    a.half_bytes = bytes;
    a.half = half;
    a.ring_at = (int(sizeof(cuda::ChainShared)) + 127) & ~127;
    a.ring_bytes = 60 << 10;
    ASSERT_TRUE(cuda::launch_together(half ? &cuda::matmul_chain<true> : &cuda::matmul_chain<false>, a, kProcessors,
                                      cuda::kChainThreads, size_t(a.ring_at + a.ring_bytes)));
    EXPECT_EQ(expected(chain, x, half), y) << "launch " << launch << ", " << chain.size() << " matmuls";
    EXPECT_EQ(state[0], uint32_t(launch + 1) & 1);
    EXPECT_EQ(state[1], 0u);
  }
}

TEST(ChainOnFibers, RandomChainsGiveTheBitsOfTheReference) {
  constexpr uint64_t kLengths[] = {1, 3, 6, 18};  // the last one: more than there are flights
  for (uint64_t seed = 0; seed < std::size(kLengths); ++seed) {
    Rng rng(seed, 3);
    std::vector<Matrix> chain;
    int k = 1 + int(rng.below(seed % 3 == 0 ? 1200 : 300));
    for (uint64_t i = 0; i < kLengths[seed]; ++i) {
      chain.push_back(random_matrix(1 + int(rng.below(700)), k, rng));
      k = 1 + int(rng.below(uint64_t(chain.back().n)));
    }
    expect_launches(chain, seed % 2 != 0, rng);
  }
}

}  // namespace
}  // namespace lowbit
