// GRU nodes of an ONNX file as a float network.

#include <optional>
#include <string>
#include <vector>

#include "base/try.h"
#include "gru/gate_order.h"
#include "gru/onnx_graph.h"
#include "gru/onnx_path.h"

namespace lowbit {
namespace {

constexpr size_t kMaxGruNodes = 2048;

Status check_node(const OnnxNode& node, const std::string& where) {
  if (node.integer("linear_before_reset", 0) != 1)
    return fail(ErrorCode::kUnsupported, where, "linear_before_reset = 0 (the reset gate acts before the product)",
                "linear_before_reset = 1",
                "train with reset_after=True (Keras) or export from PyTorch, whose GRU is of the supported kind");
  if (node.attribute("clip")) return fail(ErrorCode::kUnsupported, where, "a clip attribute", "none");
  if (const int64_t layout = node.integer("layout", 0); layout != 0 && layout != 1)
    return fail(ErrorCode::kUnsupported, where, "layout " + std::to_string(layout), "0 or 1");
  if (const auto a = node.attribute("activations"))
    for (size_t i = 0; i < a->texts.size(); ++i)
      if (a->texts[i] != (i % 2 == 0 ? "Sigmoid" : "Tanh"))
        return fail(ErrorCode::kUnsupported, where, "the activation '" + std::string(a->texts[i].substr(0, 32)) + "'",
                    "Sigmoid and Tanh");
  return {};
}

Result<std::vector<GruWeights>> read_gru_node(const OnnxNode& node, OnnxGraph& graph) {
  const std::string where = onnx_place(graph, node);
  LOWBIT_TRY(check_node(node, where));
  std::optional<GruArrayView> arrays[3];
  for (size_t i = 1; i <= 3; ++i) {
    if (i == 3 && node.input(i).empty()) continue;
    if (!graph.is_constant(node.input(i)))
      return fail(ErrorCode::kNotFound, where, "no constant for input " + std::to_string(i) + " (W, R, B)",
                  "weights stored in the model");
    LOWBIT_TRY_ASSIGN(arrays[i - 1], graph.floats(node.input(i)));
  }
  const auto direction = node.attribute("direction");
  const std::string_view name = direction ? direction->text : std::string_view("forward");
  if (name != "forward" && name != "bidirectional")
    return fail(ErrorCode::kUnsupported, where, "direction '" + std::string(name.substr(0, 32)) + "'",
                "forward or bidirectional");
  const int directions = name == "bidirectional" ? 2 : 1;
  std::vector<GruWeights> cells;
  for (int d = 0; d < directions; ++d) {
    LOWBIT_TRY_ASSIGN(GruWeights cell, read_gru_cell({&*arrays[0], &*arrays[1], arrays[2] ? &*arrays[2] : nullptr,
                                                      nullptr, kUpdateFirst, false, d, directions},
                                                     where));
    cells.push_back(std::move(cell));
  }
  const int64_t stated = node.integer("hidden_size", cells[0].hidden);
  if (stated != cells[0].hidden)
    return fail(ErrorCode::kShapeMismatch, where, "hidden_size " + std::to_string(stated),
                std::to_string(cells[0].hidden) + " as R has");
  return cells;
}

/// The nodes to run, in order; `names` gets those of all.
Result<std::vector<const OnnxNode*>> choose_nodes(const OnnxGraph& graph, const std::string& select,
                                                  std::string& names) {
  std::vector<const OnnxNode*> chain;
  for (const OnnxNode& node : graph.nodes()) {
    if (node.type != "GRU") continue;
    if (names.size() < 512) names += (names.empty() ? "" : ", ") + std::string(node.name.substr(0, 64));
    if (select.empty() || node.name == select) chain.push_back(&node);
  }
  if (chain.size() > kMaxGruNodes)
    return fail(ErrorCode::kUnsupported, graph.path(), std::to_string(chain.size()) + " GRU nodes",
                std::to_string(kMaxGruNodes) + " at most");
  if (chain.empty())
    return fail(ErrorCode::kNotFound, graph.path(), select.empty() ? "no GRU node" : "no GRU node '" + select + "'",
                "at least one", names.empty() ? "" : "there are: " + names.substr(0, 512));
  return chain;
}

}  // namespace

Result<GruNetwork> load_onnx_gru(const std::string& path, const std::string& select) {
  LOWBIT_TRY_ASSIGN(OnnxGraph graph, OnnxGraph::open(path));
  std::string names;
  LOWBIT_TRY_ASSIGN(const auto chain, choose_nodes(graph, select, names));
  GruNetwork network;
  size_t directions = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    LOWBIT_TRY_ASSIGN(auto cells, read_gru_node(*chain[i], graph));
    if (directions != 0 && cells.size() != directions)
      return fail(ErrorCode::kUnsupported, path, "forward and bidirectional layers mixed", "one kind",
                  "choose one node by its name: " + names.substr(0, 512));
    directions = cells.size();
    for (GruWeights& cell : cells) network.cells.push_back(std::move(cell));
    if (i > 0) LOWBIT_TRY(check_onnx_chain(graph, *chain[i - 1], *chain[i]));
    LOWBIT_TRY(check_onnx_states(graph, *chain[i], select.empty() ? nullptr : &network.left_out));
  }
  network.bidirectional = directions == 2;
  network.batch_first = chain.front()->integer("layout", 0) == 1;
  const auto around = onnx_left_out(graph, chain);
  network.left_out.insert(network.left_out.end(), around.begin(), around.end());
  if (auto status = check_gru(network); !status) {
    Error e = status.error();
    e.where = path + ": " + e.where;
    if (chain.size() > 1) e.hint = "choose one node by its name: " + names.substr(0, 512);
    return tl::unexpected<Error>(std::move(e));
  }
  return network;
}

}  // namespace lowbit
