#include "io/npy.h"

#include "io/inflate.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

std::string npy(const std::string& dict, const std::string& data, int major = 1) {
  const std::string length = major == 1 ? raw<uint16_t>(static_cast<uint16_t>(dict.size()))
                                        : raw<uint32_t>(static_cast<uint32_t>(dict.size()));
  return std::string("\x93NUMPY") + static_cast<char>(major) + '\0' + length + dict + data;
}

/// A zip of stored members; `method`, `size_lie` and `count_lie` make it bad.
std::string zip(const std::vector<std::pair<std::string, std::string>>& members, uint16_t method = 0,
                uint32_t size_lie = 0, uint16_t count_lie = 0) {
  std::string out, directory;
  for (const auto& [name, data] : members) {
    const auto at = static_cast<uint32_t>(out.size());
    const auto size = static_cast<uint32_t>(data.size() + size_lie), name_size = static_cast<uint32_t>(name.size());
    const std::string common = raw<uint16_t>(20) + raw<uint16_t>(0) + raw<uint16_t>(method) + raw<uint32_t>(0) +
                               raw(crc32(std::as_bytes(std::span(data)))) + raw<uint32_t>(size) + raw<uint32_t>(size) +
                               raw<uint16_t>(static_cast<uint16_t>(name_size)) + raw<uint16_t>(0);
    out += raw<uint32_t>(0x04034b50) + common + name + data;
    directory += raw<uint32_t>(0x02014b50) + raw<uint16_t>(20) + common + raw<uint16_t>(0) + raw<uint16_t>(0) +
                 raw<uint16_t>(0) + raw<uint32_t>(0) + raw<uint32_t>(at) + name;
  }
  const auto count = static_cast<uint16_t>(members.size() + count_lie);
  const auto start = static_cast<uint32_t>(out.size());
  return out + directory + raw<uint32_t>(0x06054b50) + raw<uint32_t>(0) + raw<uint16_t>(count) + raw<uint16_t>(count) +
         raw<uint32_t>(static_cast<uint32_t>(directory.size())) + raw<uint32_t>(start) + raw<uint16_t>(0);
}

const std::string kSix = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }\n";

TEST(Npy, ReadsEveryVersionAndOrder) {
  Scratch dir;
  for (int major = 1; major <= 3; ++major) {
    write_file(dir / "a.npy", npy(kSix, "abcdef", major));
    const auto a = read_npy(dir / "a.npy");
    ASSERT_TRUE(a) << a.error().message();
    EXPECT_EQ(a->shape, (Shape{2, 3}));
    EXPECT_EQ(std::string(a->data.as<char>(), 6), "abcdef");
  }
  write_file(dir / "f.npy", npy("{\"shape\":(2,3),'fortran_order':True,'descr':'<i2'}",
                                raw<int16_t>(1) + raw<int16_t>(4) + raw<int16_t>(2) + raw<int16_t>(5) +
                                    raw<int16_t>(3) + raw<int16_t>(6)));
  const auto f = read_npy(dir / "f.npy");
  ASSERT_TRUE(f) << f.error().message();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(f->data.as<int16_t>()[i], i + 1);
  write_file(dir / "s.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", raw(2.5)));
  const auto s = read_npy(dir / "s.npy");
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_EQ(s->data.as<double>()[0], 2.5);
  write_file(dir / "e.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9), }", ""));
  EXPECT_TRUE(read_npy(dir / "e.npy"));
}

TEST(Npy, BadFilesAreErrors) {
  Scratch dir;
  const auto code = [&](const std::string& bytes) {
    write_file(dir / "b.npy", bytes);
    const auto a = read_npy(dir / "b.npy");
    EXPECT_FALSE(a) << bytes.substr(0, 100);
    return a ? ErrorCode::kCancelled : a.error().code;
  };
  const auto with = [](const std::string& descr, const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }";
  };
  EXPECT_EQ(code(npy(with("'|O'", "(1,)"), "12345678")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(npy(with("'>f4'", "(1,)"), "1234")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(npy(with("'<U4'", "(1,)"), "1234")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(npy(with("[('a', '<f4')]", "(1,)"), "1234")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(with("'<f4'", "(2,)"), "1234")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(with("'<f4'", "(1,)"), "12345")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(with("'<f4'", "(4611686018427387904,)"), "")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(with("'<f4'", "(4294967296,4294967296)"), "")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(with("'<f4'", "(99999999999999999999,)"), "")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(with("'<f4'", "(-1,)"), "")), ErrorCode::kCorrupt);
  EXPECT_EQ(code(npy(kSix, "abcdef", 4)), ErrorCode::kUnsupported);
  const std::string good = npy(kSix, "abcdef");
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_EQ(code(good.substr(0, cut)), ErrorCode::kCorrupt) << cut;
}

TEST(Npz, ReadsStoredMembersAndRefusesTheRest) {
  Scratch dir;
  const auto open = [&](const std::string& bytes) {
    write_file(dir / "a.npz", bytes);
    return read_npz(dir / "a.npz");
  };
  const std::string one = npy(kSix, "abcdef");
  const std::string good = zip({{"x.npy", one}, {"y.npy", npy(kSix, "ghijkl")}});
  const auto a = open(good);
  ASSERT_TRUE(a) << a.error().message();
  ASSERT_EQ(a->size(), 2u);
  EXPECT_EQ((*a)[1].name, "y");
  EXPECT_EQ(std::string((*a)[1].data.as<char>(), 6), "ghijkl");
  EXPECT_TRUE(open(zip({})));
  for (uint16_t method : {8, 12}) EXPECT_FALSE(open(zip({{"x.npy", one}}, method)));  // no DEFLATE stream; bzip2
  std::string changed = good;
  changed[changed.find("abcdef")] = 'z';
  const auto wrong = open(changed);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message().find("checksum"), std::string::npos);
  EXPECT_FALSE(open(zip({{"x.npy", one}, {"x.npy", one}})));
  EXPECT_FALSE(open(zip({{"x.txt", one}})));
  EXPECT_FALSE(open(zip({{"x.npy", one}}, 0, 1)));
  EXPECT_FALSE(open(zip({{"x.npy", one}}, 0, 0x7fffffff)));
  EXPECT_FALSE(open(zip({{"x.npy", one}}, 0, 0, 1)));
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(open(good.substr(0, cut))) << cut;
}

TEST(Npz, MutatedFilesNeverCrash) {
  Scratch dir;
  Rng rng(9);
  const std::string good =
      zip({{"x.npy", npy(kSix, "abcdef")},
           {"y.npy", npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", std::string(16, '1'))}});
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) bad[rng.below(bad.size())] = static_cast<char>(rng.below(256));
    write_file(dir / "m.npz", bad);
    refused += !read_npz(dir / "m.npz");
  }
  EXPECT_GT(refused, 200);
}

TEST(Npz, RealNetwork) {
  const char* data = std::getenv("LOWBIT_DATA");
  const std::string path =
      (data ? std::string(data) : LOWBIT_SOURCE_DIR "/../shared/data") + "/rnn/g2p/checkpoint20.npz";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const auto a = read_npz(path);
  ASSERT_TRUE(a) << a.error().message();
  ASSERT_EQ(a->size(), 12u);
  EXPECT_EQ((*a)[1].name, "enc_w_ih");
  EXPECT_EQ((*a)[1].shape, (Shape{768, 256}));
}

}  // namespace
}  // namespace lowbit
