#include "io/gguf.h"

#include <bit>
#include <cmath>

#include "io/gguf_test_files.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

bool same_number(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

class GgufTypes : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = SafetensorsFile::open(LOWBIT_SOURCE_DIR "/tests/golden/io/gguf_types.safetensors");
    ASSERT_TRUE(file) << file.error().message();
    golden_ = std::move(*file);
  }
  SafetensorsFile golden_;
};

TEST_F(GgufTypes, DequantizeAndImportEqualGgufPyValueByValue) {
  int types = 0;
  for (const auto& info : gguf_types()) {
    if (!info.decodable) continue;
    SCOPED_TRACE(info.name);
    const auto *blocks = golden_.find(std::string(info.name) + ".blocks"),
               *values = golden_.find(std::string(info.name) + ".values");
    ASSERT_NE(blocks, nullptr);
    ASSERT_NE(values, nullptr);
    ASSERT_EQ(blocks->shape[1], info.block_bytes);
    const Buffer raw_blocks = *golden_.bytes(*blocks), expected = *golden_.bytes(*values);
    const int64_t n = blocks->shape[0], k = info.block_elems;
    std::vector<float> out(static_cast<size_t>(n * k));
    ASSERT_TRUE(gguf_dequantize(info.id, raw_blocks.as<uint8_t>(), n * k, out.data()));
    for (int64_t i = 0; i < n * k; ++i)
      ASSERT_TRUE(same_number(out[static_cast<size_t>(i)], expected.as<float>()[i]))
          << "block " << i / k << " element " << i % k << ": " << out[static_cast<size_t>(i)] << " vs "
          << expected.as<float>()[i];

    // The import, block after block as one row each, then all as one row, then the first half (some mappings depend on
    // what occurs).
    for (const auto& [rows, columns] : {std::pair{n, k}, std::pair{int64_t{1}, n * k}, std::pair{n / 2, k}}) {
      const Buffer part = Buffer::borrow(
          {const_cast<std::byte*>(raw_blocks.data()), static_cast<size_t>(rows * columns / k * info.block_bytes)},
          nullptr);
      const auto w = gguf_to_qtensor(info.id, rows, columns, part);
      ASSERT_TRUE(w) << w.error().message();
      ASSERT_TRUE(check_qtensor(*w, info.name));
      std::vector<float> real(static_cast<size_t>(rows * columns));
      dequantize_rows(*w, 0, rows, real.data());
      for (size_t i = 0; i < real.size(); ++i) {
        const bool zeros =
            info.id == GgufType::kQ2_0 && real[i] == 0 && out[i] == 0;  // the negated scale may turn +0 into -0
        const bool zeros_of_tq2 = info.id == GgufType::kTq2_0 && real[i] == 0 && out[i] == 0;
        ASSERT_TRUE(zeros || zeros_of_tq2 || same_number(real[i], out[i]))
            << "import, element " << i << ": " << real[i] << " vs " << out[i];
      }
    }
    ++types;
  }
  EXPECT_EQ(types, 20);
}

TEST_F(GgufTypes, GridsAreTheDocumentedOnes) {
  const auto import = [&](const char* name, GgufType type, int64_t blocks) {
    const auto* e = golden_.find(std::string(name) + ".blocks");
    const auto* info = gguf_type_info(static_cast<uint32_t>(type));
    const Buffer all = *golden_.bytes(*e);
    return *gguf_to_qtensor(
        type, blocks, info->block_elems,
        Buffer::borrow({const_cast<std::byte*>(all.data()), static_cast<size_t>(blocks * info->block_bytes)}, nullptr));
  };
  EXPECT_EQ(import("Q4_0", GgufType::kQ4_0, 4).format, FormatId::kInt4);
  EXPECT_EQ(import("Q4_1", GgufType::kQ4_1, 4).format, FormatId::kUint4);
  EXPECT_EQ(import("TQ2_0", GgufType::kTq2_0, 8).format, FormatId::kTernary);
  EXPECT_EQ(import("TQ2_0", GgufType::kTq2_0, 20).format, FormatId::kInt2) << "code 3 is outside the ternary alphabet";
  EXPECT_EQ(import("MXFP4", GgufType::kMxfp4, 24).scaling.scale, ScaleKind::kPow2);
  EXPECT_EQ(import("MXFP4", GgufType::kMxfp4, 48).scaling.scale, ScaleKind::kF32);
  EXPECT_EQ(import("Q6_K", GgufType::kQ6K, 2).scaling.scale, ScaleKind::kDouble);
  EXPECT_DOUBLE_EQ(import("Q4_0", GgufType::kQ4_0, 4).bits_per_weight(), 4.5);
  EXPECT_FALSE(gguf_to_qtensor(static_cast<GgufType>(16), 1, 256, Buffer()));
  EXPECT_FALSE(gguf_to_qtensor(GgufType::kQ4_0, 1, 33, Buffer()));
  EXPECT_FALSE(gguf_to_qtensor(GgufType::kQ4_0, INT64_MAX, INT64_MAX, Buffer()));
}

TEST(GgufMxfp4, OnlyBothEndsOfTheExponentsTogetherNeedFloats) {
  const auto import = [](std::vector<uint8_t> exponents) {
    std::vector<std::byte> blocks;
    for (const uint8_t e : exponents) {
      blocks.push_back(std::byte{e});
      blocks.insert(blocks.end(), 16, std::byte{0x21});
    }
    const auto n = static_cast<int64_t>(exponents.size());
    return *gguf_to_qtensor(GgufType::kMxfp4, n, 32, Buffer::borrow(blocks, nullptr));
  };
  const auto low = import({0, 254}), middle = import({1, 254}), high = import({1, 255}), both = import({0, 255});
  EXPECT_EQ(low.scaling.scale, ScaleKind::kPow2);
  EXPECT_EQ(middle.scaling.scale, ScaleKind::kPow2);
  EXPECT_EQ(high.scaling.scale, ScaleKind::kPow2);
  EXPECT_EQ(both.scaling.scale, ScaleKind::kF32);
  for (size_t i = 0; i < low.codebook.size(); ++i) EXPECT_EQ(low.codebook[i], 0.5f * middle.codebook[i]);
  EXPECT_EQ(high.codebook, middle.codebook);
}

TEST(Gguf, ReadsMetadataAndTensors) {
  Scratch dir;
  for (const uint32_t version : {2u, 3u}) {
    GgufTestFile file = small_gguf();
    file.version = version;
    write_file(dir / "a.gguf", file.bytes());
    const auto f = GgufFile::open(dir / "a.gguf");
    ASSERT_TRUE(f) << f.error().message();
    EXPECT_EQ(f->value("general.architecture")->as_string(), "llama");
    EXPECT_EQ(f->value("llama.block_count")->as_int(), 1);
    EXPECT_EQ(f->value("llama.block_count")->as_double(), 1.0);
    EXPECT_EQ(f->value("flag")->as_bool(), true);
    EXPECT_EQ(f->value("flag")->as_int(), std::nullopt);
    EXPECT_EQ(f->value("words")->as_strings(), (std::vector<std::string>{"a", "bc"}));
    EXPECT_EQ(f->value("numbers")->as_ints(), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(f->value("numbers")->as_floats(), std::nullopt);
    EXPECT_EQ(f->value("nothing"), nullptr);
    ASSERT_EQ(f->tensors().size(), 3u);
    const auto* a = f->find("a.weight");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->shape, (Shape{3, 64}));
    const Buffer raw_a = *f->bytes(*a);
    EXPECT_EQ(std::string(raw_a.as<char>(), static_cast<size_t>(raw_a.size())), file.tensors[0].data);
    const auto w = f->load(*f->find("c.weight"));
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_EQ(w->n, 2);
    f->release(*a);
    EXPECT_EQ(f->bytes(*a)->data()[0], static_cast<std::byte>(file.tensors[0].data[0])) << "released pages come back";
  }
}

TEST(Gguf, EveryBrokenRuleIsAnError) {
  Scratch dir;
  const auto code = [&](GgufTestFile f, size_t at = 0, const std::string& patch = {}) {
    std::string bytes = f.bytes();
    bytes.replace(at, patch.size(), patch);
    write_file(dir / "b.gguf", bytes);
    const auto opened = GgufFile::open(dir / "b.gguf");
    EXPECT_FALSE(opened);
    return opened ? ErrorCode::kCancelled : opened.error().code;
  };
  const auto kv = [&](const std::string& text) {
    GgufTestFile f = small_gguf();
    f.kvs.push_back(text);
    return code(f);
  };
  const auto tensor = [&](std::vector<uint64_t> dims, uint32_t type, size_t bytes = 64) {
    GgufTestFile f = small_gguf();
    f.tensors.push_back({"x", std::move(dims), type, std::string(bytes, '\0')});
    return code(f);
  };
  EXPECT_EQ(code(small_gguf(), 0, "GGML"), ErrorCode::kCorrupt);
  for (const uint32_t version : {0u, 1u, 4u, 0x02000000u, 0x03000000u}) {
    GgufTestFile f = small_gguf();
    f.version = version;
    EXPECT_EQ(code(f), ErrorCode::kUnsupported) << version;
  }
  for (const uint64_t count :
       {uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 42, uint64_t{1} << 63, UINT64_MAX, uint64_t{100}}) {
    EXPECT_EQ(code(small_gguf(), 8, raw(count)), ErrorCode::kCorrupt) << "tensors " << count;
    EXPECT_EQ(code(small_gguf(), 16, raw(count)), ErrorCode::kCorrupt) << "keys " << count;
    EXPECT_EQ(code(small_gguf(), 24, raw(count)), ErrorCode::kCorrupt) << "key length " << count;
    EXPECT_EQ(kv(gguf_kv("s", GgufValueType::kString, raw(count))), ErrorCode::kCorrupt) << "string " << count;
    for (const uint32_t type : {0u, 5u, 8u, 12u})
      EXPECT_EQ(kv(gguf_kv("a", GgufValueType::kArray, raw(type) + raw(count < 1000 ? count << 4 : count))),
                ErrorCode::kCorrupt)
          << "array " << count;
    EXPECT_EQ(tensor({count, count}, 0), ErrorCode::kCorrupt);
    EXPECT_EQ(tensor({count, 2}, 0), ErrorCode::kCorrupt);
    EXPECT_EQ(tensor({count}, 2), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(tensor({(uint64_t{1} << 42) + 1, 1, 4194304}, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(tensor({0}, 0, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(tensor({}, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(tensor({1, 1, 1, 1, 16}, 0), ErrorCode::kCorrupt);
  EXPECT_EQ(tensor({33}, 2), ErrorCode::kCorrupt) << "half a block";
  EXPECT_EQ(tensor({16}, 4), ErrorCode::kUnsupported) << "a removed type";
  EXPECT_EQ(tensor({18}, 36), ErrorCode::kCorrupt) << "bytes of four codes";
  EXPECT_EQ(tensor({16}, UINT32_MAX), ErrorCode::kUnsupported);
  EXPECT_EQ(kv(gguf_u32("flag", 1)), ErrorCode::kCorrupt) << "a key twice";
  EXPECT_EQ(kv(gguf_kv("b", GgufValueType::kBool, "\x02")), ErrorCode::kCorrupt);
  EXPECT_EQ(kv(gguf_kv("", GgufValueType::kBool, "\x01")), ErrorCode::kCorrupt);
  EXPECT_EQ(kv(gguf_kv("t", static_cast<GgufValueType>(13), "1234")), ErrorCode::kCorrupt);
  EXPECT_EQ(kv(gguf_kv("n", GgufValueType::kArray,
                       raw<uint32_t>(9) + raw<uint64_t>(1) + raw<uint32_t>(0) + raw<uint64_t>(0))),
            ErrorCode::kUnsupported);
  for (const uint32_t alignment : {0u, 3u, 48u, 131072u, 0x80000000u})
    EXPECT_EQ(kv(gguf_u32("general.alignment", alignment)), ErrorCode::kCorrupt) << alignment;
  EXPECT_EQ(kv(gguf_text("general.alignment", "32")), ErrorCode::kCorrupt);
  EXPECT_EQ(kv(gguf_u32("split.count", 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(kv(gguf_u32("split.count", UINT32_MAX)), ErrorCode::kCorrupt);
  GgufTestFile twice = small_gguf();
  twice.tensors[2].name = "b";
  EXPECT_EQ(code(twice), ErrorCode::kCorrupt);
  GgufTestFile moved = small_gguf();
  (void)moved.bytes();
  EXPECT_EQ(code(moved, moved.borders[3 + 5 + 4] - 8, raw<uint64_t>(64)), ErrorCode::kCorrupt)
      << "an offset that is not where the tensor before ends";
}

TEST(Gguf, OtherAlignmentsAndSplitFiles) {
  Scratch dir;
  GgufTestFile wide = small_gguf();
  wide.alignment = 4096;
  wide.kvs.push_back(gguf_u32("general.alignment", 4096));
  write_file(dir / "wide.gguf", wide.bytes());
  EXPECT_TRUE(GgufFile::open(dir / "wide.gguf"));
  const auto part = [&](uint32_t no, const std::string& name) {
    GgufTestFile f = small_gguf();
    f.kvs.push_back(gguf_u32("split.count", 2));
    f.kvs.push_back(gguf_u32("split.no", no));
    for (auto& t : f.tensors) t.name = name + t.name;
    return f.bytes();
  };
  write_file(dir / "m-00001-of-00002.gguf", part(0, "p."));
  EXPECT_EQ(GgufFile::open(dir / "m-00001-of-00002.gguf").error().code, ErrorCode::kNotFound);
  write_file(dir / "m-00002-of-00002.gguf", part(1, "q."));
  const auto f = GgufFile::open(dir / "m-00001-of-00002.gguf");
  ASSERT_TRUE(f) << f.error().message();
  EXPECT_EQ(f->tensors().size(), 6u);
  EXPECT_NE(f->find("q.b"), nullptr);
  EXPECT_EQ(GgufFile::open(dir / "m-00002-of-00002.gguf").error().code, ErrorCode::kInvalidArgument);
  write_file(dir / "m-00002-of-00002.gguf", part(1, "p."));
  EXPECT_EQ(GgufFile::open(dir / "m-00001-of-00002.gguf").error().code, ErrorCode::kCorrupt)
      << "a tensor in both parts";
}

}  // namespace
}  // namespace lowbit
