#include "text/utf8.h"

#include <utf8proc.h>

#include <cstdint>

namespace lowbit::text {
namespace {

bool is_continuation(unsigned char b) { return (b & 0xC0) == 0x80; }

// Number of bytes that a lead byte asks for; 0 for bytes that never lead.
int expected_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte carries the limits that exclude overlong forms, surrogates and values above U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  if (!is_continuation(second)) return false;
  switch (lead) {
    case 0xE0:
      return second >= 0xA0;
    case 0xED:
      return second <= 0x9F;
    case 0xF0:
      return second >= 0x90;
    case 0xF4:
      return second <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

CodePoint decode_utf8(std::string_view s, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(at);
  const int length = expected_length(lead);
  if (length == 1) return {lead, 1};
  if (length == 0 || s.size() - at < static_cast<std::size_t>(length)) return {};
  if (!second_byte_fits(lead, byte(at + 1))) return {};
  char32_t value = lead & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (!is_continuation(byte(at + i))) return {};
    value = (value << 6) | (byte(at + i) & 0x3F);
  }
  return {value, length};
}

void append_utf8(std::string& out, char32_t value) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | (value >> 6));
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | (value >> 12));
    put(0x80 | ((value >> 6) & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | (value >> 18));
    put(0x80 | ((value >> 12) & 0x3F));
    put(0x80 | ((value >> 6) & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

bool is_one_character(std::string_view s) {
  return !s.empty() && decode_utf8(s, 0).length == static_cast<int>(s.size());
}

std::size_t valid_prefix(std::string_view s) {
  std::size_t at = 0;
  while (at < s.size()) {
    const int length = decode_utf8(s, at).length;
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::size_t invalid_prefix(std::string_view s) {
  std::size_t at = 0;
  while (at < s.size() && decode_utf8(s, at).length == 0) ++at;
  return at;
}

bool is_unfinished(std::string_view s) {
  const auto lead = static_cast<unsigned char>(s[0]);
  if (s.size() >= static_cast<std::size_t>(expected_length(lead))) return false;
  if (s.size() >= 2 && !second_byte_fits(lead, static_cast<unsigned char>(s[1]))) return false;
  return s.size() < 3 || is_continuation(static_cast<unsigned char>(s[2]));
}

std::size_t last_character(std::string_view s) {
  std::size_t at = s.size() - 1;
  for (int back = 0; back < 3 && at > 0 && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80; ++back) --at;
  return decode_utf8(s, at).length == static_cast<int>(s.size() - at) ? at : s.size() - 1;
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace lowbit::text
