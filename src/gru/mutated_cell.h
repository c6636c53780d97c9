#pragma once
// A second plain GRU cell, written from docs/gru.md, that can be given one mistake at a time. Tests ask that without
// one it gives the golden vectors, and with any of them it does not.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/gru_api.h"

namespace lowbit::testing_gru {

enum class Mutant {
  kNone,
  kHalfUp,
  kHalfAway,
  kTruncated,
  kNoClampOfIh,
  kNoClampOfHh,
  kNoClampOfUi,
  kNoClampOfRi,
  kNoClampOfNi,
  kNoClampOfH,
  kGatesSwapped,
  kZeroPointOfUTwice,
  kZeroPointOfXLeftOut,
  kZeroPointOfHLeftOut,
  kResetOnTheSumOfBoth,
  kOneRoundingForBothTerms,
  kCount
};

/// Codes that are not clamped stay inside the table by force; only the state's mistake is visible otherwise.
class MutatedCell {
 public:
  MutatedCell(const GruSpec& spec, Mutant mutant) : s_(spec), mutant_(mutant) {}

  /// One step of one row: x [C], h [H] codes q.
  void step(const std::vector<int64_t>& x, std::vector<int64_t>& h) const {
    const GruGrid* g = s_.grid;
    const auto ih = product(s_.w, s_.x_bias, s_.x_shift, kSlotX, kSlotIh, x, Mutant::kNoClampOfIh,
                            Mutant::kZeroPointOfXLeftOut),
               hh = product(s_.r, s_.h_bias, s_.h_shift, kSlotH, kSlotHh, h, Mutant::kNoClampOfHh,
                            Mutant::kZeroPointOfHLeftOut);
    const auto old = h;
    for (int64_t j = 0; j < s_.h; ++j) {
      const auto at = [&](const std::vector<int64_t>& v, int gate) { return v[static_cast<size_t>(gate * s_.h + j)]; };
      const int first = mutant_ == Mutant::kGatesSwapped ? 1 : 0;
      const int64_t u = gate(0, at(ih, first), at(hh, first)), r = gate(1, at(ih, 1 - first), at(hh, 1 - first));
      const int64_t reset = r - g[kSlotR].zp;
      int64_t ni = rs(at(ih, 2), g[kSlotIh].shift - g[kSlotNi].shift) +
                   rs(reset * at(hh, 2), g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift) + g[kSlotNi].zp;
      if (mutant_ == Mutant::kResetOnTheSumOfBoth)
        ni = rs(reset * (at(ih, 2) + at(hh, 2)), g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift) + g[kSlotNi].zp;
      if (mutant_ != Mutant::kNoClampOfNi) ni = clamp(ni, g[kSlotNi]);
      const int64_t n = table(2, ni), a = rs(n - g[kSlotN].zp, g[kSlotN].shift - g[kSlotH].shift);
      int64_t one = (int64_t{1} << g[kSlotU].shift) + g[kSlotU].zp;
      if (mutant_ == Mutant::kZeroPointOfUTwice) one -= g[kSlotU].zp;
      const int64_t sum = (u - g[kSlotU].zp) * (old[static_cast<size_t>(j)] - g[kSlotH].zp) + (one - u) * a;
      const int64_t q = rs(sum, g[kSlotU].shift) + g[kSlotH].zp;
      h[static_cast<size_t>(j)] = mutant_ == Mutant::kNoClampOfH ? q : clamp(q, g[kSlotH]);
    }
  }

 private:
  int64_t rs(int64_t x, int k) const {
    if (k <= 0) return x * (int64_t{1} << -k);
    if (k >= 63) return 0;
    const int64_t down = x >> k, rest = x - (down << k), half = int64_t{1} << (k - 1);
    if (mutant_ == Mutant::kTruncated) return down;
    if (mutant_ == Mutant::kHalfUp) return down + (rest >= half);
    if (mutant_ == Mutant::kHalfAway) return down + (rest > half || (rest == half && x >= 0));
    return down + (rest > half || (rest == half && down % 2 != 0));
  }
  static int64_t clamp(int64_t q, const GruGrid& g) { return std::clamp<int64_t>(q, g.lo, g.hi); }

  /// Centered.
  std::vector<int64_t> product(const int32_t* w, const int64_t* bias, const int32_t* shift, int in, int out,
                               const std::vector<int64_t>& codes, Mutant no_clamp, Mutant no_zero_point) const {
    const auto k = static_cast<int64_t>(codes.size());
    std::vector<int64_t> result;
    for (int64_t c = 0; c < 3 * s_.h; ++c) {
      int64_t sum = bias[c];
      for (int64_t i = 0; i < k; ++i) {
        sum += int64_t{w[c * k + i]} * codes[static_cast<size_t>(i)];
        if (mutant_ == no_zero_point) sum += int64_t{w[c * k + i]} * s_.grid[in].zp;
      }
      const int64_t q = rs(sum, shift[c]) + s_.grid[out].zp;
      result.push_back((mutant_ == no_clamp ? q : clamp(q, s_.grid[out])) - s_.grid[out].zp);
    }
    return result;
  }
  int64_t gate(int which, int64_t ih, int64_t hh) const {
    const int slot = which == 0 ? kSlotUi : kSlotRi;
    const GruGrid& g = s_.grid[slot];
    int64_t q = rs(ih, s_.grid[kSlotIh].shift - g.shift) + rs(hh, s_.grid[kSlotHh].shift - g.shift) + g.zp;
    if (mutant_ == Mutant::kOneRoundingForBothTerms && s_.grid[kSlotIh].shift == s_.grid[kSlotHh].shift)
      q = rs(ih + hh, s_.grid[kSlotIh].shift - g.shift) + g.zp;
    const bool keep = mutant_ == (which == 0 ? Mutant::kNoClampOfUi : Mutant::kNoClampOfRi);
    return table(which, keep ? q : clamp(q, g));
  }
  /// Direct tables only; a code outside wraps as an unclamped index would.
  int64_t table(int which, int64_t q) const {
    const GruGrid& g = s_.grid[std::array{kSlotUi, kSlotRi, kSlotNi}[static_cast<size_t>(which)]];
    const int64_t span = int64_t{g.hi} - g.lo + 1;
    return s_.table[which].direct[((q - g.lo) % span + span) % span];
  }

  const GruSpec& s_;
  Mutant mutant_;
};

}  // namespace lowbit::testing_gru
