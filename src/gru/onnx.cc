// GRU nodes out of an ONNX file: just the parts of the schema that they need.

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/checked.h"
#include "base/try.h"
#include "gru/gate_order.h"
#include "gru/protobuf.h"
#include "io/mapped_file.h"

namespace lowbit {
namespace {

constexpr size_t kMaxNodes = 1 << 20;

struct Attribute {
  int64_t integer = 0;
  bool has_integer = false;
  float number = 0;
  std::string text;
  std::vector<std::string> texts;
  std::span<const std::byte> tensor;
};

struct Node {
  std::string name, type, domain;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, Attribute> attributes;
};

struct Graph {
  std::vector<Node> nodes;
  std::map<std::string, std::span<const std::byte>> tensors;  // initializers and constants: TensorProto
};

tl::unexpected<Error> corrupt(const std::string& path, const char* what) {
  return fail(ErrorCode::kCorrupt, path, std::string("a broken ") + what, "an ONNX file", "the file may be truncated");
}

bool read_attribute(std::span<const std::byte> bytes, Node& node) {
  ProtoReader reader(bytes);
  Attribute a;
  std::string name;
  while (const auto f = reader.next()) {
    if (f->number == 1 && f->wire == 2) name = f->text();
    if (f->number == 2 && f->wire == 5) a.number = __builtin_bit_cast(float, static_cast<uint32_t>(f->value));
    if (f->number == 3 && f->wire == 0) {
      a.integer = static_cast<int64_t>(f->value);
      a.has_integer = true;
    }
    if (f->number == 4 && f->wire == 2) a.text = f->text();
    if (f->number == 5 && f->wire == 2) a.tensor = f->bytes;
    if (f->number == 9 && f->wire == 2) a.texts.emplace_back(f->text());
  }
  node.attributes[name] = std::move(a);
  return reader.ok();
}

bool read_node(std::span<const std::byte> bytes, Node& node) {
  ProtoReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->wire != 2) continue;
    if (f->number == 1) node.inputs.emplace_back(f->text());
    if (f->number == 2) node.outputs.emplace_back(f->text());
    if (f->number == 3) node.name = f->text();
    if (f->number == 4) node.type = f->text();
    if (f->number == 7) node.domain = f->text();
    if (f->number == 5 && !read_attribute(f->bytes, node)) return false;
  }
  return reader.ok();
}

Result<Graph> read_graph(std::span<const std::byte> bytes, const std::string& path) {
  Graph graph;
  ProtoReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->wire != 2) continue;
    if (f->number == 1) {
      Node node;
      if (!read_node(f->bytes, node)) return corrupt(path, "node");
      if (graph.nodes.size() == kMaxNodes) return corrupt(path, "graph");
      const auto value = node.attributes.find("value");
      if (node.type == "Constant" && node.outputs.size() == 1 && value != node.attributes.end() &&
          value->second.tensor.data() != nullptr)
        graph.tensors[node.outputs[0]] = value->second.tensor;
      if (node.type == "GRU") graph.nodes.push_back(std::move(node));
    } else if (f->number == 5) {
      ProtoReader tensor(f->bytes);
      std::string name;
      while (const auto part = tensor.next())
        if (part->number == 8 && part->wire == 2) name = part->text();
      if (!tensor.ok()) return corrupt(path, "initializer");
      graph.tensors[name] = f->bytes;
    }
  }
  if (!reader.ok()) return corrupt(path, "graph");
  return graph;
}

std::optional<DType> dtype_of(uint64_t onnx) {
  switch (onnx) {
    case 1:
      return DType::kF32;
    case 10:
      return DType::kF16;
    case 11:
      return DType::kF64;
    case 16:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

/// What of a TensorProto is read.
struct TensorFields {
  std::vector<int64_t> shape;
  uint64_t type = 0;
  std::vector<float> floats;                      // float_data
  std::optional<std::span<const std::byte>> raw;  // raw_data
  bool external = false;
};

bool add_dim(uint64_t extent, std::vector<int64_t>& shape) {
  shape.push_back(static_cast<int64_t>(std::min<uint64_t>(extent, uint64_t{1} << 40)));
  return shape.size() <= 8;
}

/// One extent, or packed ones. False: broken, or too many.
bool add_dims(const ProtoField& f, std::vector<int64_t>& shape) {
  if (f.wire == 0) return add_dim(f.value, shape);
  if (f.wire != 2) return true;
  ProtoReader packed(f.bytes);
  while (!packed.at_end()) {
    const auto extent = packed.varint();
    if (!extent || !add_dim(*extent, shape)) return false;
  }
  return true;
}

/// One number, or packed ones. False: broken.
bool add_floats(const ProtoField& f, std::vector<float>& floats) {
  if (f.wire == 5) floats.push_back(__builtin_bit_cast(float, static_cast<uint32_t>(f.value)));
  if (f.wire != 2) return true;
  if (f.bytes.size() % sizeof(float) != 0) return false;
  const size_t had = floats.size();
  floats.resize(had + f.bytes.size() / sizeof(float));
  if (!f.bytes.empty()) __builtin_memcpy(floats.data() + had, f.bytes.data(), f.bytes.size());
  return true;
}

Result<TensorFields> read_tensor_fields(std::span<const std::byte> bytes, const std::string& path) {
  TensorFields t;
  ProtoReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->number == 1 && !add_dims(*f, t.shape)) return corrupt(path, "shape");
    if (f->number == 2 && f->wire == 0) t.type = f->value;
    if (f->number == 4 && !add_floats(*f, t.floats)) return corrupt(path, "float_data");
    if (f->number == 9 && f->wire == 2) t.raw = f->bytes;
    if (f->number == 14 && f->value == 1) t.external = true;
  }
  if (!reader.ok()) return corrupt(path, "tensor");
  return t;
}

/// A TensorProto's numbers.
Result<GruArrayView> read_tensor(std::span<const std::byte> bytes, const std::string& name, const std::string& path) {
  const std::string where = path + ": '" + name.substr(0, 128) + "'";
  LOWBIT_TRY_ASSIGN(const TensorFields t, read_tensor_fields(bytes, path));
  if (t.external)
    return fail(ErrorCode::kUnsupported, where, "weights in another file", "weights inside the model",
                "save with onnx.save(model, path, save_as_external_data=False)");
  const auto dtype = dtype_of(t.type);
  if (!dtype)
    return fail(ErrorCode::kUnsupported, where, "element type " + std::to_string(t.type),
                "float, double, float16 or bfloat16");
  GruArrayView out;
  out.name = name;
  out.view.shape = t.shape;
  out.view.dtype = t.raw ? *dtype : DType::kF32;
  LOWBIT_TRY_ASSIGN(const int64_t count, element_count(out.view.shape));
  const std::span<const std::byte> data = t.raw ? *t.raw : std::as_bytes(std::span(t.floats));
  const auto size = checked_mul(static_cast<uint64_t>(count), static_cast<uint64_t>(dtype_bytes(out.view.dtype)));
  if (!size || *size != data.size())
    return fail(ErrorCode::kCorrupt, where, std::to_string(data.size()) + " bytes",
                "as many as " + shape_string(out.view.shape) + " has");
  LOWBIT_TRY_ASSIGN(out.owner, Buffer::allocate(static_cast<int64_t>(data.size()), "onnx weights"));
  if (!data.empty()) __builtin_memcpy(out.owner.data(), data.data(), data.size());
  out.view.data = out.owner.span();
  return out;
}

int64_t integer_of(const Node& node, const char* name, int64_t otherwise) {
  const auto a = node.attributes.find(name);
  return a != node.attributes.end() && a->second.has_integer ? a->second.integer : otherwise;
}

Status check_node(const Node& node, const std::string& where) {
  if (integer_of(node, "linear_before_reset", 0) != 1)
    return fail(ErrorCode::kUnsupported, where, "linear_before_reset = 0 (the reset gate acts before the product)",
                "linear_before_reset = 1",
                "train with reset_after=True (Keras) or export from PyTorch, whose GRU is of the supported kind");
  if (node.attributes.contains("clip")) return fail(ErrorCode::kUnsupported, where, "a clip attribute", "none");
  if (const auto a = node.attributes.find("activations"); a != node.attributes.end())
    for (size_t i = 0; i < a->second.texts.size(); ++i)
      if (a->second.texts[i] != (i % 2 == 0 ? "Sigmoid" : "Tanh"))
        return fail(ErrorCode::kUnsupported, where, "the activation '" + a->second.texts[i].substr(0, 32) + "'",
                    "Sigmoid and Tanh");
  return {};
}

Result<std::vector<GruWeights>> read_gru_node(const Node& node, const Graph& graph, const std::string& path) {
  const std::string where = path + ": GRU '" + node.name.substr(0, 128) + "'";
  LOWBIT_TRY(check_node(node, where));
  std::optional<GruArrayView> arrays[3];
  for (size_t i = 1; i <= 3; ++i) {
    if (i == 3 && (node.inputs.size() <= 3 || node.inputs[3].empty())) continue;
    const auto found = i < node.inputs.size() ? graph.tensors.find(node.inputs[i]) : graph.tensors.end();
    if (found == graph.tensors.end())
      return fail(ErrorCode::kNotFound, where, "no constant for input " + std::to_string(i) + " (W, R, B)",
                  "weights stored in the model");
    LOWBIT_TRY_ASSIGN(arrays[i - 1], read_tensor(found->second, node.inputs[i], path));
  }
  const auto direction = node.attributes.find("direction");
  const std::string way = direction == node.attributes.end() ? "forward" : direction->second.text;
  if (way != "forward" && way != "bidirectional")
    return fail(ErrorCode::kUnsupported, where, "direction '" + way.substr(0, 32) + "'", "forward or bidirectional");
  const int directions = way == "bidirectional" ? 2 : 1;
  std::vector<GruWeights> cells;
  for (int d = 0; d < directions; ++d) {
    LOWBIT_TRY_ASSIGN(GruWeights cell, read_gru_cell({&*arrays[0], &*arrays[1], arrays[2] ? &*arrays[2] : nullptr,
                                                      nullptr, kUpdateFirst, false, d, directions},
                                                     where));
    cells.push_back(std::move(cell));
  }
  const int64_t stated = integer_of(node, "hidden_size", cells[0].hidden);
  if (stated != cells[0].hidden)
    return fail(ErrorCode::kShapeMismatch, where, "hidden_size " + std::to_string(stated),
                std::to_string(cells[0].hidden) + " as R has");
  return cells;
}

}  // namespace

Result<GruNetwork> load_onnx_gru(const std::string& path, const std::string& select) {
  LOWBIT_TRY_ASSIGN(const auto file, MappedFile::open(path));
  ProtoReader model(file->bytes());
  std::span<const std::byte> graph_bytes;
  while (const auto f = model.next())
    if (f->number == 7 && f->wire == 2) graph_bytes = f->bytes;
  if (!model.ok() || graph_bytes.empty()) return corrupt(path, "model");
  LOWBIT_TRY_ASSIGN(const Graph graph, read_graph(graph_bytes, path));
  GruNetwork network;
  std::string names;
  size_t directions = 0;
  for (const Node& node : graph.nodes) {
    names += (names.empty() ? "" : ", ") + node.name.substr(0, 64);
    if (!select.empty() && node.name != select) continue;
    LOWBIT_TRY_ASSIGN(auto cells, read_gru_node(node, graph, path));
    if (directions != 0 && cells.size() != directions)
      return fail(ErrorCode::kUnsupported, path, "forward and bidirectional layers mixed", "one kind",
                  "choose one node by its name: " + names.substr(0, 512));
    directions = cells.size();
    for (GruWeights& cell : cells) network.cells.push_back(std::move(cell));
  }
  if (network.cells.empty())
    return fail(ErrorCode::kNotFound, path, select.empty() ? "no GRU node" : "no GRU node '" + select + "'",
                "at least one", names.empty() ? "" : "there are: " + names.substr(0, 512));
  network.bidirectional = directions == 2;
  if (auto status = check_gru(network); !status) {
    Error e = status.error();
    e.where = path + ": " + e.where;
    if (select.empty() && graph.nodes.size() > 1) e.hint = "choose one node by its name: " + names.substr(0, 512);
    return tl::unexpected<Error>(std::move(e));
  }
  return network;
}

}  // namespace lowbit
