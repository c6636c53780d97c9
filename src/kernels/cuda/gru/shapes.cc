#include "kernels/cuda/gru/shapes.h"

#include <algorithm>
#include <array>

namespace lowbit::cuda::gru {
namespace {

constexpr int kClusterBlocks = 16, kBlockGroups = 8;

/// Blocks and warps of one path for tiles of one size; a matrix unit for each warp where that can be had.
class TileShapes {
 public:
  TileShapes(const ShapeSearch& search, GruPath path, int tiles8, std::vector<Shape>& shapes)
      : search_(search), path_(path), tiles8_(tiles8), before_(shapes.size()), shapes_(shapes) {}

  void add() {
    if (search_.number == Number::kF32 && search_.options.split != 1) add_split();
    if (search_.options.split == 2) return;
    if (path_ == GruPath::kBlock) add_block();
    if (path_ == GruPath::kCluster && has_clusters()) add_clusters();
    if (path_ == GruPath::kGrid && !found()) add_grid();
  }

 private:
  int groups() const { return search_.cell.groups; }
  bool has_clusters() const { return search_.clusters && groups() > 1; }
  bool found() const { return shapes_.size() > before_; }
  bool may_have(int warps) const { return search_.options.warps == 0 || search_.options.warps == warps; }

  Shape shape(int warps, bool resident, int split) const {
    Shape s;
    s.path = path_;
    s.warps = warps;
    s.split = split;
    s.blocks = (groups() + warps / split - 1) / (warps / split);
    s.tiles8 = tiles8_;
    s.number = search_.number;
    s.resident = resident;
    return s;
  }

  /// Adds the shape when it has no more blocks than that and the device can run it.
  void consider(Shape s, int most_blocks) {
    if (s.blocks > most_blocks) return;
    s.shared_bytes = shared_bytes_of(search_.cell, s);
    s.at_once = tiles_at_once(search_.cell, s);
    if (s.at_once == 0) return;
    if (path_ == GruPath::kCluster && s.number == Number::kF32) s.alone = tiles_alone(search_.cell, s);
    shapes_.push_back(s);
  }

  /// Two warps for a group. In a cluster a matrix unit for each warp; through global memory as few blocks as can be.
  void add_split() {
    const bool cluster = path_ == GruPath::kCluster;
    if (cluster ? !has_clusters() || tiles8_ > 3 : path_ != GruPath::kGrid || tiles8_ != 2) return;
    for (const int warps : cluster ? std::array{4, 8, 2} : std::array{8, 4, 2})
      if (!found() && may_have(warps)) consider(shape(warps, true, 2), cluster ? kClusterBlocks : search_.processors);
  }

  void add_block() {
    if (groups() <= kBlockGroups && may_have(groups())) consider(shape(groups(), true, 1), 1);
  }

  void add_clusters() {
    const int wanted = search_.options.warps, ksteps = search_.cell.r.ksteps;
    // Weights that do not all fit registers: two warps, which share a multiprocessor's memory with nobody, where blocks
    // suffice.
    const bool mixed = ksteps > ksteps_in_registers(search_.number, path_, tiles8_, true, ksteps, 1);
    if (wanted == 0 && search_.number == Number::kF32 && mixed && tiles8_ == 1)
      consider(shape(2, true, 1), kClusterBlocks);
    const int first = wanted > 0 ? wanted : std::min(4, (groups() + 1) / 2), last = wanted > 0 ? wanted : kMaxWarps;
    const size_t had = shapes_.size();
    for (int warps = first; warps <= last && shapes_.size() == had; ++warps)
      consider(shape(warps, true, 1), kClusterBlocks);
  }

  void add_grid() {
    for (const int warps : {4, 3, 2, 1})
      if (!found() && may_have(warps)) consider(shape(warps, true, 1), search_.processors);
    const Shape streamed = shape(kMaxWarps, false, 1);
    if (!found() && tiles8_ != 2 && search_.options.warps == 0) consider(streamed, streamed.blocks);
  }

  const ShapeSearch& search_;
  const GruPath path_;
  const int tiles8_;
  const size_t before_;
  std::vector<Shape>& shapes_;
};

}  // namespace

void add_shapes(const ShapeSearch& search, std::vector<Shape>& shapes) {
  for (const GruPath path : {GruPath::kBlock, GruPath::kCluster, GruPath::kGrid}) {
    if (search.options.path != GruPath::kAuto && search.options.path != path) continue;
    for (const int tiles8 : {1, 2, 3, 4})
      if (search.options.tile == 0 || search.options.tile == 8 * tiles8) TileShapes(search, path, tiles8, shapes).add();
  }
}

}  // namespace lowbit::cuda::gru
