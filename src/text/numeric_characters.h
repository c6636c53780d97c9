#pragma once
// Which characters are numbers, as Python's texts say it.

namespace lowbit::jinja {

/// str.isdecimal: digits of numbers in tens, of any script ("7", "\u0663").
bool is_decimal(char32_t c);
/// str.isdigit: and digits that do not stand in such numbers ("\u00b2", superscript two).
bool is_digit(char32_t c);
/// str.isnumeric: and fractions, Roman and Chinese numbers ("\u00bd", "\u2167", "\u4e09").
bool is_numeric(char32_t c);

}  // namespace lowbit::jinja
