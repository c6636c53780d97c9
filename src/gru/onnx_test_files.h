#pragma once
// Makes ONNX files for tests: a little of protocol buffers.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/gru.h"

namespace lowbit::testing_gru {

/// Rows of our order u, r, n in a source's order.
inline std::vector<float> reordered(const std::vector<float>& ours, std::array<size_t, 3> gate_at) {
  std::vector<float> out(ours.size());
  const size_t block = ours.size() / 3;
  for (size_t g = 0; g < 3; ++g)
    std::copy_n(ours.begin() + static_cast<std::ptrdiff_t>(g * block), block,
                out.begin() + static_cast<std::ptrdiff_t>(gate_at[g] * block));
  return out;
}
inline constexpr std::array<size_t, 3> kTorch = {1, 0, 2}, kOnnx = {0, 1, 2};

inline std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
  return out + static_cast<char>(v);
}
inline std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
inline std::string field(int number, uint64_t v) { return varint(static_cast<uint64_t>(number) << 3) + varint(v); }

inline std::string tensor_proto(const std::string& name, const std::vector<uint64_t>& dims,
                                const std::vector<float>& data, bool raw) {
  std::string out;
  for (const uint64_t d : dims) out += field(1, d);
  const std::string bytes(reinterpret_cast<const char*>(data.data()), 4 * data.size());
  return out + field(2, uint64_t{1}) + field(8, name) + field(raw ? 9 : 4, bytes);
}
inline std::string int64_proto(const std::string& name, const std::vector<int64_t>& data) {
  std::string out = field(1, data.size()) + field(2, uint64_t{7}) + field(8, name);
  return out + field(9, std::string(reinterpret_cast<const char*>(data.data()), 8 * data.size()));
}
inline std::string attribute(const std::string& name, uint64_t v) { return field(5, field(1, name) + field(3, v)); }
inline std::string attribute(const std::string& name, const std::string& v) {
  return field(5, field(1, name) + field(4, v));
}
inline std::string attribute(const std::string& name, const std::vector<uint64_t>& v) {
  std::string out = field(1, name);
  for (const uint64_t i : v) out += field(8, i);
  return field(5, out);
}
inline std::string node_proto(const std::string& type, const std::string& name, const std::vector<std::string>& inputs,
                              const std::vector<std::string>& outputs, const std::string& attributes = "") {
  std::string node;
  for (const std::string& input : inputs) node += field(1, input);
  for (const std::string& output : outputs) node += field(2, output);
  return field(1, node + field(3, name) + field(4, type) + attributes);
}

using TensorWriter =
    std::function<std::string(const std::string&, const std::vector<uint64_t>&, const std::vector<float>&)>;

struct OnnxOptions {
  uint64_t before_reset = 1, gates = 3;
  TensorWriter write = {};
  /// Nodes (and constants) from `from` to `to`, in place of those that give the axes the order of the next layer's
  /// input.
  std::function<std::string(int layer, const std::string& from, const std::string& to)> between = {};
  std::string last = "y";                // the value that the last layer's nodes end in
  std::string more = {};                 // nodes and constants of the graph
  std::vector<std::string> inputs = {};  // of every GRU node behind B: sequence_lens, initial_h
  std::string attributes = {};           // of every GRU node
  std::string first = "x0";              // what the first layer reads
};

/// The nodes that PyTorch's exporter adds behind a GRU: [T, D, N, H] to [T, N, D H].
inline std::string onnx_between(bool bidirectional, const std::string& from, const std::string& to) {
  if (!bidirectional)
    return node_proto("Squeeze", "squeeze", {from}, {to}, attribute("axes", std::vector<uint64_t>{1}));
  return node_proto("Transpose", "transpose", {from}, {from + "t"},
                    attribute("perm", std::vector<uint64_t>{0, 2, 1, 3})) +
         field(5, int64_proto(from + "s", {0, 0, -1})) +
         node_proto("Reshape", "reshape", {from + "t", from + "s"}, {to});
}

inline std::string onnx_bytes(const GruNetwork& net, const OnnxOptions& options = {}) {
  const auto tensor = [&](const std::string& name, const std::vector<uint64_t>& dims, const std::vector<float>& data,
                          bool raw) {
    return field(5, options.write ? options.write(name, dims, data) : tensor_proto(name, dims, data, raw));
  };
  std::string graph;
  const auto d = static_cast<uint64_t>(net.directions());
  for (int l = 0; l < net.layers(); ++l) {
    const std::string id = std::to_string(l);
    std::vector<float> w, r, b;
    uint64_t c = 0, h = 0;
    for (uint64_t at = 0; at < d; ++at) {
      const GruWeights& cell = net.cells[static_cast<size_t>(l) * d + at];
      c = static_cast<uint64_t>(cell.input);
      h = static_cast<uint64_t>(cell.hidden);
      for (const auto& [from, to] : {std::pair{&cell.w, &w}, {&cell.r, &r}, {&cell.bw, &b}, {&cell.br, &b}}) {
        const auto v = reordered(*from, kOnnx);
        to->insert(to->end(), v.begin(), v.end());
      }
    }
    graph += tensor("W" + id, {d, options.gates * h, c}, w, true);
    graph += tensor("R" + id, {d, options.gates * h, h}, r, false);
    graph += tensor("B" + id, {d, 2 * options.gates * h}, b, true);
    std::vector<std::string> inputs = {l == 0 ? options.first : "x" + id, "W" + id, "R" + id, "B" + id};
    inputs.insert(inputs.end(), options.inputs.begin(), options.inputs.end());
    std::string attributes = attribute("hidden_size", h) + attribute("linear_before_reset", options.before_reset);
    if (d == 2) attributes += attribute("direction", std::string("bidirectional"));
    graph += node_proto("GRU", "gru" + id, inputs, {"y" + id, "h" + id}, attributes + options.attributes);
    const std::string to = l + 1 == net.layers() ? options.last : "x" + std::to_string(l + 1);
    graph += options.between ? options.between(l, "y" + id, to) : onnx_between(d == 2, "y" + id, to);
  }
  return field(1, uint64_t{8}) + field(7, graph + options.more);
}

}  // namespace lowbit::testing_gru
