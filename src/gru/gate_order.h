#pragma once
// Weights of other projects into our gate order.

#include <array>
#include <string>

#include "lowbit/gru.h"
#include "lowbit/tensor.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Where our gates u, r, n lie among a source's three blocks of rows.
using GateOrder = std::array<int, 3>;
inline constexpr GateOrder kUpdateFirst = {0, 1, 2};  // ONNX, Keras, haste: z, r, h
inline constexpr GateOrder kResetFirst = {1, 0, 2};   // PyTorch: r, z, n

/// A matrix somewhere in a file.
struct GruArrayView {
  std::string name;
  TensorView view;
  Buffer owner;  // keeps the bytes
};

/// [3H, k] floats of `source`, which starts `first` elements into the array, in our gate order. `transposed`: the
/// source is [k, 3H].
std::vector<float> ordered_gates(const TensorView& source, int64_t first, int64_t hidden, int64_t k, GateOrder order,
                                 bool transposed = false);

/// One cell from matrices [3H, C], [3H, H] (or transposed) and biases [3H]; a null bias is zero. Errors: kShapeMismatch
/// (names the array, counts the gates).
struct GruCellSource {
  const GruArrayView *w = nullptr, *r = nullptr, *bw = nullptr, *br = nullptr;
  GateOrder order = kUpdateFirst;
  bool transposed = false;
  // Arrays with a leading axis of directions: which of them, 0 or 1; bw then holds [D, 6H] for both biases.
  int direction = -1;
  int directions = 1;
};
Result<GruWeights> read_gru_cell(const GruCellSource& source, const std::string& where);

/// GRU nodes of an ONNX model. `select`: a node's name, "" all.
Result<GruNetwork> load_onnx_gru(const std::string& path, const std::string& select);

}  // namespace lowbit
