#include "io/inflate.h"

#include <fstream>
#include <sstream>

#include "io/npy.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

std::span<const std::byte> bytes_of(const std::string& s) { return std::as_bytes(std::span(s)); }

struct Stream {
  std::string name, packed;
  size_t size = 0;
  uint32_t checksum = 0;
};

std::vector<Stream> streams() {
  std::ifstream file(LOWBIT_SOURCE_DIR "/tests/golden/io/inflate_cases.txt");
  std::vector<Stream> out;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    Stream s;
    std::string hex;
    std::getline(fields, s.name, '\t');
    std::getline(fields, hex, '\t');
    fields >> s.size >> s.checksum;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
      s.packed += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    out.push_back(std::move(s));
  }
  return out;
}

TEST(Crc32, IsTheOneOfZip) {
  EXPECT_EQ(crc32({}), 0u);
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926u);
}

TEST(Inflate, UnpacksWhatZlibPacks) {
  ASSERT_EQ(streams().size(), 10u);
  for (const Stream& s : streams()) {
    std::vector<std::byte> out(s.size);
    const auto status = inflate(bytes_of(s.packed), out, "test");
    ASSERT_TRUE(status) << s.name << ": " << status.error().message();
    EXPECT_EQ(crc32(out), s.checksum) << s.name;
  }
}

TEST(Inflate, AStreamMustFillItsPlaceAndEndWithIt) {
  for (const Stream& s : streams()) {
    std::vector<std::byte> longer(s.size + 1), out(s.size);
    EXPECT_FALSE(inflate(bytes_of(s.packed), longer, "test")) << s.name;
    for (const size_t shorter : {s.size / 2, s.size - 1})
      if (shorter < s.size) {
        EXPECT_FALSE(inflate(bytes_of(s.packed), std::span(out).first(shorter), "test")) << s.name;
      }
    EXPECT_FALSE(inflate(bytes_of(s.packed + '\0'), out, "test")) << s.name;
    for (size_t cut = 0; cut < s.packed.size(); ++cut)
      EXPECT_FALSE(inflate(bytes_of(s.packed.substr(0, cut)), out, "test")) << s.name << " cut to " << cut;
  }
}

TEST(Inflate, BrokenStreamsAreNamed) {
  std::vector<std::byte> out(16);
  const auto said = [&](const std::string& packed) {
    const auto status = inflate(bytes_of(packed), out, "test");
    return status ? std::string("nothing") : status.error().message();
  };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_PRED2(contains, said("\x07"), "invalid block type");
  EXPECT_PRED2(contains, said(std::string("\x01\x02\x00\x02\x00", 5)), "invalid stored block lengths");
  EXPECT_PRED2(contains, said("\x4b\x04\x12\x00"), "too far back");  // fixed codes: 'a', then a copy from 5 before
  EXPECT_PRED2(contains, said(std::string("\xfd\xff\xff\xff", 4)), "too many length or distance symbols");
  EXPECT_PRED2(contains, said(std::string("\x05\x00\x92\x24\x49\x92\x24\x49", 8)),
               "invalid code lengths set");  // more codes than fit
  EXPECT_PRED2(contains, said(std::string("\x01\x02\x00\xfd\xff", 5)), "end missing");
}

TEST(Inflate, MutatedStreamsNeverCrash) {
  Rng rng(4);
  int refused = 0;
  for (const Stream& s : streams())
    for (int i = 0; i < 300; ++i) {
      std::string bad = s.packed;
      for (uint64_t n = 1 + rng.below(3); n > 0; --n) bad[rng.below(bad.size())] = static_cast<char>(rng.below(256));
      std::vector<std::byte> out(s.size);
      refused += !inflate(bytes_of(bad), out, "test") || crc32(out) != s.checksum;
    }
  EXPECT_GT(refused, 2500);
}

TEST(Npz, CompressedMembersAreTheArraysThatNumPyWrote) {
  const auto arrays = read_npz(LOWBIT_SOURCE_DIR "/tests/golden/io/compressed.npz");
  ASSERT_TRUE(arrays) << arrays.error().message();
  ASSERT_EQ(arrays->size(), 3u);
  const NpyArray &ramp = (*arrays)[0], &swapped = (*arrays)[1], &none = (*arrays)[2];
  EXPECT_EQ(ramp.name, "ramp");
  EXPECT_EQ(ramp.shape, (Shape{10, 100}));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ramp.data.as<float>()[i], float(i) / 8);
  EXPECT_EQ(swapped.shape, (Shape{2, 3}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(swapped.data.as<int16_t>()[i], i);
  EXPECT_EQ(none.shape, (Shape{0, 4}));
}

}  // namespace
}  // namespace lowbit
