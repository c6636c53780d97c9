#include "pipeline/trace_file.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "io/test_files.h"
#include "pipeline/trace_test_files.h"

namespace lowbit {
namespace {

using namespace testing_trace;
using testing_io::raw;
using testing_io::read_file;
using testing_io::Scratch;
using testing_io::write_file;

/// Everything that is in the file; "" or why it cannot be read.
std::string read_through(const std::string& path, std::vector<TracePass>* passes = nullptr) {
  const auto file = TraceFileReader::open(path);
  if (!file) return file.error().message();
  TracePass pass;
  for (int64_t offset = file->begin();;) {
    const auto more = file->next(offset, pass);
    if (!more) return more.error().message();
    if (!*more) return "";
    for (size_t tap = 0; tap < file->header().taps.size(); ++tap) {
      const TraceTap& spec = file->header().taps[tap];
      std::vector<float> row(size_t(spec.width));
      for (int64_t r = 0; r < pass.rows_of(spec); ++r)
        if (const auto status = file->rows(offset, pass, tap, r, 1, row.data()); !status)
          return status.error().message();
    }
    if (passes != nullptr) passes->push_back(pass);
  }
}

TEST(TraceFile, RoundTrips) {
  const Scratch scratch;
  const std::string path = scratch / "a";
  write_trace(path, {4, 1, 1});
  const auto file = TraceFileReader::open(path);
  ASSERT_TRUE(file) << file.error().message();
  const TraceHeader want = small_header();
  EXPECT_EQ(file->header().info.model, want.info.model);
  EXPECT_EQ(file->header().info.isa, want.info.isa);
  ASSERT_EQ(file->header().taps.size(), want.taps.size());
  int64_t offset = file->begin(), done = 0;
  for (const int64_t m : {4, 1, 1}) {
    TracePass pass;
    ASSERT_TRUE(*file->next(offset, pass));
    EXPECT_EQ(pass.position, done);
    ASSERT_EQ(int64_t(pass.tokens.size()), m);
    EXPECT_EQ(pass.tokens.back(), 100 + done + m - 1);
    for (size_t tap = 0; tap < want.taps.size(); ++tap) {
      const int64_t width = want.taps[tap].width, rows = pass.rows_of(want.taps[tap]);
      std::vector<float> got(size_t(rows * width));
      ASSERT_TRUE(file->rows(offset, pass, tap, 0, rows, got.data()));
      for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t token = done + (want.taps[tap].wanted ? pass.first : 0) + i / width;
        EXPECT_EQ(got[size_t(i)], value_at(tap, token, i % width));
      }
    }
    done += m;
  }
  TracePass pass;
  EXPECT_FALSE(*file->next(offset, pass));
}

TEST(TraceFile, AnUnfinishedOneNeverAppears) {
  const Scratch scratch;
  { ASSERT_TRUE(TraceFileWriter::create(scratch / "a", small_header())); }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 0);
}

TEST(TraceFile, WhatIsDroppedLeavesNothing) {
  const Scratch scratch;
  write_trace(scratch / "want", {1});
  const TraceHeader header = small_header();
  auto writer = TraceFileWriter::create(scratch / "got", header);
  ASSERT_TRUE(writer);
  const std::vector<float> rows(3, 7.0f);
  const TracePass pass{0, 0, 1, {100}};
  writer->begin(pass);  // half a pass
  writer->append(rows);
  writer->drop();
  writer->begin(pass);
  for (size_t tap = 0; tap < header.taps.size(); ++tap)
    for (int64_t c = 0; c < header.taps[tap].width; ++c) {
      const float value = value_at(tap, 0, c);
      writer->append({&value, 1});
    }
  ASSERT_TRUE(writer->keep());
  writer->begin(pass);  // another that finish() drops
  ASSERT_TRUE(writer->finish());
  EXPECT_EQ(read_file(scratch / "got"), read_file(scratch / "want"));
}

TEST(TraceFile, AFullDiskIsNamed) {
  auto writer = TraceFileWriter::create("/dev/full", small_header());  // a device is written as it is
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, ErrorCode::kIo);
  EXPECT_EQ(writer.error().where, "/dev/full");
}

TEST(TraceFile, EveryCutIsRefusedButBetweenPasses) {
  const Scratch scratch;
  write_trace(scratch / "whole", {2, 1, 1});
  const std::string whole = read_file(scratch / "whole"), path = scratch / "cut";
  int read = 0;
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    write_file(path, whole.substr(0, cut));
    std::vector<TracePass> passes;
    const std::string why = read_through(path, &passes);
    read += int(why.empty());
    EXPECT_TRUE(why.empty() || why.find(path) == 0) << cut << ": " << why;
  }
  EXPECT_EQ(read, 3);  // without any pass, with one, with two
}

TEST(TraceFile, RandomDamageIsRefusedOrRead) {
  const Scratch scratch;
  write_trace(scratch / "whole", {2, 1});
  const std::string whole = read_file(scratch / "whole"), path = scratch / "damaged";
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = whole;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) bytes[rng.below(bytes.size())] = char(rng.below(256));
    write_file(path, bytes);
    const std::string why = read_through(path);
    EXPECT_TRUE(why.empty() || why.find(path) == 0) << why;
  }
}

TEST(TraceFile, SizesThatCannotBeAreNamed) {
  const Scratch scratch;
  const std::string path = scratch / "a";
  write_trace(path, {2, 1});
  const std::string whole = read_file(path);
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data() + 12, 4);
  const size_t pass = 16 + header_bytes;
  const auto refused = [&](size_t at, const std::string& bytes, const char* why) {
    std::string damaged = whole;
    damaged.replace(at, bytes.size(), bytes);
    write_file(path, damaged);
    EXPECT_NE(read_through(path).find(why), std::string::npos) << read_through(path);
  };
  refused(0, "X", "another kind of file");
  refused(8, raw(uint32_t{2}), "version 2");
  refused(12, raw(uint32_t{0xffffffff}), "a header of 4294967295 bytes");
  refused(12, raw(uint32_t{1000000}), "is the file complete?");
  refused(pass, raw(uint32_t{1}), "no mark");
  refused(pass + 4, raw(uint32_t{0}), "0 tokens");
  refused(pass + 4, raw(uint32_t{0xffffffff}), "4294967295 tokens");
  refused(pass + 4, raw(uint32_t{1} << 20), "is the file complete?");
  refused(pass + 8, raw(int64_t{-1}), "position -1");
  refused(pass + 16, raw(uint32_t{3}), "logits of 1 from 3");
  refused(pass + 20, raw(uint32_t{0xffffffff}), "logits of 4294967295");
  for (const char* header :
       {R"({})", R"({"taps": []})", R"({"taps": 3})", R"({"taps": [{"name": "x", "width": 0, "rows": "all"}]})",
        R"({"taps": [{"name": "x", "width": 16777217, "rows": "all"}]})",
        R"({"taps": [{"name": "x", "width": 4, "rows": "some"}]})", R"({"taps": [3]})", R"([])", R"({)"}) {
    const std::string text = header;
    write_file(path, whole.substr(0, 12) + raw(uint32_t(text.size())) + text);
    EXPECT_NE(read_through(path), "") << header;
  }
  write_file(path, whole.substr(0, 12) + raw(uint32_t{61}) +
                       R"({"taps": [{"name": "x", "width": 16777216, "rows": "all"}]}  )" + raw(uint32_t{0x53534150}) +
                       raw(uint32_t{1} << 20) + std::string(1000, '\0'));
  EXPECT_NE(read_through(path).find("is the file complete?"), std::string::npos) << read_through(path);
  EXPECT_EQ(TraceFileReader::open(scratch / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(TraceFileReader::open(scratch.path()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lowbit
