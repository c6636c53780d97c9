#include "gru/onnx_graph.h"

#include <algorithm>

#include "base/checked.h"
#include "base/try.h"
#include "gru/protobuf.h"

namespace lowbit {
namespace {

constexpr size_t kMaxNodes = 1 << 16, kMaxConstants = 1 << 16;
constexpr size_t kMaxLinks = 1 << 18;  // inputs, outputs and attributes of all nodes
constexpr uint64_t kExtraBytes = uint64_t{64} << 20;

tl::unexpected<Error> corrupt(const std::string& path, const char* what) {
  return fail(ErrorCode::kCorrupt, path, std::string("a broken ") + what, "an ONNX file", "the file may be truncated");
}

int64_t clamped_extent(uint64_t v) { return static_cast<int64_t>(std::min<uint64_t>(v, uint64_t{1} << 40)); }

/// Varints: one, or packed. False: broken, or more than `limit`.
template <class Convert>
bool add_varints(const ProtoField& f, size_t limit, std::vector<int64_t>& out, Convert convert) {
  if (f.wire == 0) out.push_back(convert(f.value));
  if (f.wire != 2) return out.size() <= limit;
  ProtoReader packed(f.bytes);
  while (!packed.at_end()) {
    const auto v = packed.varint();
    if (!v || out.size() >= limit) return false;
    out.push_back(convert(*v));
  }
  return true;
}

constexpr size_t kMaxRank = 8, kMaxIntegers = 64;

bool read_attribute(std::span<const std::byte> bytes, std::string_view& name, OnnxAttribute& a) {
  ProtoReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->number == 1 && f->wire == 2) name = f->text();
    if (f->number == 3 && f->wire == 0) a.integer = static_cast<int64_t>(f->value);
    if (f->number == 4 && f->wire == 2) a.text = f->text();
    if (f->number == 5 && f->wire == 2) a.tensor = f->bytes;
    if (f->number == 8 && a.integers.size() <= kMaxIntegers)
      (void)add_varints(*f, kMaxIntegers, a.integers, [](uint64_t v) { return static_cast<int64_t>(v); });
    if (f->number == 9 && f->wire == 2 && a.texts.size() < kMaxIntegers) a.texts.emplace_back(f->text());
  }
  return reader.ok();
}

bool read_node(std::span<const std::byte> bytes, OnnxNode& node) {
  ProtoReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->wire != 2) continue;
    if (node.inputs.size() + node.outputs.size() + node.attributes.size() > kMaxLinks)
      return true;  // refused by read()
    if (f->number == 1) node.inputs.emplace_back(f->text());
    if (f->number == 2) node.outputs.emplace_back(f->text());
    if (f->number == 3) node.name = f->text();
    if (f->number == 4) node.type = f->text();
    if (f->number == 7) node.domain = f->text();
    if (f->number != 5) continue;
    std::string_view name;
    OnnxAttribute a;
    if (!read_attribute(f->bytes, name, a)) return false;
    node.attributes.push_back(f->bytes);
  }
  return reader.ok();
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

/// The fields of a TensorProto that are read.
struct TensorFields {
  std::vector<int64_t> shape, integers;  // dims, int64_data
  uint64_t type = 0;
  std::vector<float> floats;                      // float_data
  std::optional<std::span<const std::byte>> raw;  // raw_data
  bool external = false;
};

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

/// Null, or what is broken.
const char* read_tensor_fields(std::span<const std::byte> bytes, TensorFields& t) {
  ProtoReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->number == 1 && !add_varints(*f, kMaxRank, t.shape, clamped_extent)) return "shape";
    if (f->number == 2 && f->wire == 0) t.type = f->value;
    if (f->number == 4 && !add_floats(*f, t.floats)) return "float_data";
    if (f->number == 7 && t.integers.size() <= kMaxIntegers)
      (void)add_varints(*f, kMaxIntegers, t.integers, [](uint64_t v) { return static_cast<int64_t>(v); });
    if (f->number == 9 && f->wire == 2) t.raw = f->bytes;
    if (f->number == 14 && f->value == 1) t.external = true;
  }
  return reader.ok() ? nullptr : "tensor";
}

}  // namespace

std::optional<OnnxAttribute> OnnxNode::attribute(std::string_view wanted) const {
  for (const auto bytes : attributes) {
    std::string_view found;
    OnnxAttribute a;
    if (read_attribute(bytes, found, a) && found == wanted) return a;
  }
  return std::nullopt;
}

int64_t OnnxNode::integer(std::string_view wanted, int64_t otherwise) const {
  const auto a = attribute(wanted);
  return a ? a->integer.value_or(otherwise) : otherwise;
}

std::string OnnxNode::title() const {
  return std::string(type.substr(0, 32)) + " '" + std::string(name.substr(0, 64)) + "'";
}

Result<OnnxGraph> OnnxGraph::open(const std::string& path) {
  OnnxGraph graph;
  LOWBIT_TRY_ASSIGN(graph.file_, MappedFile::open(path));
  graph.bytes_left_ = static_cast<uint64_t>(graph.file_->size()) + kExtraBytes;
  ProtoReader model(graph.file_->bytes());
  std::span<const std::byte> bytes;
  while (const auto f = model.next())
    if (f->number == 7 && f->wire == 2) bytes = f->bytes;
  if (!model.ok() || bytes.empty()) return corrupt(path, "model");
  LOWBIT_TRY(graph.read(bytes));
  return graph;
}

Status OnnxGraph::read(std::span<const std::byte> bytes) {
  const auto too_many = [&](const char* what, size_t most) {
    return fail(ErrorCode::kUnsupported, path(), std::string("more ") + what + " than any network has",
                std::to_string(most) + " at most");
  };
  ProtoReader reader(bytes);
  size_t links = 0;
  while (const auto f = reader.next()) {
    if (f->wire != 2) continue;
    if (f->number == 1) {
      if (nodes_.size() == kMaxNodes) return too_many("nodes", kMaxNodes);
      OnnxNode node;
      if (!read_node(f->bytes, node)) return corrupt(path(), "node");
      links += node.inputs.size() + node.outputs.size() + node.attributes.size();
      if (links > kMaxLinks) return too_many("inputs and outputs", kMaxLinks);
      const auto value = node.type == "Constant" ? node.attribute("value") : std::nullopt;
      if (value && value->tensor.data() != nullptr && node.outputs.size() == 1)
        constants_[node.outputs[0]] = value->tensor;
      else
        nodes_.push_back(std::move(node));
    } else if (f->number == 5) {
      ProtoReader tensor(f->bytes);
      std::string_view name;
      while (const auto part = tensor.next())
        if (part->number == 8 && part->wire == 2) name = part->text();
      if (!tensor.ok()) return corrupt(path(), "initializer");
      constants_[name] = f->bytes;
    }
    if (constants_.size() > kMaxConstants) return too_many("constants", kMaxConstants);
  }
  if (!reader.ok()) return corrupt(path(), "graph");
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    for (uint32_t k = 0; k < nodes_[i].outputs.size(); ++k)
      if (!nodes_[i].outputs[k].empty()) producers_.emplace(nodes_[i].outputs[k], std::pair{i, k});
    for (const std::string_view input : nodes_[i].inputs)
      if (!input.empty() && !constants_.contains(input)) consumers_.emplace(input, i);
  }
  return {};
}

OnnxProducer OnnxGraph::producer(std::string_view value) const {
  const auto it = producers_.find(value);
  if (it == producers_.end()) return {};
  return {&nodes_[it->second.first], it->second.second};
}

std::vector<const OnnxNode*> OnnxGraph::consumers(std::string_view value) const {
  std::vector<const OnnxNode*> out;
  const auto [first, last] = consumers_.equal_range(value);
  for (auto it = first; it != last; ++it) out.push_back(&nodes_[it->second]);
  return out;
}

Result<GruArrayView> OnnxGraph::floats(std::string_view value) {
  const std::string name(value.substr(0, 128)), where = path() + ": '" + name + "'";
  const auto found = constants_.find(value);
  if (found == constants_.end())
    return fail(ErrorCode::kNotFound, where, "no constant of this name", "weights stored in the model");
  TensorFields t;
  if (const char* broken = read_tensor_fields(found->second, t)) return corrupt(path(), broken);
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
  if (data.size() > bytes_left_)
    return fail(ErrorCode::kUnsupported, where, "more weights in all than the file and 64 MiB",
                "each GRU node with weights of its own", "nodes that share weights would each hold a copy");
  bytes_left_ -= data.size();
  LOWBIT_TRY_ASSIGN(out.owner, Buffer::allocate(static_cast<int64_t>(data.size()), "onnx weights"));
  if (!data.empty()) __builtin_memcpy(out.owner.data(), data.data(), data.size());
  out.view.data = out.owner.span();
  return out;
}

std::optional<std::vector<int64_t>> OnnxGraph::integers(std::string_view value) const {
  const auto found = constants_.find(value);
  TensorFields t;
  constexpr uint64_t kInt64 = 7;
  if (found == constants_.end() || read_tensor_fields(found->second, t) != nullptr || t.type != kInt64 || t.external)
    return std::nullopt;
  if (!t.raw) return t.integers;
  if (t.raw->size() % 8 != 0 || t.raw->size() > 8 * kMaxIntegers) return std::nullopt;
  std::vector<int64_t> out(t.raw->size() / 8);
  if (!out.empty()) __builtin_memcpy(out.data(), t.raw->data(), t.raw->size());
  return out;
}

bool OnnxGraph::is_zero(std::span<const std::byte> tensor) {
  TensorFields t;
  if (read_tensor_fields(tensor, t) != nullptr || t.external) return false;
  const auto zero = [](auto v) { return v == decltype(v){}; };
  if (t.raw) return std::ranges::all_of(*t.raw, zero);
  // Other fields of numbers (int32_data, double_data) are not read: such a constant counts as one that is not zero.
  return !(t.floats.empty() && t.integers.empty()) && std::ranges::all_of(t.floats, zero) &&
         std::ranges::all_of(t.integers, zero);
}

bool OnnxGraph::is_zero_constant(std::string_view value) {
  const auto found = constants_.find(value);
  if (found == constants_.end()) return false;
  const auto [known, added] = zeros_.emplace(value, false);
  if (added) known->second = is_zero(found->second);
  return known->second;
}

}  // namespace lowbit
