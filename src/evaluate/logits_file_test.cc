#include "evaluate/logits_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/rng.h"

namespace lowbit {
namespace {

std::vector<float> random_logits(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (auto& l : out) l = static_cast<float>(3 * rng.normal());
  return out;
}

TEST(logits_row, holds_log_probabilities_to_a_65535th_of_the_range) {
  for (int64_t n : {2, 7, 1000}) {
    const auto logits = random_logits(n, static_cast<uint64_t>(n));
    std::vector<uint16_t> row(static_cast<size_t>(logits_row_words(n)), 0xffff);
    compress_log_probs(logits, row.data());
    double sum = 0, largest = -1e9;
    for (float l : logits) largest = std::max(largest, double{l});
    for (float l : logits) sum += std::exp(l - largest);
    const LogProbRow back(row.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const double want = std::max(logits[static_cast<size_t>(i)] - largest, -16.0) - std::log(sum);
      EXPECT_NEAR(back.at(i), want, 16.0 / 65535);
    }
  }
}

TEST(logits_row, equal_logits_make_no_nan) {
  std::vector<float> logits(5, 1.5f);
  std::vector<uint16_t> row(static_cast<size_t>(logits_row_words(5)));
  compress_log_probs(logits, row.data());
  EXPECT_NEAR(LogProbRow(row.data(), 5).at(3), -std::log(5.0), 1e-6);
}

class LogitsFile : public testing::Test {
 protected:
  std::string path = testing::TempDir() + "base.logits";
  LogitsHeader header{4, 10, 2, {1, 2, 3, 4, 5, 6, 7, 8}};

  std::vector<uint16_t> write() {
    std::vector<uint16_t> rows(static_cast<size_t>(3 * logits_row_words(10)));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
    auto writer = LogitsWriter::create(path, header);
    EXPECT_TRUE(writer);
    EXPECT_TRUE(writer->append(rows));
    EXPECT_TRUE(writer->finish());
    return rows;
  }
};

TEST_F(LogitsFile, round_trips) {
  const auto rows = write();
  auto reader = LogitsReader::open(path);
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_EQ(reader->header().tokens, header.tokens);
  std::vector<uint16_t> back;
  ASSERT_TRUE(reader->read(3, back));
  EXPECT_EQ(back, rows);
  EXPECT_EQ(reader->read(1, back).error().code, ErrorCode::kCorrupt);
}

TEST_F(LogitsFile, an_unfinished_file_never_appears) {
  std::remove(path.c_str());
  { auto writer = LogitsWriter::create(path, header); }
  struct stat info = {};
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST_F(LogitsFile, every_cut_is_refused_or_read_to_its_end) {
  write();
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, cut);
    auto reader = LogitsReader::open(path);
    std::vector<uint16_t> rows;
    EXPECT_TRUE(!reader || !reader->read(3, rows)) << cut;
  }
  std::string huge = whole;
  huge.replace(16, 4, "\xff\xff\xff\x7f");  // n_chunk: more tokens than the file holds
  std::ofstream(path, std::ios::binary) << huge;
  EXPECT_EQ(LogitsReader::open(path).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace lowbit
