#pragma once
// Searches whose time grows with the lengths' sum: std::string_view::find takes their product at worst.

#include <cstddef>
#include <string_view>

namespace lowbit::text {

/// The first place of `wanted` at `from` or behind it, or npos; as string_view::find.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from = 0);

/// The last place of `wanted`, or npos; as string_view::rfind.
std::size_t rfind_text(std::string_view text, std::string_view wanted);

}  // namespace lowbit::text
