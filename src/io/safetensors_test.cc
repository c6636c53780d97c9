#include "io/safetensors.h"

#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

ErrorCode open_code(const Scratch& dir, const std::string& bytes) {
  write_file(dir / "t.safetensors", bytes);
  const auto f = SafetensorsFile::open(dir / "t.safetensors");
  EXPECT_FALSE(f) << bytes.substr(8, 200);
  if (!f) {
    EXPECT_NE(f.error().message().find("t.safetensors"), std::string::npos);
  }
  return f ? ErrorCode::kCancelled : f.error().code;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                  uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(Safetensors, WhatIsWrittenReadsBackAlignedAndUnchanged) {
  Scratch dir;
  Rng rng(1);
  const std::vector<SafetensorsDecl> decls = {{"i", DType::kI64, {3}},
                                              {"w", DType::kF32, {5, 7}},
                                              {"h", DType::kBf16, {9}},
                                              {"b \"q\"\n", DType::kU8, {2, 3, 1}},
                                              {"s", DType::kU8, {}}};
  auto writer = SafetensorsWriter::create(dir / "a.safetensors", decls, {{"key", "value \xc3\xa9"}});
  ASSERT_TRUE(writer);
  std::vector<Buffer> data;
  for (const auto& d : decls) {
    data.push_back(random_buffer(rng, *element_count(d.shape) * dtype_bytes(d.dtype)));
    const auto half = static_cast<size_t>(data.back().size() / 2);
    ASSERT_TRUE((*writer)->append(data.back().span().first(half)));
    ASSERT_TRUE((*writer)->append(data.back().span().subspan(half)));
  }
  ASSERT_TRUE((*writer)->finish());
  const auto f = SafetensorsFile::open(dir / "a.safetensors");
  ASSERT_TRUE(f) << f.error().message();
  EXPECT_EQ(f->metadata().at("key"), "value \xc3\xa9");
  EXPECT_EQ(f->tensors().front().offset % 64, 0u);
  for (size_t i = 0; i < decls.size(); ++i) {
    const auto* e = f->find(decls[i].name);
    ASSERT_NE(e, nullptr) << decls[i].name;
    EXPECT_EQ(e->shape, decls[i].shape);
    EXPECT_EQ(e->dtype, decls[i].dtype);
    EXPECT_EQ(e->offset % static_cast<uint64_t>(dtype_bytes(e->dtype)), 0u);
    EXPECT_TRUE(same_bytes(*f->bytes(*e), data[i]));
  }
  EXPECT_EQ(f->find("absent"), nullptr);
}

TEST(Safetensors, WriterRefusesMoreOrLessThanDeclared) {
  Scratch dir;
  auto writer = SafetensorsWriter::create(dir / "a", {{"w", DType::kU8, {4}}}, {});
  ASSERT_TRUE(writer);
  const std::byte five[5] = {};
  EXPECT_FALSE((*writer)->append(five));
  EXPECT_FALSE((*writer)->finish());
  EXPECT_FALSE(SafetensorsWriter::create(dir / "b", {{"w", DType::kU8, {4}}, {"w", DType::kU8, {4}}}, {}));
  EXPECT_FALSE(SafetensorsWriter::create(dir / "b", {{"__metadata__", DType::kU8, {4}}}, {}));
  EXPECT_EQ(SafetensorsWriter::create(dir / "no/such/place", {}, {}).error().code, ErrorCode::kIo);
}

TEST(Safetensors, EveryBrokenRuleIsAnError) {
  Scratch dir;
  const auto bad = [&](const std::string& header, size_t data) {
    return open_code(dir, safetensors_bytes(header, data));
  };
  const std::string a = entry("a", "F32", "[2]", 0, 8);
  EXPECT_EQ(bad("", 0), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(" {}", 0), ErrorCode::kCorrupt) << "must start with {";
  EXPECT_EQ(bad("[]", 0), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + a, 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + a + "}", 7), ErrorCode::kCorrupt) << "truncated";
  EXPECT_EQ(bad("{" + a + "}", 9), ErrorCode::kCorrupt) << "bytes after the last tensor";
  EXPECT_EQ(bad("{" + a + "," + a + "}", 8), ErrorCode::kCorrupt) << "a name twice";
  EXPECT_EQ(bad("{" + a + "," + entry("b", "F32", "[2]", 8, 16) + "," + entry("a", "F32", "[2]", 16, 24) + "}", 24),
            ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + entry("a", "F32", "[3]", 0, 8) + "}", 8), ErrorCode::kCorrupt) << "shape and bytes";
  EXPECT_EQ(bad("{" + a + "," + entry("b", "F32", "[2]", 4, 12) + "}", 12), ErrorCode::kCorrupt) << "overlap";
  EXPECT_EQ(bad("{" + a + "," + entry("b", "F32", "[2]", 12, 20) + "}", 20), ErrorCode::kCorrupt) << "hole";
  EXPECT_EQ(bad("{" + entry("a", "F32", "[2]", 8, 16) + "}", 16), ErrorCode::kCorrupt) << "hole at the start";
  EXPECT_EQ(bad("{" + entry("a", "F32", "[2]", 8, 0) + "}", 8), ErrorCode::kCorrupt) << "backwards";
  EXPECT_EQ(bad("{" + entry("a", "U8", "[0]", 0, 0) + "," + entry("b", "U8", "[0]", 0, 0) + "}", 0),
            ErrorCode::kCorrupt)
      << "two empty tensors in one place";
  EXPECT_EQ(bad("{" + entry("a", "F32", "[4294967296,4294967296]", 0, 0) + "}", 0), ErrorCode::kCorrupt)
      << "2^64 elements wrap to 0";
  EXPECT_EQ(bad("{" + entry("a", "F32", "[4611686018427387904]", 0, 0) + "}", 0), ErrorCode::kCorrupt)
      << "2^64 bytes wrap to 0";
  EXPECT_EQ(bad("{" + entry("a", "U8", "[18446744073709551615]", 0, 8) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + entry("a", "U8", "[-8]", 0, 8) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + entry("a", "U8", "[8.0]", 0, 8) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + entry("a", "U8", "[8]", 0, UINT64_MAX) + "}", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + entry("a", "F4", "[8]", 0, 4) + "}", 4), ErrorCode::kUnsupported);
  EXPECT_EQ(bad(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"a":{"dtype":"U8","shape":[8]}})", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", 8), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"a":[]})", 0), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"__metadata__":{"a":1}})", 0), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"__metadata__":{"a":"x","a":"y"}})", 0), ErrorCode::kCorrupt);
  EXPECT_EQ(bad(R"({"__metadata__":{},"__metadata__":{}})", 0), ErrorCode::kCorrupt);
  EXPECT_EQ(bad("{" + std::string(100000, '['), 0), ErrorCode::kUnsupported) << "depth";
  EXPECT_EQ(bad("{\"\xff\":1}", 0), ErrorCode::kCorrupt) << "not UTF-8";
  EXPECT_EQ(open_code(dir, raw<uint64_t>(100'000'001) + "{}"), ErrorCode::kCorrupt);
  EXPECT_EQ(open_code(dir, raw<uint64_t>(UINT64_MAX) + "{}"), ErrorCode::kCorrupt);
  EXPECT_EQ(open_code(dir, "1234567"), ErrorCode::kCorrupt);
  EXPECT_EQ(open_code(dir, ""), ErrorCode::kCorrupt);
  EXPECT_EQ(SafetensorsFile::open(dir / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::open(dir.path()).error().code, ErrorCode::kInvalidArgument);
}

TEST(Safetensors, UnalignedTensorsAreCopied) {
  Scratch dir;
  write_file(dir / "u",
             safetensors_bytes("{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "F32", "[1]", 1, 5) + "}", 5));
  const auto f = SafetensorsFile::open(dir / "u");
  ASSERT_TRUE(f) << f.error().message();
  const auto b = f->bytes(*f->find("b"));
  ASSERT_TRUE(b);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 4, 0u);
  EXPECT_EQ(b->data()[3], std::byte{0x11});
}

TEST(SafetensorsSet, ShardsAreOneAndBadIndexesAreErrors) {
  Scratch dir;
  EXPECT_EQ(SafetensorsSet::open(dir.path()).error().code, ErrorCode::kNotFound);
  write_file(dir / "one", safetensors_bytes("{" + entry("a", "U8", "[3]", 0, 3) + "}", 3));
  write_file(dir / "two", safetensors_bytes("{" + entry("b", "U8", "[4]", 0, 4) + "}", 4));
  const auto index = [&](const std::string& text) {
    write_file(dir / "model.safetensors.index.json", text);
    return SafetensorsSet::open(dir.path());
  };
  const auto good =
      index(R"({"metadata":{"total_size":7,"x":[1,{"weight_map":{}}]},"weight_map":{"b":"two","a":"one"}})");
  ASSERT_TRUE(good) << good.error().message();
  ASSERT_EQ(good->tensors().size(), 2u);
  EXPECT_EQ(good->bytes("b")->size(), 4);
  const auto missing = index(R"({"weight_map":{"a":"one","c":"two"}})");
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message().find("'c'"), std::string::npos);
  const auto shard = index(R"({"weight_map":{"a":"three"}})");
  EXPECT_EQ(shard.error().code, ErrorCode::kNotFound);
  EXPECT_NE(shard.error().message().find("'three'"), std::string::npos);
  for (const char* path : {"../one", "/etc/passwd", "..", "", "sub/one", "a\\\\b", "one\\u0000x"})
    EXPECT_EQ(index(std::string(R"({"weight_map":{"a":")") + path + "\"}}").error().code, ErrorCode::kCorrupt) << path;
  for (const char* text :
       {"{}", "[]", "", "7", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":{}}})",
        R"({"weight_map":{"a":"one","a":"one"}})", R"({"weight_map":{"a":"one"},"weight_map":{}})"})
    EXPECT_FALSE(index(text)) << text;
}

}  // namespace
}  // namespace lowbit
