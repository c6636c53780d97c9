// Networks of other projects: every convention of names and orders, and what is refused by name.
#include <cstring>
#include <functional>

#include "base/float.h"
#include "gru/onnx_test_files.h"
#include "gru/test_networks.h"
#include "io/safetensors.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT
using namespace testing_io;   // NOLINT

// ---- Float networks -------------------------------------------------------------------------------------------------

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<SafetensorsDecl, std::vector<float>>>& all) {
  std::vector<SafetensorsDecl> decls;
  for (const auto& [decl, data] : all) decls.push_back(decl);
  auto writer = SafetensorsWriter::create(path, decls, {});
  ASSERT_TRUE(writer);
  for (const auto& [decl, data] : all) ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(data))));
  ASSERT_TRUE((*writer)->finish());
}

void expect_same(const GruNetwork& a, const Result<GruNetwork>& b) {
  ASSERT_TRUE(b) << b.error().message();
  ASSERT_EQ(a.cells.size(), b->cells.size());
  EXPECT_EQ(a.bidirectional, b->bidirectional);
  for (size_t i = 0; i < a.cells.size(); ++i) {
    EXPECT_EQ(a.cells[i].w, b->cells[i].w) << i;
    EXPECT_EQ(a.cells[i].r, b->cells[i].r) << i;
    EXPECT_EQ(a.cells[i].bw, b->cells[i].bw) << i;
    EXPECT_EQ(a.cells[i].br, b->cells[i].br) << i;
  }
}

std::string torch_file(const Scratch& dir, const GruNetwork& net) {
  std::vector<std::pair<SafetensorsDecl, std::vector<float>>> all;
  for (int l = 0; l < net.layers(); ++l)
    for (int d = 0; d < net.directions(); ++d) {
      const GruWeights& c = net.cells[static_cast<size_t>(l * net.directions() + d)];
      const std::string tail = "_l" + std::to_string(l) + (d == 1 ? "_reverse" : "");
      const int64_t rows = 3 * c.hidden;
      all.push_back({{"rnn.weight_ih" + tail, DType::kF32, {rows, c.input}}, reordered(c.w, kTorch)});
      all.push_back({{"rnn.weight_hh" + tail, DType::kF32, {rows, c.hidden}}, reordered(c.r, kTorch)});
      all.push_back({{"rnn.bias_ih" + tail, DType::kF32, {rows}}, reordered(c.bw, kTorch)});
      all.push_back({{"rnn.bias_hh" + tail, DType::kF32, {rows}}, reordered(c.br, kTorch)});
    }
  const std::string path = dir / "torch.safetensors";
  write_safetensors(path, all);
  return path;
}

TEST(GruLoad, EveryConventionGivesTheSameNetwork) {
  Scratch dir;
  Rng rng(1);
  for (const bool bidirectional : {false, true}) {
    const GruNetwork net = random_network(rng, 2, bidirectional, 5, 4);
    expect_same(net, load_gru(torch_file(dir, net)));
    expect_same(net, load_gru(torch_file(dir, net), {"rnn."}));
    write_file(dir / "net.onnx", onnx_bytes(net));
    expect_same(net, load_gru(dir / "net.onnx"));
  }
}

TEST(GruLoad, KerasAndHaste) {
  Scratch dir;
  Rng rng(2);
  const GruNetwork net = random_network(rng, 1, false, 3, 2);
  const GruWeights& c = net.cells[0];
  const auto transposed = [](const std::vector<float>& m, size_t rows) {
    std::vector<float> out(m.size());
    const size_t k = m.size() / rows;
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < k; ++j) out[j * rows + i] = m[i * k + j];
    return out;
  };
  std::vector<float> both = c.bw;
  both.insert(both.end(), c.br.begin(), c.br.end());
  const SafetensorsDecl w{"kernel", DType::kF32, {3, 6}}, r{"recurrent_kernel", DType::kF32, {2, 6}};
  write_safetensors(dir / "keras.safetensors",
                    {{w, transposed(c.w, 6)}, {r, transposed(c.r, 6)}, {{"bias", DType::kF32, {2, 6}}, both}});
  expect_same(net, load_gru(dir / "keras.safetensors"));
  write_safetensors(dir / "haste.safetensors", {{w, transposed(c.w, 6)},
                                                {r, transposed(c.r, 6)},
                                                {{"bias", DType::kF32, {6}}, c.bw},
                                                {{"recurrent_bias", DType::kF32, {6}}, c.br}});
  expect_same(net, load_gru(dir / "haste.safetensors"));
  write_safetensors(dir / "before.safetensors",
                    {{w, transposed(c.w, 6)}, {r, transposed(c.r, 6)}, {{"bias", DType::kF32, {6}}, c.bw}});
  const auto before = load_gru(dir / "before.safetensors");
  ASSERT_FALSE(before);
  EXPECT_EQ(before.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(before.error().message().find("reset_after"), std::string::npos);
}

TEST(GruLoad, NamesWhatItDoesNotRun) {
  Scratch dir;
  Rng rng(3);
  const GruNetwork net = random_network(rng, 1, false, 3, 4);
  write_file(dir / "before.onnx", onnx_bytes(net, {.before_reset = 0}));
  const auto before = load_gru(dir / "before.onnx");
  ASSERT_FALSE(before);
  EXPECT_EQ(before.error().code, ErrorCode::kUnsupported);
  GruNetwork lstm = net;  // four gates
  lstm.cells[0].w.resize(4 * 4 * 3);
  lstm.cells[0].r.resize(4 * 4 * 4);
  lstm.cells[0].bw.resize(16);
  lstm.cells[0].br.resize(16);
  std::vector<std::pair<SafetensorsDecl, std::vector<float>>> all = {
      {{"weight_ih_l0", DType::kF32, {16, 3}}, lstm.cells[0].w},
      {{"weight_hh_l0", DType::kF32, {16, 4}}, lstm.cells[0].r}};
  write_safetensors(dir / "lstm.safetensors", all);
  const auto gates = load_gru(dir / "lstm.safetensors");
  ASSERT_FALSE(gates);
  EXPECT_EQ(gates.error().code, ErrorCode::kShapeMismatch);
  EXPECT_NE(gates.error().message().find("3 gates of 4"), std::string::npos) << gates.error().message();
  GruNetwork nan = net;
  nan.cells[0].w[2] = NAN;
  write_file(dir / "nan.onnx", onnx_bytes(nan));
  const auto bad = load_gru(dir / "nan.onnx");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
}

/// Everything that a TensorProto may hold its numbers in.
TEST(GruLoad, OnnxTensorsOfEveryKind) {
  Scratch dir;
  Rng rng(4);
  GruNetwork net = random_network(rng, 1, false, 3, 4);
  for (GruWeights& c : net.cells)
    for (auto* part : {&c.w, &c.r, &c.bw, &c.br})
      for (float& v : *part) v = f16_to_f32(f32_to_f16(v));  // so that every type holds it
  struct Kind {
    std::string name;
    uint64_t type;
    std::function<std::string(float)> bytes;  // of one number in raw_data
    std::string problem;                      // "": it is read
  };
  const auto raw = [](auto v) { return std::string(reinterpret_cast<const char*>(&v), sizeof v); };
  for (const Kind& kind : {Kind{"float", 1, [&](float v) { return raw(v); }, ""},
                           Kind{"float16", 10, [&](float v) { return raw(f32_to_f16(v)); }, ""},
                           Kind{"double", 11, [&](float v) { return raw(double(v)); }, ""},
                           Kind{"int64", 7, [&](float v) { return raw(int64_t(v)); }, "element type 7"},
                           Kind{"too few", 11, [&](float v) { return raw(v); }, "bytes, wanted as many as"},
                           Kind{"external", 1, [&](float v) { return raw(v); }, "weights in another file"}}) {
    write_file(dir / "net.onnx", onnx_bytes(net, {.write = [&](const auto& name, const auto& dims, const auto& data) {
                                              std::string packed, bytes;  // dimensions as one packed field
                                              for (const uint64_t d : dims) packed += varint(d);
                                              for (const float v : data) bytes += kind.bytes(v);
                                              return field(1, packed) + field(2, kind.type) + field(8, name) +
                                                     field(9, bytes) +
                                                     (kind.name == "external" ? field(14, uint64_t{1}) : "");
                                            }}));
    const auto read = load_gru(dir / "net.onnx");
    if (kind.problem.empty()) {
      expect_same(net, read);
    } else {
      ASSERT_FALSE(read) << kind.name;
      EXPECT_NE(read.error().message().find(kind.problem), std::string::npos) << read.error().message();
    }
  }
  write_file(dir / "single.onnx", onnx_bytes(net, {.write = [&](const auto& name, const auto& dims, const auto& data) {
                                               std::string out = field(2, uint64_t{1}) + field(8, name);
                                               for (const uint64_t d : dims) out += field(1, d);
                                               for (const float v : data)
                                                 out += varint(4 << 3 | 5) + raw(v);  // float_data, not packed
                                               return out;
                                             }}));
  expect_same(net, load_gru(dir / "single.onnx"));
  for (const std::string& packed :
       {std::string(9, '\1'), std::string(1, '\x80')}) {  // too many, and one that does not end
    write_file(dir / "dims.onnx", onnx_bytes(net, {.write = [&](const auto& name, const auto&, const auto&) {
                                               return field(1, packed) + field(2, uint64_t{1}) + field(8, name) +
                                                      field(9, std::string(4, '\0'));
                                             }}));
    const auto read = load_gru(dir / "dims.onnx");
    ASSERT_FALSE(read);
    EXPECT_NE(read.error().message().find("a broken shape"), std::string::npos) << read.error().message();
  }
}

}  // namespace
}  // namespace lowbit
