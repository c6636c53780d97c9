#pragma once
// Test only: a small trace, and what it holds.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "pipeline/trace_file.h"

namespace lowbit::testing_trace {

inline TraceHeader small_header() {
  return {
      {"", "1.2.3", "some model", "llama", "f32", "scalar", "cpu"},
      {{"blocks.0.attn_norm", 3, false}, {"blocks.0.ffn_act", 5, false}, {"final_norm", 3, true}, {"logits", 7, true}}};
}

/// A value that says where it is: the sequence's `token`-th row.
inline float value_at(size_t tap, int64_t token, int64_t column) {
  return float(tap + 1) * 1000 + float(token) * 10 + float(column);
}

using Values = std::function<float(size_t tap, int64_t token, int64_t column)>;

/// Tokens 100, 101, ... in passes of these lengths; logits of the last of each pass, or of all.
inline void write_trace(const std::string& path, const std::vector<int64_t>& passes, const Values& values = value_at,
                        bool all_logits = false, const std::function<TokenId(int64_t)>& token_at = {}) {
  const TraceHeader header = small_header();
  auto writer = TraceFileWriter::create(path, header);
  ASSERT_TRUE(writer) << writer.error().message();
  int64_t done = 0;
  for (const int64_t m : passes) {
    TracePass pass{done, all_logits ? 0 : m - 1, all_logits ? m : 1, {}};
    for (int64_t i = done; i < done + m; ++i) pass.tokens.push_back(token_at ? token_at(i) : TokenId(100 + i));
    writer->begin(pass);
    for (size_t tap = 0; tap < header.taps.size(); ++tap) {
      const int64_t first = header.taps[tap].wanted ? pass.first : 0;
      std::vector<float> rows;
      for (int64_t r = 0; r < pass.rows_of(header.taps[tap]); ++r)
        for (int64_t c = 0; c < header.taps[tap].width; ++c) rows.push_back(values(tap, done + first + r, c));
      writer->append(rows);
    }
    ASSERT_TRUE(writer->keep());
    done += m;
  }
  ASSERT_TRUE(writer->finish());
}

}  // namespace lowbit::testing_trace
