// One test per class of vulnerability that was published for readers of model files (GGUF, safetensors, NumPy, pickled
// weights): what such a file gets here is an error, and no more memory than the file is large.
#include <sys/resource.h>

#include <zlib.h>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/gguf_test_files.h"
#include "io/inflate.h"
#include "io/npy.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

ErrorCode code_of(const auto& result) { return result ? ErrorCode::kCancelled : result.error().code; }

ErrorCode gguf_code(GgufTestFile file) {
  const Scratch dir;
  write_file(dir / "a.gguf", file.bytes());
  return code_of(GgufFile::open(dir / "a.gguf"));
}

ErrorCode safetensors_code(const std::string& header, size_t data_bytes) {
  const Scratch dir;
  write_file(dir / "a.safetensors", safetensors_bytes(header, data_bytes));
  return code_of(SafetensorsFile::open(dir / "a.safetensors"));
}

std::string entry(const std::string& name, const std::string& shape, uint64_t begin, uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":[" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

std::string npy_bytes(const std::string& descr, const std::string& shape, const std::string& data) {
  const std::string dict = "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }";
  return std::string("\x93NUMPY\x01\0", 8) + raw(static_cast<uint16_t>(dict.size())) + dict + data;
}

ErrorCode npy_code(const std::string& bytes) {
  const Scratch dir;
  write_file(dir / "a.npy", bytes);
  return code_of(read_npy(dir / "a.npy"));
}

int64_t peak_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

TEST(PublishedVulnerabilities, SizesThatWrapInSums) {
  // The ends of two tensors whose sizes add up to 2^64.
  GgufTestFile file = small_gguf();
  file.tensors.push_back({"wrap", {uint64_t{1} << 62, 1}, 0, std::string(64, '\0')});
  file.tensors.push_back({"behind", {16}, 0, std::string(64, '\0')});
  EXPECT_EQ(gguf_code(file), ErrorCode::kCorrupt);
  EXPECT_EQ(safetensors_code("{" + entry("a", "[18446744073709551608]", 8, 0) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(safetensors_code("{" + entry("a", "[8]", UINT64_MAX - 3, 4) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(npy_code(npy_bytes("'<f8'", "(2305843009213693952, 1)", "")), ErrorCode::kCorrupt);
  EXPECT_EQ(npy_code(npy_bytes("'<f8'", "(2305843009213693953,)", "12345678")), ErrorCode::kCorrupt);
}

TEST(PublishedVulnerabilities, SizesThatWrapInPadding) {
  // A size just below 2^64 that alignment would round up to 0.
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - 31, (uint64_t{1} << 63) - 1}) {
    GgufTestFile file = small_gguf();
    file.tensors.push_back({"pad", {bytes}, 24, std::string(32, '\0')});  // I8
    file.tensors.push_back({"behind", {16}, 0, std::string(64, '\0')});
    EXPECT_NE(gguf_code(file), ErrorCode::kCancelled) << bytes;
  }
}

TEST(PublishedVulnerabilities, ZeroDimensions) {
  for (const std::vector<uint64_t>& dims : {std::vector<uint64_t>{0}, {0, 4}, {4, 0}, {32, 0, UINT64_MAX}}) {
    GgufTestFile file = small_gguf();
    file.tensors.push_back({"zero", dims, 0, ""});
    EXPECT_EQ(gguf_code(file), ErrorCode::kCorrupt);
  }
  // Empty tensors are legal in safetensors and NumPy; no product beside the 0 may overflow into a size.
  const Scratch dir;
  write_file(dir / "a.safetensors", safetensors_bytes("{" + entry("a", "[0,4]", 0, 0) + "}", 0));
  const auto file = SafetensorsFile::open(dir / "a.safetensors");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->bytes(file->tensors().front())->empty());
  EXPECT_EQ(safetensors_code("{" + entry("a", "[0,18446744073709551615]", 0, 8) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(npy_code(npy_bytes("'<f4'", "(0, 4)", "1234")), ErrorCode::kCorrupt);
}

TEST(PublishedVulnerabilities, DuplicateNames) {
  GgufTestFile keys = small_gguf(), tensors = small_gguf();
  keys.kvs.push_back(gguf_u32("llama.block_count", 2));
  tensors.tensors[1].name = tensors.tensors[0].name;
  EXPECT_EQ(gguf_code(keys), ErrorCode::kCorrupt);
  EXPECT_EQ(gguf_code(tensors), ErrorCode::kCorrupt);
  EXPECT_EQ(safetensors_code("{" + entry("a", "[4]", 0, 4) + "," + entry("a", "[4]", 4, 8) + "}", 8),
            ErrorCode::kCorrupt);
  // One name in two spellings of JSON.
  EXPECT_EQ(safetensors_code("{" + entry("a", "[4]", 0, 4) + "," + entry("\\u0061", "[4]", 4, 8) + "}", 8),
            ErrorCode::kCorrupt);
}

TEST(PublishedVulnerabilities, StringsAndArraysThatExhaustMemory) {
  const int64_t before = peak_bytes();
  for (const uint64_t count : {uint64_t{1} << 28, uint64_t{1} << 40, UINT64_MAX}) {
    GgufTestFile text = small_gguf(), array = small_gguf(), strings = small_gguf();
    text.kvs.push_back(gguf_kv("s", GgufValueType::kString, raw(count)));
    array.kvs.push_back(gguf_kv("a", GgufValueType::kArray, raw<uint32_t>(4) + raw(count)));
    strings.kvs.push_back(gguf_kv("a", GgufValueType::kArray, raw<uint32_t>(8) + raw(count)));
    for (const GgufTestFile& file : {text, array, strings}) EXPECT_EQ(gguf_code(file), ErrorCode::kCorrupt) << count;
  }
  EXPECT_LT(peak_bytes() - before, int64_t{64} << 20);
}

TEST(PublishedVulnerabilities, InconsistentAlignment) {
  for (const uint32_t alignment : {0u, 1u, 3u, 31u, 0x80000001u, UINT32_MAX}) {
    GgufTestFile file = small_gguf();
    file.kvs.push_back(gguf_u32("general.alignment", alignment));
    EXPECT_EQ(gguf_code(file), ErrorCode::kCorrupt) << alignment;
  }
  // Laid out by another alignment than the file says: offsets would point into other tensors.
  GgufTestFile narrow = small_gguf(), wide = small_gguf();
  narrow.kvs.push_back(gguf_u32("general.alignment", 64));  // written by 32
  wide.alignment = 64;                                      // read by 32
  EXPECT_EQ(gguf_code(narrow), ErrorCode::kCorrupt);
  EXPECT_EQ(gguf_code(wide), ErrorCode::kCorrupt);
}

TEST(PublishedVulnerabilities, SizesBeyondTheFileReachNoOutput) {
  GgufTestFile cut = small_gguf();
  cut.tensors.back().data.resize(cut.tensors.back().data.size() - 1);
  EXPECT_EQ(gguf_code(cut), ErrorCode::kCorrupt);
  EXPECT_EQ(safetensors_code("{" + entry("a", "[9]", 0, 9) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(npy_code(npy_bytes("'|u1'", "(9,)", "12345678")), ErrorCode::kCorrupt);
  // A checkpoint whose shape says more than its codes hold.
  const Scratch dir;
  Rng rng(1);
  auto writer = CheckpointWriter::create(dir / "c");
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->add("l.weight", random_qtensor(rng, FormatId::kInt4, 4, 64, {1, 32}), {4, 64}));
  ASSERT_TRUE((*writer)->finish({}));
  std::string bytes = read_file(dir / "c/model.safetensors");
  const std::string shape = raw<int64_t>(4) + raw<int64_t>(64);
  const size_t at = bytes.find(shape);
  ASSERT_NE(at, std::string::npos);
  for (const int64_t rows : {int64_t{5}, int64_t{1} << 40, INT64_MAX, int64_t{-1}, INT64_MIN}) {
    std::string bad = bytes;
    bad.replace(at, 8, raw(rows));
    write_file(dir / "c/model.safetensors", bad);
    EXPECT_EQ(code_of(Checkpoint::open(dir / "c")), ErrorCode::kCorrupt) << rows;
  }
}

TEST(PublishedVulnerabilities, SignedCounts) {
  for (const uint64_t count : {uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 1}) {
    std::string bytes = small_gguf().bytes();
    for (const size_t at : {size_t{8}, size_t{16}}) {  // tensors, keys
      std::string bad = bytes;
      bad.replace(at, 8, raw(count));
      const Scratch dir;
      write_file(dir / "a.gguf", bad);
      EXPECT_EQ(code_of(GgufFile::open(dir / "a.gguf")), ErrorCode::kCorrupt) << count;
    }
  }
  EXPECT_EQ(safetensors_code("{" + entry("a", "[-1,-8]", 0, 8) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(npy_code(npy_bytes("'|u1'", "(-1, -8)", "12345678")), ErrorCode::kCorrupt);
  GgufTestFile file = small_gguf();
  file.kvs.push_back(gguf_kv("split.count", GgufValueType::kI32, raw<int32_t>(-1)));
  EXPECT_NE(gguf_code(file), ErrorCode::kCancelled);
}

TEST(PublishedVulnerabilities, PathTraversal) {
  const Scratch dir;
  write_file(dir / "secret", safetensors_bytes("{" + entry("a", "[4]", 0, 4) + "}", 4));
  std::filesystem::create_directory(dir / "model");
  for (const std::string shard :
       {"../secret", "..", "/etc/passwd", "a/../../secret", "..\\\\secret", "secret\\u0000"}) {
    write_file(dir / "model/model.safetensors.index.json", R"({"weight_map":{"a":")" + shard + "\"}}");
    EXPECT_EQ(code_of(SafetensorsSet::open(dir / "model")), ErrorCode::kCorrupt) << shard;
  }
  // Names of files that a checkpoint is to hold, and names inside an archive, lead nowhere either.
  auto writer = CheckpointWriter::create(dir / "out");
  ASSERT_TRUE(writer);
  for (const char* name : {"../x.json", "/tmp/x.json", "a/b.json", ".hidden", ""})
    EXPECT_EQ(code_of((*writer)->add_file(name, "{}")), ErrorCode::kInvalidArgument) << name;
}

TEST(PublishedVulnerabilities, PickledWeightsAreNeverRead) {
  const Scratch dir;
  write_file(dir / "pytorch_model.bin",
             "\x80\x02"
             "cos\nsystem\n");
  const auto set = SafetensorsSet::open(dir.path());
  ASSERT_FALSE(set);
  EXPECT_NE(set.error().message().find("pickled weights are never read"), std::string::npos);
  for (const char* descr : {"'|O'", "'O'", "[('a', '|O')]", "'|V8'", "'<M8[ns]'"})
    EXPECT_NE(npy_code(npy_bytes(descr, "(1,)", "12345678")), ErrorCode::kCancelled) << descr;
}

/// A zip with one member of DEFLATE: an .npy of `count` zeros.
std::string packed_zeros(size_t count) {
  const std::string member = npy_bytes("'|u1'", "(" + std::to_string(count) + ",)", std::string(count, '\0'));
  std::string packed(compressBound(member.size()) + 64, '\0');
  z_stream z{};
  deflateInit2(&z, 1, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(member.data()));
  z.avail_in = static_cast<uInt>(member.size());
  z.next_out = reinterpret_cast<Bytef*>(packed.data());
  z.avail_out = static_cast<uInt>(packed.size());
  deflate(&z, Z_FINISH);
  packed.resize(z.total_out);
  deflateEnd(&z);
  const std::string name = "zeros.npy";
  const std::string common = raw<uint16_t>(20) + raw<uint16_t>(0) + raw<uint16_t>(8) + raw<uint32_t>(0) +
                             raw(crc32(std::as_bytes(std::span(member)))) + raw(static_cast<uint32_t>(packed.size())) +
                             raw(static_cast<uint32_t>(member.size())) + raw(static_cast<uint16_t>(name.size())) +
                             raw<uint16_t>(0);
  const std::string local = raw<uint32_t>(0x04034b50) + common + name + packed;
  const std::string directory =
      raw<uint32_t>(0x02014b50) + raw<uint16_t>(20) + common + std::string(10, '\0') + raw<uint32_t>(0) + name;
  return local + directory + raw<uint32_t>(0x06054b50) + raw<uint32_t>(0) + raw<uint16_t>(1) + raw<uint16_t>(1) +
         raw(static_cast<uint32_t>(directory.size())) + raw(static_cast<uint32_t>(local.size())) + raw<uint16_t>(0);
}

TEST(PublishedVulnerabilities, ArchivesThatUnpackToFarMoreThanTheyAre) {
  const Scratch dir;
  write_file(dir / "small.npz", packed_zeros(1 << 20));
  const auto small = read_npz(dir / "small.npz");
  ASSERT_TRUE(small) << small.error().message();
  EXPECT_EQ(small->front().data.size(), 1 << 20);
  write_file(dir / "bomb.npz", packed_zeros(size_t{160} << 20));
  const int64_t before = peak_bytes();
  const auto bomb = read_npz(dir / "bomb.npz");
  ASSERT_FALSE(bomb);
  EXPECT_EQ(bomb.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(bomb.error().message().find("compressed arrays"), std::string::npos) << bomb.error().message();
  EXPECT_LT(peak_bytes() - before, int64_t{16} << 20) << "refused before it is unpacked";
}

}  // namespace
}  // namespace lowbit
