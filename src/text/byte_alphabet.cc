#include "text/byte_alphabet.h"

#include <fmt/format.h>

#include <array>

#include "text/utf8.h"

namespace lowbit::text {
namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<short, 0x144> bytes;  // code point -> byte or -1

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;  // bytes that do not print get code points from here on, in order
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      append_utf8(characters[b], c);
      bytes[c] = static_cast<short>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

const std::string& byte_to_alphabet(unsigned char byte) { return alphabet().characters[byte]; }

std::optional<std::string> alphabet_to_bytes(std::string_view token) {
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint c = decode_utf8(token, at);
    if (c.length == 0 || c.value >= alphabet().bytes.size() || alphabet().bytes[c.value] < 0) return std::nullopt;
    out.push_back(static_cast<char>(alphabet().bytes[c.value]));
    at += c.length;
  }
  return out;
}

std::optional<unsigned char> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace lowbit::text
