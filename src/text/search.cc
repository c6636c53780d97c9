#include "text/search.h"

#include <string.h>

#include <cstdint>
#include <vector>

namespace lowbit::text {
namespace {

constexpr std::size_t kShort = 16;

}  // namespace

std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from) {
  if (wanted.size() <= kShort) return text.find(wanted, from);
  if (from > text.size() || wanted.size() > text.size() - from) return std::string_view::npos;
  const void* hit = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return hit == nullptr ? std::string_view::npos
                        : static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
}

// Knuth, Morris and Pratt from the right end: C has no memmem for that direction.
std::size_t rfind_text(std::string_view text, std::string_view wanted) {
  if (wanted.size() <= kShort || wanted.size() > text.size()) return text.rfind(wanted);
  const std::size_t n = wanted.size();
  const auto at = [n, wanted](std::size_t i) { return wanted[n - 1 - i]; };
  std::vector<std::uint32_t> border(n, 0);  // the longest proper prefix that ends here; texts are below 4 GiB
  for (std::size_t i = 1, k = 0; i < n; ++i) {
    while (k > 0 && at(i) != at(k)) k = border[k - 1];
    if (at(i) == at(k)) ++k;
    border[i] = static_cast<std::uint32_t>(k);
  }
  for (std::size_t i = text.size(), k = 0; i-- > 0;) {
    while (k > 0 && text[i] != at(k)) k = border[k - 1];
    if (text[i] == at(k)) ++k;
    if (k == n) return i;
  }
  return std::string_view::npos;
}

}  // namespace lowbit::text
