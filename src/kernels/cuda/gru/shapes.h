#pragma once
// Which shapes a cell's sequences can run in on a device.

#include <vector>

#include "kernels/cuda/gru/device_cell.h"

namespace lowbit::cuda::gru {

struct ShapeSearch {
  const Cell& cell;
  Number number;
  const GruCellOptions& options;
  int processors;  // of the device
  bool clusters;   // it has them
};

/// Adds the shapes of every path that the options allow and the device can run: better paths first; of one path smaller
/// tiles first.
void add_shapes(const ShapeSearch& search, std::vector<Shape>& shapes);

}  // namespace lowbit::cuda::gru
