#pragma once
// Times a matmul on random weights, after checking its answer against the reference: the work behind `lowbit bench
// matmul`.

#include <string>
#include <vector>

#include "ops/matmul.h"

namespace lowbit {

struct TimedMatmul {
  FormatId format = FormatId::kInt4;
  int64_t group = Scaling::kAll;  // columns per scale; kAll: one per row
  int64_t group_rows = 1;         // rows of the weight that share a scale
  int64_t m = 1, n = 4096, k = 4096;
  Activation activation = Activation::kInt8;
  int64_t activation_group = 0;   // see MatmulOptions
  Halves halves = Halves::kNone;  // kF32: x in 16 bits
  bool cold = true;               // weights from memory: cycled through cold_bytes. Else one set, from the caches.
  int64_t cold_bytes = int64_t{512} << 20;
  Isa isa = Isa::kScalar;  // the strongest to look in
  bool reference = false;
  double seconds = 0.5;  // of measured time, at least 5 runs
};

struct MatmulTiming {
  double seconds = 0;                       // median of one call, activation quantization included
  double seconds_p10 = 0, seconds_p90 = 0;  // spread
  double gops = 0;                          // 2 m n k / seconds / 1e9
  double gb_s = 0;                          // bytes of the weight as it lies in memory / seconds / 1e9
  int64_t weight_bytes = 0;
  int64_t runs = 0;
  int threads = 1;
  bool cold = false;
  bool checked = false;  // equal to the reference, bit for bit
  std::string kernel, reason;
};

/// Errors: kInvalidArgument (sizes, format), kOutOfMemory, and those of MatmulPlan. A wrong answer is not an error:
/// checked is false then, and nothing was timed.
Result<MatmulTiming> time_matmul(const TimedMatmul& options, ThreadPool& pool);

/// time_matmul() on the current GPU: int8 activations come quantized, calls are captured into one graph, time is the
/// device's. Errors: also kUnsupported, without a GPU.
Result<MatmulTiming> time_device_matmul(const TimedMatmul& options, ThreadPool& pool);

/// The weight that both time: every code of the format at random, f16 scales.
Result<QTensor> random_weight(const TimedMatmul& options, ThreadPool& pool);
/// kInvalidArgument for extents and groups outside of what is timed.
Status check_options(const TimedMatmul& options);

/// Reads `bytes`, a multiple of 64, by loads as wide as the kernels', prefetched as they do. The sum of all words.
uint64_t read_once(const std::byte* p, int64_t bytes);

/// Memory in large pages that is read once at a time.
class ReadSweeps {
 public:
  /// `bytes`: at least 1 MiB; larger than all caches, or what is measured is theirs. Errors: kOutOfMemory.
  static Result<ReadSweeps> make(ThreadPool& pool, int64_t bytes);
  /// GB/s of reading all of it once with every thread, by read_once().
  double sweep(ThreadPool& pool);

 private:
  Buffer buffer_;
  std::vector<uint64_t> sums_;
};

/// GB/s of reading memory once with every thread, over several sweeps.
struct ReadBandwidth {
  double median = 0;           // what to compare with
  double least = 0, most = 0;  // one sweep may be anything on a shared machine: 54 was seen between sweeps of 37
};

/// ReadSweeps of `bytes`. The first, in which threads wake and clocks rise, does not count. Errors: kOutOfMemory.
Result<ReadBandwidth> measure_read_bandwidth(ThreadPool& pool, int64_t bytes = int64_t{512} << 20, int sweeps = 9);

}  // namespace lowbit
