#pragma once
// Words and how they are pronounced: the dictionary, which words serve for what, and the errors of pronunciations.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "example_error.h"

using Words = std::vector<std::string>;
using Phonemes = std::vector<std::string>;

constexpr size_t kCalibrationWords = 200, kTestWords = 2000, kChoiceWords = 10000, kTuningWords = 2000;
constexpr size_t kHeldApart = kCalibrationWords + kTestWords + kChoiceWords + kTuningWords;

using Dictionary = std::map<std::string, std::vector<Phonemes>>;

inline Dictionary read_dictionary(const std::string& path) {
  Dictionary out;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word, phoneme;
    words >> word;
    if (word.empty() || !std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; })) continue;
    Phonemes p;
    while (words >> phoneme) p.push_back(phoneme);
    out[word].push_back(p);
  }
  if (out.size() < kHeldApart) stop(path + ": got " + std::to_string(out.size()) + " words, wanted the CMU dictionary");
  return out;
}

inline uint32_t fnv1a(const std::string& s) {
  uint32_t h = 2166136261u;
  for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return h;
}

/// The rule that holds words apart: in the order of their FNV-1a hash, 200 to calibrate with, then 2,000 to test, then
/// 10,000 to choose by, then 2,000 to find scales with.
struct HeldApart {
  Words calibration, test, choice, tuning;
};

inline HeldApart hold_apart(const Dictionary& all) {
  Words words;
  for (const auto& [word, unused] : all) words.push_back(word);
  std::sort(words.begin(), words.end(),
            [](const auto& a, const auto& b) { return std::pair(fnv1a(a), a) < std::pair(fnv1a(b), b); });
  HeldApart out;
  auto next = words.begin();
  for (const auto& [set, count] : {std::pair{&out.calibration, kCalibrationWords},
                                   {&out.test, kTestWords},
                                   {&out.choice, kChoiceWords},
                                   {&out.tuning, kTuningWords}}) {
    set->assign(next, next + static_cast<std::ptrdiff_t>(count));
    next += static_cast<std::ptrdiff_t>(count);
  }
  return out;
}

inline int edit_distance(const Phonemes& a, const Phonemes& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row.back();
}

struct Score {
  double per = 0, words = 0, same = 0;  // percent
};

inline Score score(const Dictionary& dictionary, const Words& words, std::map<std::string, Phonemes>& got,
                   std::map<std::string, Phonemes>& in_float) {
  double errors = 0, phonemes = 0, right = 0, same = 0;
  for (const std::string& w : words) {
    int least = 1 << 30;
    for (const Phonemes& p : dictionary.at(w)) least = std::min(least, edit_distance(got[w], p));
    errors += least;
    right += least == 0;
    phonemes += static_cast<double>(dictionary.at(w)[0].size());
    same += got[w] == in_float[w];
  }
  const auto n = static_cast<double>(words.size());
  return {100 * errors / phonemes, 100 * right / n, 100 * same / n};
}
