#include "base/sha256.h"

#include <algorithm>
#include <bit>

#include "base/sha256_blocks.h"
#include "base/sha256_rounds.h"

namespace lowbit {
namespace {

uint32_t big_endian(const std::byte* p) {
  return std::to_integer<uint32_t>(p[0]) << 24 | std::to_integer<uint32_t>(p[1]) << 16 |
         std::to_integer<uint32_t>(p[2]) << 8 | std::to_integer<uint32_t>(p[3]);
}

void add_block(Sha256State& state, const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  const Sha256State added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += added[i];
}

Sha256Blocks fastest() {
  const Sha256Blocks x86 = sha256_blocks_x86();
  return x86 != nullptr ? x86 : &sha256_blocks_ref;
}

}  // namespace

void sha256_blocks_ref(Sha256State& state, const std::byte* blocks, size_t count) {
  for (; count > 0; --count, blocks += kSha256Block) add_block(state, blocks);
}

void Sha256::update(std::span<const std::byte> bytes) {
  static const Sha256Blocks add_blocks = fastest();
  while (!bytes.empty()) {
    const size_t filled = size_bytes_ % kSha256Block;
    const bool whole = filled == 0 && bytes.size() >= kSha256Block;
    const size_t count =
        whole ? bytes.size() / kSha256Block * kSha256Block : std::min(kSha256Block - filled, bytes.size());
    size_bytes_ += count;
    if (whole) {
      add_blocks(state_, bytes.data(), count / kSha256Block);
    } else {
      std::copy_n(bytes.begin(), count, pending_.begin() + static_cast<std::ptrdiff_t>(filled));
      if (filled + count == kSha256Block) add_blocks(state_, pending_.data(), 1);
    }
    bytes = bytes.subspan(count);
  }
}

std::string Sha256::finish() {
  const uint64_t size_bits = 8 * size_bytes_;
  const size_t filled = size_bytes_ % kSha256Block;
  std::array<std::byte, 2 * kSha256Block> tail{};
  tail[0] = std::byte{0x80};  // then zeros up to the last 8 bytes of a block, which hold the length
  const size_t tail_size = (filled < 56 ? kSha256Block : 2 * kSha256Block) - filled;
  for (size_t i = 0; i < 8; ++i) tail[tail_size - 1 - i] = static_cast<std::byte>(size_bits >> 8 * i);
  update(std::span(tail).first(tail_size));
  std::string hex;
  for (const uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  return hex;
}

}  // namespace lowbit
