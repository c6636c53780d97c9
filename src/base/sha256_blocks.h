#pragma once
// The inner loop of SHA-256. Internal to src/base.

#include <array>
#include <cstddef>
#include <cstdint>

namespace lowbit {

using Sha256State = std::array<uint32_t, 8>;
inline constexpr size_t kSha256Block = 64;  // bytes

/// Adds `count` blocks to the state.
using Sha256Blocks = void (*)(Sha256State& state, const std::byte* blocks, size_t count);

/// The loop of FIPS 180-4.
void sha256_blocks_ref(Sha256State& state, const std::byte* blocks, size_t count);
/// That loop by the processor's SHA instructions; null where it has none.
Sha256Blocks sha256_blocks_x86();

}  // namespace lowbit
