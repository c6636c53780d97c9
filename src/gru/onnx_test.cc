// Nodes around the GRU nodes of an ONNX file: refused where it changes the result, else named.
#include <gtest/gtest.h>

#include "gru/onnx_test_files.h"
#include "gru/test_networks.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT
using namespace testing_io;   // NOLINT

class Onnx : public testing::Test {
 protected:
  Result<GruNetwork> load(const OnnxOptions& options = {}, const std::string& select = "") {
    write_file(dir_ / "net.onnx", onnx_bytes(net_, options));
    return load_gru(dir_ / "net.onnx", {select});
  }
  /// The error's message, or "read".
  std::string said(const OnnxOptions& options, const std::string& select = "") {
    const auto network = load(options, select);
    if (network) return "read";
    EXPECT_EQ(network.error().code, ErrorCode::kUnsupported);
    return network.error().message();
  }
  static OnnxOptions between(std::function<std::string(const std::string&, const std::string&)> nodes) {
    OnnxOptions options;
    options.between = [nodes](int layer, const std::string& from, const std::string& to) {
      return layer == 0 ? nodes(from, to) : onnx_between(false, from, to);
    };
    return options;
  }
  Scratch dir_;
  Rng rng_{1};
  GruNetwork net_ = random_network(rng_, 2, false, 3, 4);
};

using Ints = std::vector<uint64_t>;

TEST_F(Onnx, WhatComputesBetweenTwoGrusIsRefusedByName) {
  const auto message = said(between([](const std::string& from, const std::string& to) {
    return node_proto("Squeeze", "s", {from}, {"a"}, attribute("axes", Ints{1})) +
           node_proto("MatMul", "middle", {"a", "weight"}, {"b"}) + node_proto("Relu", "relu", {"b"}, {to}) +
           field(5, tensor_proto("weight", {4, 4}, std::vector<float>(16, 1), true));
  }));
  EXPECT_NE(message.find("Relu 'relu'"), std::string::npos) << message;
  EXPECT_NE(message.find("GRU 'gru0'"), std::string::npos) << message;
  EXPECT_NE(message.find("--select"), std::string::npos) << message;
  for (const char* type : {"Add", "LayerNormalization", "Tanh", "Slice", "Flatten", "Quantize"})
    EXPECT_NE(said(between([&](const std::string& from, const std::string& to) {
                return node_proto("Squeeze", "s", {from}, {"a"}, attribute("axes", Ints{1})) +
                       node_proto(type, "node", {"a", "other"}, {to});
              })).find(type),
              std::string::npos)
        << type;
}

TEST_F(Onnx, GrusThatDoNotReadEachOtherAreRefused) {
  // Side by side on one input; the second on the other's last state; on an input of its own.
  EXPECT_NE(said(between([](const std::string&, const std::string& to) {
              return node_proto("Identity", "same", {"x0"}, {to});
            })).find("an input of its own"),
            std::string::npos);
  EXPECT_NE(said(between([](const std::string&, const std::string& to) {
              return node_proto("Identity", "same", {"h0"}, {to});
            })).find("the last state"),
            std::string::npos);
}

TEST_F(Onnx, NodesThatOnlyChangeShapesMayStandBetween) {
  const auto squeeze = [](const std::string& from, const std::string& to) {
    return node_proto("Squeeze", "s", {from}, {to}, attribute("axes", Ints{1}));
  };
  const auto perm = [](const Ints& order) { return attribute("perm", order); };
  const std::vector<std::function<std::string(const std::string&, const std::string&)>> good = {
      squeeze,
      [&](const auto& from, const auto& to) {  // by an input, counted from the end
        return field(5, int64_proto("axes", {-3})) + node_proto("Squeeze", "s", {from, "axes"}, {to});
      },
      [&](const auto& from, const auto& to) { return node_proto("Squeeze", "s", {from}, {to}); },
      [&](const auto& from, const auto& to) {  // to batch first and back
        return squeeze(from, "a") + node_proto("Transpose", "t", {"a"}, {"b"}, perm({1, 0, 2})) +
               node_proto("Transpose", "t2", {"b"}, {to}, perm({1, 0, 2}));
      },
      [&](const auto& from, const auto& to) {
        return field(5, int64_proto("shape", {0, -1, 4})) + node_proto("Reshape", "r", {from, "shape"}, {to});
      },
      [&](const auto& from, const auto& to) {
        return squeeze(from, "a") + node_proto("Identity", "i", {"a"}, {"b"}) +
               node_proto("Dropout", "d", {"b"}, {"c"}) +
               node_proto("Cast", "c", {"c"}, {"e"}, attribute("to", uint64_t{1})) +
               node_proto("Unsqueeze", "u", {"e"}, {"f"}, attribute("axes", Ints{0})) +
               node_proto("Squeeze", "s2", {"f"}, {to}, attribute("axes", Ints{0}));
      }};
  for (size_t i = 0; i < good.size(); ++i) EXPECT_EQ(said(between(good[i])), "read") << i;
  const std::vector<std::function<std::string(const std::string&, const std::string&)>> bad = {
      [&](const auto& from, const auto& to) {  // steps and sequences change places
        return squeeze(from, "a") + node_proto("Transpose", "t", {"a"}, {to}, perm({1, 0, 2}));
      },
      [&](const auto& from, const auto& to) {
        return squeeze(from, "a") + node_proto("Transpose", "t", {"a"}, {to}, perm({0, 2, 1}));
      },
      [&](const auto& from, const auto& to) { return node_proto("Transpose", "t", {from}, {to}); },
      [&](const auto& from, const auto& to) {
        return node_proto("Squeeze", "s", {from}, {to}, attribute("axes", Ints{0}));
      },
      [&](const auto& from, const auto& to) {
        return field(5, int64_proto("shape", {-1, 4})) + node_proto("Reshape", "r", {from, "shape"}, {to});
      },
      [&](const auto& from, const auto& to) {
        return squeeze(from, "a") + node_proto("Cast", "c", {"a"}, {to}, attribute("to", uint64_t{7}));
      }};
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_NE(said(between(bad[i])), "read") << i;
}

TEST_F(Onnx, BothDirectionsMustLieSideBySide) {
  net_ = random_network(rng_, 2, true, 3, 4);
  EXPECT_EQ(said({}), "read");
  // Without the transpose, the reshape mixes directions and sequences.
  const auto message = said(between([](const std::string& from, const std::string& to) {
    return field(5, int64_proto("shape", {0, 0, -1})) + node_proto("Reshape", "r", {from, "shape"}, {to});
  }));
  EXPECT_NE(message.find("Reshape 'r'"), std::string::npos) << message;
}

TEST_F(Onnx, StatesAndLengthsInTheModelAreNotIgnored) {
  const auto state = [](const std::string& constant) { return OnnxOptions{.more = constant, .inputs = {"", "state"}}; };
  EXPECT_NE(said(state(field(5, tensor_proto("state", {1, 1, 4}, {0, 0, 0.5f, 0}, true)))).find("initial_h"),
            std::string::npos);
  EXPECT_NE(said(state(field(5, tensor_proto("state", {1, 1, 4}, {0, 0, 0.5f, 0}, false)))).find("initial_h"),
            std::string::npos);
  EXPECT_EQ(said(state(field(5, tensor_proto("state", {1, 1, 4}, {0, 0, 0, 0}, true)))), "read");
  EXPECT_EQ(said(state("")), "read") << "an input of the model";
  EXPECT_EQ(said(state(node_proto("Slice", "s", {"states"}, {"state"}))), "read") << "a part of one";
  EXPECT_EQ(said(state(node_proto("Shape", "sh", {"x0"}, {"shape"}) +
                       node_proto("ConstantOfShape", "zeros", {"shape"}, {"state"}))),
            "read");
  const std::string one = field(5, field(1, "value") + field(5, tensor_proto("", {1}, {1}, true)));
  EXPECT_NE(said(state(node_proto("ConstantOfShape", "ones", {"shape"}, {"state"}, one))).find("initial_h"),
            std::string::npos);
  EXPECT_NE(said(state(node_proto("Gemm", "start", {"context"}, {"state"}))).find("Gemm 'start'"), std::string::npos);
  const auto lengths = [](const std::string& constant) { return OnnxOptions{.more = constant, .inputs = {"lengths"}}; };
  EXPECT_NE(said(lengths(field(5, int64_proto("lengths", {3})))).find("sequence_lens"), std::string::npos);
  EXPECT_EQ(said(lengths("")), "read");
}

TEST_F(Onnx, WhatIsLeftOutIsNamed) {
  OnnxOptions options;
  options.last = "z";
  options.first = "features";
  options.more = node_proto("Gemm", "embed", {"x", "e"}, {"features"}) +
                 node_proto("Gemm", "head", {"z", "g"}, {"logits"}) + node_proto("Softmax", "p", {"logits"}, {"out"}) +
                 node_proto("Shape", "s", {"z"}, {"sizes"}) + node_proto("Gather", "size", {"sizes", "i"}, {"n"});
  const auto network = load(options);
  ASSERT_TRUE(network) << network.error().message();
  EXPECT_EQ(network->left_out, (std::vector<std::string>{"Gemm 'embed'", "Gemm 'head'", "Softmax 'p'"}));
  // One node alone: the other is left out with the rest, and its own state may be computed.
  const auto second = load(options, "gru1");
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(second->layers(), 1);
  EXPECT_NE(std::ranges::find(second->left_out, "GRU 'gru0'"), second->left_out.end());
  const auto plain = load();
  ASSERT_TRUE(plain);
  EXPECT_TRUE(plain->left_out.empty());
}

TEST_F(Onnx, LayoutOneIsBatchFirst) {
  const auto squeeze = [](const std::string& from, const std::string& to) {
    return node_proto("Squeeze", "s", {from}, {to}, attribute("axes", Ints{2}));
  };
  OnnxOptions options;
  options.between = [&](int, const std::string& from, const std::string& to) { return squeeze(from, to); };
  options.attributes = attribute("layout", uint64_t{1});
  const auto network = load(options);
  ASSERT_TRUE(network) << network.error().message();
  EXPECT_TRUE(network->batch_first);
  EXPECT_FALSE(load()->batch_first);
  options.attributes = attribute("layout", uint64_t{2});
  EXPECT_NE(said(options).find("layout 2"), std::string::npos);
  // The integer network remembers it, in its file too.
  const auto x = normals(rng_, 2 * 5 * 3, 1);
  GruInput in;
  in.steps = 5;
  in.batch = 2;
  in.batch_first = true;
  in.x = x;
  const auto ranges = GruRanges::measure(*network, std::span(&in, 1));
  ASSERT_TRUE(ranges);
  const auto model = GruModel::quantize(*network, *ranges, *gru_preset("seed8"));
  ASSERT_TRUE(model && model->save(dir_ / "a.lbgru"));
  EXPECT_TRUE(model->batch_first() && model->dequantized().batch_first);
  const auto opened = GruModel::open(dir_ / "a.lbgru");
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_TRUE(opened->batch_first());
}

TEST_F(Onnx, NodesThatShareWeightsTakeNoMoreThanTheFileAndALimit) {
  constexpr uint64_t kHidden = 96;  // 3 H (C + H) floats: 216 KiB a node
  std::string graph;
  const std::vector<float> weights(3 * kHidden * kHidden, 0.01f);
  graph += field(5, tensor_proto("W", {1, 3 * kHidden, kHidden}, weights, true));
  for (int i = 0; i < 400; ++i) {
    const std::string id = std::to_string(i), next = std::to_string(i + 1);
    graph += node_proto("GRU", "gru" + id, {"x" + id, "W", "W"}, {"y" + id}, attribute("linear_before_reset", 1)) +
             onnx_between(false, "y" + id, "x" + next);
  }
  write_file(dir_ / "shared.onnx", field(1, uint64_t{8}) + field(7, graph));
  const auto shared = load_gru(dir_ / "shared.onnx");
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(shared.error().message().find("64 MiB"), std::string::npos) << shared.error().message();
  EXPECT_TRUE(load_gru(dir_ / "shared.onnx", {"gru7"})) << "one of them";
}

TEST_F(Onnx, LoopsAndMultitudesEnd) {
  // Values that make each other, and a value that many make and many read.
  EXPECT_NE(said(between([](const std::string&, const std::string& to) {
              return node_proto("Identity", "a", {"q"}, {to}) + node_proto("Identity", "b", {to}, {"q"});
            })),
            "read");
  OnnxOptions options;
  options.last = "many";
  for (int i = 0; i < 2000; ++i) {
    const std::string id = std::to_string(i);
    options.more += node_proto("Relu", id, {"many", "many"}, {"many", "many"});
  }
  const auto network = load(options);
  ASSERT_TRUE(network);
  EXPECT_EQ(network->left_out.size(), 16u);
  EXPECT_EQ(network->left_out.back(), "others");
}

}  // namespace
}  // namespace lowbit
