#pragma once
// The nodes before, between and behind the GRU nodes of an ONNX file. Private to src/gru/onnx*.cc.

#include <string>
#include <vector>

#include "gru/onnx_graph.h"

namespace lowbit {

/// "GRU 'name'" with the file before it.
std::string onnx_place(const OnnxGraph& graph, const OnnxNode& node);

/// `after` reads the whole output of `before`, with nothing but nodes between them that give the axes another order or
/// shape. Errors: kUnsupported (names what is between, or how the axes come out).
Status check_onnx_chain(OnnxGraph& graph, const OnnxNode& before, const OnnxNode& after);

/// sequence_lens and initial_h must be absent, zero, or inputs of the whole model. A computed initial state is an error
/// when `left_out` is null, else it is named there. Errors: kUnsupported.
Status check_onnx_states(OnnxGraph& graph, const OnnxNode& node, std::vector<std::string>* left_out);

/// Names of the nodes that the chain's outputs go into, or its inputs come from, and that compute something: "Gemm
/// 'fc'".
std::vector<std::string> onnx_left_out(OnnxGraph& graph, const std::vector<const OnnxNode*>& chain);

}  // namespace lowbit
