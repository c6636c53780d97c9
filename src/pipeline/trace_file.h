#pragma once
// Trace files: a header that names the taps, then the passes of a run. docs/trace.md.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/replace_file.h"
#include "lowbit/trace.h"

namespace lowbit {

struct TraceTap {
  std::string name;
  int64_t width = 0;
  bool wanted = false;  // rows of the tokens alone whose logits were wanted
};

struct TraceHeader {
  TraceInfo info;
  std::vector<TraceTap> taps;  // in run order
};

/// Tokens at positions from `position` on, and which of them have rows at taps that say `wanted`.
struct TracePass {
  int64_t position = 0, first = 0, count = 0;
  std::vector<TokenId> tokens;
  int64_t rows_of(const TraceTap& tap) const { return tap.wanted ? count : int64_t(tokens.size()); }
};

/// Writes what it is given, pass by pass. The file is there when finish() has been called, and not before.
/// An error stays: whatever follows it says the same.
class TraceFileWriter {
 public:
  static Result<TraceFileWriter> create(const std::string& path, const TraceHeader& header);
  TraceFileWriter(TraceFileWriter&& other) noexcept;
  TraceFileWriter& operator=(TraceFileWriter&&) = delete;
  ~TraceFileWriter();

  void begin(const TracePass& pass);
  /// Rows of the pass's taps, in their order.
  void append(std::span<const float> rows);
  /// keep() makes everything written so far stay; drop() removes what was written since the last keep().
  Status keep();
  void drop();
  /// Turns the kept part into the file.
  Status finish();

 private:
  TraceFileWriter(ReplaceFile file, int descriptor) : file_(std::move(file)), descriptor_(descriptor) {}
  void write(std::span<const std::byte> bytes);
  ReplaceFile file_;
  int descriptor_ = -1;
  int64_t size_ = 0, kept_ = 0;
  Status status_;
};

/// Every size is checked against the file before it is used.
class TraceFileReader {
 public:
  /// Errors: kNotFound, kIo, kCorrupt, kUnsupported (a newer version).
  static Result<TraceFileReader> open(const std::string& path);
  TraceFileReader(TraceFileReader&& other) noexcept;
  TraceFileReader& operator=(TraceFileReader&&) = delete;
  ~TraceFileReader();

  const TraceHeader& header() const { return header_; }
  /// Where the first pass is.
  int64_t begin() const { return begin_; }
  /// The pass at `offset`, which then is behind it; false at the end of the file. Errors: kCorrupt, kIo.
  Result<bool> next(int64_t& offset, TracePass& pass) const;
  /// Rows [first, first + count) that the pass which ends at `end` has at a tap. Shapes: out [count, width].
  Status rows(int64_t end, const TracePass& pass, size_t tap, int64_t first, int64_t count, float* out) const;

 private:
  TraceFileReader(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status read_header();
  Status read(int64_t offset, std::span<std::byte> to) const;
  tl::unexpected<Error> corrupt(std::string got, std::string wanted) const;
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0, begin_ = 0;
  TraceHeader header_;
  std::vector<int64_t> all_before_,
      wanted_before_;  // columns of the taps before each, that have all rows or the wanted ones
};

}  // namespace lowbit
