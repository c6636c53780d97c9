#pragma once
// Saved log-probabilities of a base model, in the format of llama.cpp's --kl-divergence-base, so
// that either program can read what the other wrote: "_logits_", int32 n_ctx, n_vocab, n_chunk, the
// tokens, then per scored position a scale, the smallest log-probability and n_vocab uint16 steps
// above it. Logits below max - 16 are clipped.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/replace_file.h"
#include "lowbit/error.h"
#include "lowbit/tokenizer.h"

namespace lowbit {

struct LogitsHeader {
  int32_t context = 0, vocab_size = 0, chunks = 0;
  std::vector<TokenId> tokens;  // chunks * context
};

/// uint16 words of one position.
int64_t logits_row_words(int64_t vocab_size);

/// row[0 .. logits_row_words(n)) from n logits.
void compress_log_probs(std::span<const float> logits, uint16_t* row);

/// Log-probabilities back from a row.
struct LogProbRow {
  LogProbRow(const uint16_t* row, int64_t vocab_size);
  float at(int64_t token) const { return scale * static_cast<float>(steps[token]) + smallest; }
  float scale, smallest;
  const uint16_t* steps;
};

/// The file is there when finish() has been called, and not before.
class LogitsWriter {
 public:
  static Result<LogitsWriter> create(const std::string& path, const LogitsHeader& header);
  Status append(std::span<const uint16_t> rows);
  Status finish();

 private:
  LogitsWriter() = default;
  Status write(const void* data, size_t bytes);
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::optional<ReplaceFile> replace_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

class LogitsReader {
 public:
  /// Checks the header against the size of the file.
  static Result<LogitsReader> open(const std::string& path);
  const LogitsHeader& header() const { return header_; }
  /// The next `count` positions.
  Status read(int64_t count, std::vector<uint16_t>& rows);

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
  LogitsHeader header_;
};

}  // namespace lowbit
