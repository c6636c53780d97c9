// FP8 checkpoints of other tools: what their scales mean, and which are refused by name.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/float.h"
#include "io/safetensors.h"
#include "io/test_files.h"
#include "model/source.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

struct Stored {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<uint8_t> bytes;
};

Stored codes(const std::string& name, Shape shape, DType dtype = DType::kE4m3) {
  const auto count = static_cast<size_t>(*element_count(shape));
  return {name, dtype, std::move(shape), std::vector<uint8_t>(count, 0x38)};  // ones
}
Stored scales(const std::string& name, Shape shape, DType dtype, const std::vector<float>& values) {
  Stored t{name, dtype, std::move(shape), {}};
  for (const float v : values) {
    const uint16_t half = dtype == DType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
    const auto* from =
        dtype == DType::kF32 ? reinterpret_cast<const uint8_t*>(&v) : reinterpret_cast<const uint8_t*>(&half);
    t.bytes.insert(t.bytes.end(), from, from + (dtype == DType::kF32 ? 4 : 2));
  }
  return t;
}

Result<std::unique_ptr<WeightSource>> open(const Scratch& dir, const std::string& quantization,
                                           const std::vector<Stored>& tensors) {
  write_file(dir / "config.json", R"({"model_type":"llama","quantization_config":)" + quantization + "}");
  std::vector<SafetensorsDecl> declared;
  for (const Stored& t : tensors) declared.push_back({t.name, t.dtype, t.shape});
  auto writer = SafetensorsWriter::create(dir / "model.safetensors", declared, {});
  EXPECT_TRUE(writer);
  for (const Stored& t : tensors) EXPECT_TRUE((*writer)->append(std::as_bytes(std::span(t.bytes))));
  EXPECT_TRUE((*writer)->finish());
  return open_source(dir.path());
}

std::vector<float> reals_of(const QTensor& w) {
  std::vector<float> out(static_cast<size_t>(w.n * w.k));
  dequantize_rows(w, 0, w.n, out.data());
  return out;
}

std::string group(const std::string& weights) {
  return R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"group_0":{"weights":{)" +
         weights + "}}}}";
}
const char* const kFp8 = R"({"quant_method":"fp8","activation_scheme":"static"})";
const std::string kOfRows = group(R"("num_bits":8,"type":"float","strategy":"channel")");

TEST(Fp8Source, ScalesAreForTheMatrixRowsOrBlocks) {
  struct Case {
    std::string quantization;
    Stored scale;
    Scaling scaling;
    std::vector<float> want;  // of [3, 5]
  };
  const std::string blocks = group(R"("num_bits":8,"type":"float","strategy":"block","block_structure":[2,4])");
  const std::vector<float> half(15, 0.5f), by_row = {1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4},
                                           by_block = {1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 4, 4, 4, 4, 8};
  const Case cases[] = {
      {kFp8, scales("a.weight_scale", {}, DType::kF32, {0.5f}), {0, 0, ScaleKind::kF32, ZeroKind::kNone}, half},
      {kFp8, scales("a.weight_scale", {1}, DType::kBf16, {0.5f}), {0, 0, ScaleKind::kBf16, ZeroKind::kNone}, half},
      {kOfRows,
       scales("a.weight_scale", {3, 1}, DType::kBf16, {1, 2, 4}),
       {1, 0, ScaleKind::kBf16, ZeroKind::kNone},
       by_row},
      {kOfRows,
       scales("a.weight_scale", {3}, DType::kF16, {1, 2, 4}),
       {1, 0, ScaleKind::kF16, ZeroKind::kNone},
       by_row},
      {blocks,
       scales("a.weight_scale", {2, 2}, DType::kF32, {1, 2, 4, 8}),
       {2, 4, ScaleKind::kF32, ZeroKind::kNone},
       by_block},
      {R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[2,4]})",
       scales("a.weight_scale_inv", {2, 2}, DType::kBf16, {1, 2, 4, 8}),
       {2, 4, ScaleKind::kBf16, ZeroKind::kNone},
       by_block}};
  for (const Case& c : cases) {
    Scratch dir;
    const auto s = open(dir, c.quantization, {c.scale, codes("a.weight", {3, 5})});
    ASSERT_TRUE(s) << s.error().message();
    ASSERT_EQ((*s)->tensors().size(), 1u) << c.quantization;
    EXPECT_TRUE((*s)->lossless("a.weight"));
    EXPECT_FALSE((*s)->has(c.scale.name));
    const auto w = (*s)->load("a.weight");
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_EQ(w->scaling, c.scaling) << c.quantization;
    EXPECT_EQ(reals_of(*w), c.want) << c.quantization;
  }
}

TEST(Fp8Source, ScalesOfInputsAreNotTensorsOfTheModel) {
  Scratch dir;
  const auto s = open(dir, kFp8,
                      {scales("a.weight_scale", {}, DType::kF32, {1}), scales("a.input_scale", {}, DType::kF32, {3}),
                       scales("b.input_scale", {1}, DType::kF32, {3}), codes("a.weight", {2, 2})});
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_FALSE((*s)->has("a.input_scale"));
  EXPECT_TRUE((*s)->has("b.input_scale"));  // of no fp8 weight: whatever it is
  EXPECT_EQ((*s)->tensors().size(), 2u);
}

TEST(Fp8Source, E5M2AndOtherPackingsAreRefusedByName) {
  Scratch dir;
  const auto message_of = [&](const std::string& quantization, const std::vector<Stored>& tensors) {
    const auto s = open(dir, quantization, tensors);
    if (!s) return s.error().message();
    const auto w = (*s)->load("a.weight");
    return w ? std::string() : w.error().message();
  };
  const auto one = scales("a.weight_scale", {1}, DType::kF32, {1});
  const std::vector<Stored> good = {one, codes("a.weight", {3, 5})};
  EXPECT_EQ(message_of(kOfRows, good), "");
  EXPECT_NE(message_of(kFp8, {one, codes("a.weight", {3, 5}, DType::kE5m2)}).find("F8_E5M2"), std::string::npos);
  for (const auto& [quantization, word] : std::vector<std::pair<std::string, std::string>>{
           {R"({"quant_method":"fp8","fmt":"e5m2"})", "'e5m2'"},
           {R"({"quant_method":"fp8","weight_block_size":[0,4]})", "weight_block_size"},
           {R"({"quant_method":"fp8","weight_block_size":[128]})", "weight_block_size"},
           {R"({"quant_method":"awq"})", "'awq'"},
           {group(R"("num_bits":4,"type":"int")"), "int of 4 bits"},
           {group(R"("num_bits":8,"type":"float","symmetric":false)"), "zero points"},
           {group(R"("num_bits":8,"type":"float","strategy":"group")"), "'group'"},
           {R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{}}})", "weights"}})
    EXPECT_NE(message_of(quantization, good).find(word), std::string::npos) << message_of(quantization, good);
  EXPECT_NE(message_of(kFp8, {codes("a.weight", {3, 5})}).find("a.weight_scale"), std::string::npos);
  EXPECT_NE(message_of(kFp8, {scales("a.weight_scale", {5}, DType::kF32, {1, 1, 1, 1, 1}), codes("a.weight", {3, 5})})
                .find("[3, 1]"),
            std::string::npos);
  EXPECT_NE(message_of(kFp8, {Stored{"a.weight_scale", DType::kI32, {1}, {0, 0, 0, 1}}, codes("a.weight", {3, 5})})
                .find("I32"),
            std::string::npos);
}

}  // namespace
}  // namespace lowbit
