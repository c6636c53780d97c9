#pragma once
// How a product is cut into passes and chunks. No cut changes a bit of the result (docs/numerics.md), so any may be
// tried.

#include <chrono>
#include <cstdint>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

struct Blocking {
  int64_t cache_bytes = 768 << 10;      // of int8 or f32 tokens per pass over the weights: the second-level cache's
  int64_t least_chunk_bytes = 8 << 10;  // of weights, per token: less is not worth a turn
  int64_t chunks_per_thread = 32;
  int64_t row_multiple = 48;  // tokens per pass are one of it, every tile's height divides it
};

/// A kernel's default blocking: one table per instruction set, found with bench/kernels/matmul_bench.cc.
const Blocking& default_blocking(const char* kernel_name);

/// Tries a few cuts in the first calls of each shape, as gemma.cpp does, and keeps the fastest. For one thread at a
/// time.
class BlockingTuner {
 public:
  struct Shape {
    const void* kernel = nullptr;
    int64_t n = 0, k = 0, m = 0;
    bool operator==(const Shape&) const = default;
  };

  /// Calls run(blocking) and takes its time while the shape is being tuned.
  template <class Run>
  Status run(const Shape& shape, const Blocking& start, const Run& work) {
    Entry& entry = entry_of(shape, start);
    if (entry.turn == kTurns) return work(entry.best);
    const auto begin = std::chrono::steady_clock::now();
    Status status = work(candidate(start, entry.turn % kCandidates));
    entry.add(start, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return status;
  }

  /// The choice for a shape that has been tuned; null before.
  const Blocking* chosen(const Shape& shape) const;

  static constexpr int kCandidates = 5;
  static constexpr int kTurns = 4 * kCandidates;  // the best of four calls counts
  static Blocking candidate(const Blocking& start, int index);

 private:
  struct Entry {
    Shape shape;
    Blocking best;
    double seconds[kCandidates] = {};
    int turn = 0;
    void add(const Blocking& start, double time);
  };
  Entry& entry_of(const Shape& shape, const Blocking& start);

  std::vector<Entry> entries_;
};

}  // namespace lowbit
