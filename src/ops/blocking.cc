#include "ops/blocking.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lowbit {
namespace {

struct OfIsa {
  std::string_view isa;
  Blocking blocking;
};
constexpr std::array<OfIsa, 5> kBlockings = {{
    {"ref", {768 << 10, 8 << 10, 32}},
    {"avx2", {768 << 10, 8 << 10, 32}},
    {"avxvnni", {768 << 10, 8 << 10, 32}},
    {"avx512", {768 << 10, 8 << 10, 32}},
    {"amx", {1280 << 10, 8 << 10, 32, 96}},
}};

}  // namespace

const Blocking& default_blocking(const char* kernel_name) {
  const std::string_view name = kernel_name;
  const size_t at = name.rfind("__");
  const std::string_view isa = name.substr(at == name.npos ? 0 : at + 2);
  for (const OfIsa& b : kBlockings)
    if (isa.substr(0, isa.find('_')) == b.isa) return b.blocking;
  return kBlockings[0].blocking;
}

Blocking BlockingTuner::candidate(const Blocking& start, int index) {
  Blocking b = start;
  if (index == 1) b.chunks_per_thread = std::max<int64_t>(1, start.chunks_per_thread / 4);
  if (index == 2) b.chunks_per_thread *= 4;
  if (index == 3) b.cache_bytes /= 2;
  if (index == 4) b.cache_bytes *= 2;
  return b;
}

const Blocking* BlockingTuner::chosen(const Shape& shape) const {
  for (const Entry& e : entries_)
    if (e.shape == shape && e.turn == kTurns) return &e.best;
  return nullptr;
}

void BlockingTuner::Entry::add(const Blocking& start, double time) {
  double& least = seconds[turn % kCandidates];
  least = turn < kCandidates ? time : std::min(least, time);
  if (++turn < kTurns) return;
  best = candidate(start, int(std::min_element(seconds, seconds + kCandidates) - seconds));
}

BlockingTuner::Entry& BlockingTuner::entry_of(const Shape& shape, const Blocking& start) {
  for (Entry& e : entries_)
    if (e.shape == shape) return e;
  Entry entry;
  entry.shape = shape;
  entry.best = start;
  return entries_.emplace_back(entry);
}

}  // namespace lowbit
