#pragma once
// Texts of templates, character by character, with Python's meaning. Bytes that are no UTF-8 count as characters and
// stay.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_eval.h"

namespace lowbit::jinja {

/// Python's str.isspace: White_Space and four separators of ASCII.
bool is_python_space(char32_t c);
/// A letter of upper, lower or title case.
bool is_cased(char32_t c);

/// Python's splitlines(); ends early when the meter is exhausted.
std::vector<std::string_view> lines_of(std::string_view s, bool keepends, Meter& meter);
std::string strip_text(std::string_view s, std::string_view characters, bool left, bool right);
std::string replace_text(Interpreter& in, std::string_view s, std::string_view from, std::string_view to,
                         std::int64_t count);
std::string upper_text(std::string_view s);
std::string lower_text(std::string_view s);
/// Python's str.casefold: the lower case for comparisons, in which one letter may become several.
std::string fold_case_text(std::string_view s);
std::string swap_case_text(std::string_view s);
std::string title_text(std::string_view s);
std::string capitalize_text(std::string_view s);
std::size_t count_characters(std::string_view s);
/// The bytes of the first n characters of s.
std::size_t character_offset(std::string_view s, std::size_t n);
/// s with what HTML has entities for replaced by them, as the filter escape does.
std::string escape_text(Interpreter& in, std::string_view s);
/// Byte offsets of the characters of s, and its size at the end.
std::vector<std::size_t> character_offsets(std::string_view s);

}  // namespace lowbit::jinja
