#pragma once
// UTF-8 by code points, strict: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <string>
#include <string_view>

namespace lowbit::text {

struct CodePoint {
  char32_t value = 0;
  int length = 0;  // bytes; 0 = no valid character starts here
};

/// The character that starts at s[at]; at < s.size().
CodePoint decode_utf8(std::string_view s, std::size_t at);

/// Appends a code point that is valid (below 0x110000, not a surrogate).
void append_utf8(std::string& out, char32_t value);

/// Whether s is one character and nothing else.
bool is_one_character(std::string_view s);

/// Length of the longest prefix that is valid UTF-8.
std::size_t valid_prefix(std::string_view s);

/// Length of the run of bytes at the start of s at none of which a valid character starts.
std::size_t invalid_prefix(std::string_view s);

/// Whether more bytes could turn s (a non-empty string that is no whole character) into one.
bool is_unfinished(std::string_view s);

/// Start of the last character of s (not empty); a byte that belongs to no character stands alone.
std::size_t last_character(std::string_view s);

/// Unicode's White_Space property (what \s means in the patterns of tokenizers).
bool is_white_space(char32_t c);
/// A letter, mark, number or connector punctuation (\w).
bool is_word_character(char32_t c);

}  // namespace lowbit::text
