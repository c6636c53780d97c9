#pragma once
// SHA-256 (FIPS 180-4), to name the exact file a checkpoint was made from. Not for secrets: no care is taken of timing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lowbit {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  /// The digest as 64 lowercase hexadecimal digits. The object is used up.
  std::string finish();

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  uint64_t size_bytes_ = 0;
};

}  // namespace lowbit
