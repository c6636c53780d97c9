#include "gru/onnx_path.h"

#include <algorithm>
#include <deque>
#include <set>

#include "base/try.h"

namespace lowbit {
namespace {

constexpr size_t kMaxShapeNodes = 64;  // between two GRU nodes
constexpr size_t kMaxNamed = 16;
constexpr size_t kMaxOrigins = 1024;  // values that a state is traced back through

bool is_one_of(std::string_view type, std::initializer_list<std::string_view> types) {
  return std::ranges::find(types, type) != types.end();
}

/// Gives its first input on, at most in other axes.
bool is_shape_node(OnnxGraph& graph, const OnnxNode& node) {
  if (node.type == "Dropout")  // does nothing unless it is told that this is training
    return node.input(2).empty() || graph.is_zero_constant(node.input(2));
  if (node.type == "Cast") return is_one_of(std::to_string(node.integer("to", 0)), {"1", "10", "11", "16"});  // floats
  return is_one_of(node.type, {"Identity", "Squeeze", "Unsqueeze", "Transpose", "Reshape"});
}

/// Axes by name: T steps, N sequences, D directions, H hidden, C directions and hidden together, 1 of no meaning.
class Axes {
 public:
  Axes(const OnnxGraph& graph, const OnnxNode& gru)
      : graph_(graph),
        names_(gru.integer("layout", 0) == 1 ? "NTDH" : "TDNH"),
        one_direction_(gru.attribute("direction").value_or(OnnxAttribute{}).text != "bidirectional") {
    if (one_direction_) std::ranges::replace(names_, 'D', '1');
  }

  /// False: not as any known layer.
  bool apply(const OnnxNode& node) {
    if (node.type == "Squeeze") return squeeze(axes_of(node));
    if (node.type == "Unsqueeze") return unsqueeze(axes_of(node));
    if (node.type == "Transpose") return transpose(node);
    if (node.type == "Reshape") return reshape(node);
    return true;
  }

  const std::string& names() const { return names_; }

 private:
  std::optional<std::vector<int64_t>> axes_of(const OnnxNode& node) const {
    if (const auto a = node.attribute("axes")) return a->integers;
    return graph_.integers(node.input(1));
  }
  bool squeeze(std::optional<std::vector<int64_t>> axes) {
    if (!axes) {
      std::erase(names_, '1');
      return true;
    }
    for (int64_t& a : *axes) a += a < 0 ? static_cast<int64_t>(names_.size()) : 0;
    std::ranges::sort(*axes, std::greater<>());
    for (const int64_t a : *axes) {
      if (a < 0 || a >= static_cast<int64_t>(names_.size()) || names_[static_cast<size_t>(a)] != '1') return false;
      names_.erase(static_cast<size_t>(a), 1);
    }
    return true;
  }
  bool unsqueeze(std::optional<std::vector<int64_t>> axes) {
    if (!axes || axes->size() != 1) return false;
    const auto rank = static_cast<int64_t>(names_.size());
    const int64_t at = (*axes)[0] < 0 ? (*axes)[0] + rank + 1 : (*axes)[0];
    if (at < 0 || at > rank || rank >= 8) return false;
    names_.insert(static_cast<size_t>(at), 1, '1');
    return true;
  }
  bool transpose(const OnnxNode& node) {
    const auto perm = node.attribute("perm");
    std::string out(names_.rbegin(), names_.rend());
    if (perm) {
      if (perm->integers.size() != names_.size()) return false;
      for (size_t i = 0; i < out.size(); ++i) {
        const int64_t from = perm->integers[i];
        if (from < 0 || from >= static_cast<int64_t>(names_.size())) return false;
        out[i] = names_[static_cast<size_t>(from)];
      }
    }
    names_ = out;
    return true;
  }
  /// Into three axes: those of one element vanish, directions and hidden become one.
  bool reshape(const OnnxNode& node) {
    if (const auto shape = graph_.integers(node.input(1)); shape && shape->size() != 3) return false;
    std::erase(names_, '1');
    if (names_.size() == 4 && names_.ends_with("DH")) names_.replace(2, 2, "C");
    return names_.size() == 3;
  }

  const OnnxGraph& graph_;
  std::string names_;
  bool one_direction_;
};

/// Nodes whose values are numbers about shapes, not data.
bool is_about_shapes(const OnnxNode& node) { return is_one_of(node.type, {"Shape", "Size", "ConstantOfShape"}); }

void name_once(std::vector<std::string>& names, std::set<const OnnxNode*>& named, const OnnxNode& node) {
  if (!named.insert(&node).second) return;
  if (names.size() < kMaxNamed) names.push_back(node.title());
  if (names.size() == kMaxNamed && named.size() > kMaxNamed) names.back() = "others";
}

/// How a value comes about that should be nothing but zeros.
struct Origin {
  bool constant = false;           // that is not zero
  const OnnxNode* node = nullptr;  // which computes it
};

/// Through whatever only copies numbers. `sizes`: a value made of the sizes of arrays is fine too.
Origin origin_of(OnnxGraph& graph, std::string_view value, bool sizes) {
  std::deque<std::string_view> open = {value};
  std::set<const OnnxNode*> seen;
  while (!open.empty()) {
    const std::string_view v = open.front();
    open.pop_front();
    if (v.empty()) continue;
    if (graph.is_constant(v)) {
      if (!graph.is_zero_constant(v)) return {true, nullptr};
      continue;
    }
    const OnnxNode* node = graph.producer(v).node;
    if (node == nullptr || !seen.insert(node).second) continue;  // an input of the model
    if (open.size() + seen.size() + node->inputs.size() > kMaxOrigins) return {false, node};
    if (node->type == "ConstantOfShape") {
      const auto filled = node->attribute("value");
      if (filled && filled->tensor.data() != nullptr && !graph.is_zero(filled->tensor)) return {true, node};
    } else if (sizes && node->type == "Shape") {
      continue;
    } else if (node->type == "Concat") {
      open.insert(open.end(), node->inputs.begin(), node->inputs.end());
    } else if (is_shape_node(graph, *node) ||
               is_one_of(node->type, {"Cast", "Expand", "Tile", "Slice", "Gather", "Split"})) {
      open.push_back(node->input(0));
    } else {
      return {false, node};
    }
  }
  return {};
}

}  // namespace

std::string onnx_place(const OnnxGraph& graph, const OnnxNode& node) { return graph.path() + ": " + node.title(); }

Status check_onnx_chain(OnnxGraph& graph, const OnnxNode& before, const OnnxNode& after) {
  const auto refuse = [&](const std::string& got) {
    return fail(ErrorCode::kUnsupported, onnx_place(graph, after), got,
                "the outputs of " + before.title() + ", with only shape nodes between",
                "run the parts one by one: choose a GRU node by its name with --select");
  };
  std::vector<const OnnxNode*> between;
  OnnxProducer from = graph.producer(after.input(0));
  while (from.node != nullptr && from.node != &before && is_shape_node(graph, *from.node)) {
    if (from.output != 0) return refuse("the second output of " + from.node->title());
    between.push_back(from.node);
    if (between.size() > kMaxShapeNodes) return refuse("more than 64 nodes between");
    from = graph.producer(from.node->input(0));
  }
  if (from.node == nullptr) return refuse("an input of its own");
  if (from.node != &before) return refuse("the outputs of " + from.node->title());
  if (from.output != 0) return refuse("the last state of " + before.title());
  Axes axes(graph, before);
  for (size_t i = between.size(); i-- > 0;)
    if (!axes.apply(*between[i])) return refuse(between[i]->title() + " on the axes " + axes.names());
  const std::string wanted = after.integer("layout", 0) == 1 ? "NT" : "TN";
  if (axes.names() != wanted + "H" && axes.names() != wanted + "C")
    return refuse("its inputs with the axes " + axes.names() + " (T steps, N sequences, D directions, H hidden)");
  return {};
}

Status check_onnx_states(OnnxGraph& graph, const OnnxNode& node, std::vector<std::string>* left_out) {
  const std::string where = onnx_place(graph, node);
  const Origin lengths = origin_of(graph, node.input(4), true);
  if (graph.is_constant(node.input(4)) || lengths.constant)
    return fail(ErrorCode::kUnsupported, where, "constant sequence_lens", "none, or an input of the model",
                "export the model without them and give --lengths where it runs");
  const Origin state = origin_of(graph, node.input(5), false);
  if (state.constant)
    return fail(ErrorCode::kUnsupported, where, "a constant initial_h that is not zero",
                "zeros, or an input of the model", "export the state as an input and give it with --h0");
  if (state.node != nullptr) {
    if (left_out == nullptr)
      return fail(ErrorCode::kUnsupported, where, "an initial_h from " + state.node->title(),
                  "zeros, or an input of the model",
                  "choose the node by its name with --select and give its states with --h0");
    left_out->push_back(state.node->title() + " of the initial state");
  }
  return {};
}

std::vector<std::string> onnx_left_out(OnnxGraph& graph, const std::vector<const OnnxNode*>& chain) {
  std::vector<std::string> names;
  std::set<const OnnxNode*> seen(chain.begin(), chain.end()), named;
  const auto visit = [&](std::deque<const OnnxNode*> open, const auto& neighbours) {
    while (!open.empty()) {
      const OnnxNode* node = open.front();
      open.pop_front();
      if (is_about_shapes(*node) || !seen.insert(node).second) continue;
      if (!is_shape_node(graph, *node)) name_once(names, named, *node);
      neighbours(*node, open);
    }
  };
  const auto producers = [&](const OnnxNode& node, std::deque<const OnnxNode*>& open) {
    for (const std::string_view input : node.inputs)
      if (const OnnxNode* from = graph.producer(input).node; from != nullptr && !graph.is_constant(input))
        open.push_back(from);
  };
  const auto consumers = [&](const OnnxNode& node, std::deque<const OnnxNode*>& open) {
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (const OnnxProducer made = graph.producer(node.outputs[i]); made.node == &node && made.output == i)
        for (const OnnxNode* to : graph.consumers(node.outputs[i])) open.push_back(to);
  };
  std::deque<const OnnxNode*> before, behind;
  if (const OnnxNode* from = graph.producer(chain.front()->input(0)).node) before.push_back(from);
  visit(before, producers);
  for (const OnnxNode* node : chain) consumers(*node, behind);
  visit(behind, consumers);
  return names;
}

}  // namespace lowbit
