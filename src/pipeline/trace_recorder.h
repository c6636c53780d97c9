#pragma once

#include <utility>

#include "pipeline/trace_file.h"
#include "runtime/row_observer.h"

namespace lowbit {

/// Writes what a session computes to a file.
class TraceRecorder : public RowObserver {
 public:
  explicit TraceRecorder(TraceFileWriter file) : file_(std::move(file)) {}
  TraceFileWriter& file() { return file_; }

  void begin(int64_t position, std::span<const int32_t> tokens, int64_t first, int64_t count) override {
    file_.begin({position, first, count, {tokens.begin(), tokens.end()}});
  }
  void rows(int, const float* x, int64_t m, int64_t k) override { file_.append({x, size_t(m * k)}); }
  void logits(const float* logits, int64_t m, int64_t vocab) override { file_.append({logits, size_t(m * vocab)}); }

 private:
  TraceFileWriter file_;
};

}  // namespace lowbit
