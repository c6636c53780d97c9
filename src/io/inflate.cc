#include "io/inflate.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace lowbit {
namespace {

constexpr int kLongestCode = 15, kLiterals = 286, kDistances = 30, kEndOfBlock = 256;

/// A code as its lengths give it: shorter codes come first, and those of one length in the order of their symbols.
class CanonicalCode {
 public:
  /// False when no code has these lengths, or when they leave room for further ones; a single code may.
  bool build(std::span<const uint8_t> lengths) {
    count_ = {};
    for (const uint8_t length : lengths) ++count_[length];
    const bool may_have_room = lengths.size() - count_[0] <= 1;
    count_[0] = 0;
    int room = 1;
    std::array<uint16_t, kLongestCode + 2> offset{};
    for (size_t length = 1; length <= kLongestCode; ++length) {
      room = 2 * room - count_[length];
      if (room < 0) return false;
      offset[length + 1] = static_cast<uint16_t>(offset[length] + count_[length]);
    }
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol)
      if (lengths[symbol] != 0) symbol_[offset[lengths[symbol]]++] = static_cast<uint16_t>(symbol);
    return room == 0 || may_have_room;
  }

  /// The symbol whose bits `next_bit` (0, 1, or -1 at the end) gives, first bit first; -1 when there is none.
  template <class NextBit>
  int decode(NextBit next_bit) const {
    int code = 0, first = 0, index = 0;
    for (size_t length = 1; length <= kLongestCode; ++length) {
      const int bit = next_bit();
      if (bit < 0) return -1;
      code |= bit;
      const int count = count_[length];
      if (code - first < count) return symbol_[static_cast<size_t>(index + code - first)];
      index += count;
      first = 2 * (first + count);
      code *= 2;
    }
    return -1;
  }

 private:
  std::array<uint16_t, kLongestCode + 1> count_{};  // codes of each length
  std::array<uint16_t, 288> symbol_{};
};

/// Each step returns what is wrong, or null.
class Inflater {
 public:
  Inflater(std::span<const std::byte> in, std::span<std::byte> out) : in_(in), out_(out) {}

  const char* run() {
    for (int last = 0; last == 0;) {
      last = bits(1);
      const int kind = bits(2);
      if (last < 0 || kind < 0) return kShort;
      if (const char* wrong = kind == 0 ? stored() : kind == 1 ? fixed() : kind == 2 ? dynamic() : "a block of no kind")
        return wrong;
    }
    if (at_ != in_.size()) return "bytes behind its end";
    return filled_ == out_.size() ? nullptr : "too few bytes";
  }

 private:
  static constexpr const char* kShort = "an end in its middle";
  static constexpr const char* kLong = "too many bytes";

  /// The next n bits, lowest first; -1 at the end.
  int bits(int n) {
    for (; held_ < n; held_ += 8) {
      if (at_ == in_.size()) return -1;
      hold_ |= std::to_integer<uint32_t>(in_[at_++]) << held_;
    }
    const auto value = static_cast<int>(hold_ & ((1u << n) - 1));
    hold_ >>= n;
    held_ -= n;
    return value;
  }

  int symbol(const CanonicalCode& code) {
    return code.decode([this] { return bits(1); });
  }

  const char* stored() {
    hold_ = 0;
    held_ = 0;
    const int size = bits(16), complement = bits(16);
    if (size < 0 || complement < 0) return kShort;
    if (size != (complement ^ 0xffff)) return "a stored block with two sizes";
    const auto n = static_cast<size_t>(size);
    if (n > in_.size() - at_) return kShort;
    if (n > out_.size() - filled_) return kLong;
    std::copy_n(in_.begin() + static_cast<std::ptrdiff_t>(at_), n, out_.begin() + static_cast<std::ptrdiff_t>(filled_));
    at_ += n;
    filled_ += n;
    return nullptr;
  }

  const char* fixed() {
    std::array<uint8_t, 288> lengths{};
    for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    std::array<uint8_t, 32> distances{};
    distances.fill(5);
    CanonicalCode literal, distance;
    (void)literal.build(lengths);
    (void)distance.build(distances);
    return unpack(literal, distance);
  }

  const char* dynamic() {
    const int literals = bits(5), distances = bits(5), length_codes = bits(4);
    if (literals < 0 || distances < 0 || length_codes < 0) return kShort;
    const auto n_literals = static_cast<size_t>(literals + 257), n_distances = static_cast<size_t>(distances + 1);
    if (n_literals > kLiterals || n_distances > kDistances) return "a code of too many symbols";
    static constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    std::array<uint8_t, 19> code_lengths{};
    for (int i = 0; i < length_codes + 4; ++i) {
      const int length = bits(3);
      if (length < 0) return kShort;
      code_lengths[kOrder[i]] = static_cast<uint8_t>(length);
    }
    CanonicalCode literal, distance;
    if (!literal.build(code_lengths)) return kBadCode;
    std::array<uint8_t, kLiterals + kDistances> lengths{};
    if (const char* wrong = read_lengths(literal, std::span(lengths).first(n_literals + n_distances))) return wrong;
    if (lengths[kEndOfBlock] == 0) return "a block without an end";
    if (!literal.build(std::span(lengths).first(n_literals)) ||
        !distance.build(std::span(lengths).subspan(n_literals, n_distances)))
      return kBadCode;
    return unpack(literal, distance);
  }

  /// Lengths of codes, runs of which are packed.
  const char* read_lengths(const CanonicalCode& code, std::span<uint8_t> lengths) {
    for (size_t i = 0; i < lengths.size();) {
      const int s = symbol(code);
      if (s < 0) return kBadCode;
      if (s < 16) {
        lengths[i++] = static_cast<uint8_t>(s);
        continue;
      }
      if (s == 16 && i == 0) return kBadCode;
      const int more = bits(s == 16 ? 2 : s == 17 ? 3 : 7);
      if (more < 0) return kShort;
      const auto run = static_cast<size_t>(more + (s == 18 ? 11 : 3));
      if (run > lengths.size() - i) return kBadCode;
      std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(i), run, s == 16 ? lengths[i - 1] : uint8_t{0});
      i += run;
    }
    return nullptr;
  }

  const char* unpack(const CanonicalCode& literal, const CanonicalCode& distance) {
    static constexpr uint16_t kLength[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                             31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr uint8_t kLengthBits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static constexpr uint16_t kDistance[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                               33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                               1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    for (;;) {
      const int s = symbol(literal);
      if (s < 0) return kBadCode;
      if (s == kEndOfBlock) return nullptr;
      if (s < kEndOfBlock) {
        if (filled_ == out_.size()) return kLong;
        out_[filled_++] = static_cast<std::byte>(s);
        continue;
      }
      const auto l = static_cast<size_t>(s - kEndOfBlock - 1);
      if (l >= std::size(kLength)) return kBadCode;
      const int more = bits(kLengthBits[l]);
      const int d = symbol(distance);
      if (more < 0 || d < 0 || d >= kDistances) return kBadCode;
      const int further = bits(d < 4 ? 0 : d / 2 - 1);
      if (further < 0) return kShort;
      const size_t length = kLength[l] + static_cast<size_t>(more), back = kDistance[d] + static_cast<size_t>(further);
      if (back > filled_) return "a copy from before its begin";
      if (length > out_.size() - filled_) return kLong;
      for (size_t i = 0; i < length; ++i, ++filled_) out_[filled_] = out_[filled_ - back];  // may overlap: a run
    }
  }

  static constexpr const char* kBadCode = "a code that cannot be";

  std::span<const std::byte> in_;
  std::span<std::byte> out_;
  size_t at_ = 0, filled_ = 0;
  uint32_t hold_ = 0;
  int held_ = 0;
};

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] & 1 ? 0xedb88320u ^ table[i] >> 1 : table[i] >> 1;
  }
  return table;
}

}  // namespace

Status inflate(std::span<const std::byte> in, std::span<std::byte> out, const std::string& where) {
  if (const char* wrong = Inflater(in, out).run())
    return fail(ErrorCode::kCorrupt, where, std::string("packed bytes with ") + wrong,
                std::to_string(out.size()) + " bytes packed by DEFLATE");
  return {};
}

uint32_t crc32(std::span<const std::byte> bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) crc = kTable[(crc ^ std::to_integer<uint32_t>(b)) & 0xff] ^ crc >> 8;
  return ~crc;
}

}  // namespace lowbit
