#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace lowbit {

/// "int4,int2" -> its words; empty ones stay.
inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  for (size_t b = 0; b <= list.size();) {
    const size_t e = std::min(list.find(',', b), list.size());
    words.push_back(list.substr(b, e - b));
    b = e + 1;
  }
  return words;
}

}  // namespace lowbit
