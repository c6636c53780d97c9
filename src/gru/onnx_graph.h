#pragma once
// An ONNX file as nodes and constants: just the parts of the schema that recurrent networks need. Private to
// src/gru/onnx*.cc.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gru/gate_order.h"
#include "io/mapped_file.h"

namespace lowbit {

struct OnnxAttribute {
  std::optional<int64_t> integer;
  std::string_view text;
  std::vector<std::string_view> texts;
  std::vector<int64_t> integers;
  std::span<const std::byte> tensor;  // a TensorProto; null data when it has none
};

/// Views point into the file.
struct OnnxNode {
  std::string_view name, type, domain;
  std::vector<std::string_view> inputs, outputs;
  std::vector<std::span<const std::byte>> attributes;  // AttributeProto; known to be sound

  std::string_view input(size_t i) const { return i < inputs.size() ? inputs[i] : std::string_view(); }
  std::optional<OnnxAttribute> attribute(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  /// "Gemm 'fc'"
  std::string title() const;
};

struct OnnxProducer {
  const OnnxNode* node = nullptr;
  size_t output = 0;
};

class OnnxGraph {
 public:
  /// Errors: as MappedFile::open; kCorrupt, kUnsupported (more nodes or constants than any network has).
  static Result<OnnxGraph> open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::vector<OnnxNode>& nodes() const { return nodes_; }
  /// The node that makes a value; null for the graph's inputs and for constants.
  OnnxProducer producer(std::string_view value) const;
  std::vector<const OnnxNode*> consumers(std::string_view value) const;
  bool is_constant(std::string_view value) const { return constants_.contains(value); }

  /// A constant's numbers. All constants that are read may together have no more bytes than the file and 64 MiB.
  /// Errors: kNotFound, kUnsupported (another element type, another file), kCorrupt.
  Result<GruArrayView> floats(std::string_view value);
  /// nullopt: no constant, or none of int64.
  std::optional<std::vector<int64_t>> integers(std::string_view value) const;
  /// True when every byte or number of the constant is 0.
  static bool is_zero(std::span<const std::byte> tensor);
  bool is_zero_constant(std::string_view value);

 private:
  Status read(std::span<const std::byte> graph);
  std::shared_ptr<MappedFile> file_;
  std::vector<OnnxNode> nodes_;
  std::map<std::string_view, std::span<const std::byte>> constants_;  // initializers and Constant nodes: TensorProto
  std::map<std::string_view, std::pair<uint32_t, uint32_t>> producers_;
  std::multimap<std::string_view, uint32_t> consumers_;
  std::map<std::string_view, bool> zeros_;  // constants that were looked at: many nodes may share a large one
  uint64_t bytes_left_ = 0;                 // that floats() may still copy
};

}  // namespace lowbit
