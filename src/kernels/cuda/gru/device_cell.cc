// A cell's numbers in device memory, and the choice of a path.

#include "kernels/cuda/gru/device_cell.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/try.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {

using gru::Cell, gru::Call, gru::Shape;

struct GruDeviceCell::Impl {
  Cell cell;
  Buffer memory;
  GruCellOptions options;
  gru::Number number = gru::Number::kInt64;
  bool matrix_state = false, matrix_input = false;
  int processors = 1;
  bool clusters = false;
  std::vector<Shape> shapes;  // that can run here, better ones first; by tile, smaller ones first

  Shape shape_for(int64_t steps, int64_t batch) const;
};

namespace {

constexpr int64_t kMaxMatrixK = 65536;  // 255 * 128 * 65536 < 2^31
constexpr int64_t kLargestRows = (int64_t{1} << 31) - 1;
constexpr int kClusterBlocks = 16, kPortableBlocks = 8, kBlockGroups = 8;

int64_t align_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

/// Adds the shape when the device can run it.
void consider(const Cell& cell, Shape shape, std::vector<Shape>& shapes) {
  shape.shared_bytes = gru::shared_bytes_of(cell, shape);
  shape.at_once = gru::tiles_at_once(cell, shape);
  if (shape.at_once == 0) return;
  if (shape.path == GruPath::kCluster && shape.number == gru::Number::kF32) shape.alone = gru::tiles_alone(cell, shape);
  shapes.push_back(shape);
}

/// Blocks and warps per path; a matrix unit for each warp where that can be had.
void consider_path(const GruDeviceCell::Impl& impl, GruPath path, int tiles8, std::vector<Shape>& shapes) {
  const Cell& cell = impl.cell;
  const int groups = cell.groups;
  const auto shape = [&](int warps, bool resident, int split = 1) {
    Shape s;
    s.path = path;
    s.warps = warps;
    s.split = split;
    s.blocks = static_cast<int>(align_up(groups, warps / split)) / (warps / split);
    s.tiles8 = tiles8;
    s.number = impl.number;
    s.resident = resident;
    return s;
  };
  const size_t before = shapes.size();
  const int wanted = impl.options.warps;
  const bool may_split = impl.number == gru::Number::kF32 && impl.options.split != 1;
  if (may_split && tiles8 <= 3 &&
      (path == GruPath::kCluster ? impl.clusters && groups > 1 : path == GruPath::kGrid && tiles8 == 2))
    // In a cluster a matrix unit for each warp; through global memory as few blocks as can be.
    for (const int warps : path == GruPath::kCluster ? std::array{4, 8, 2} : std::array{8, 4, 2})
      if (shapes.size() == before && (wanted == 0 || wanted == warps) &&
          shape(warps, true, 2).blocks <= (path == GruPath::kCluster ? kClusterBlocks : impl.processors))
        consider(cell, shape(warps, true, 2), shapes);
  if (impl.options.split == 2) return;
  if (path == GruPath::kBlock && groups <= kBlockGroups && (wanted == 0 || wanted == groups))
    consider(cell, shape(groups, true), shapes);
  if (path == GruPath::kCluster && impl.clusters && groups > 1) {
    // Weights that do not all fit registers: two warps, which share a multiprocessor's memory with nobody, where blocks suffice.
    const bool mixed = cell.r.ksteps > gru::ksteps_in_registers(impl.number, path, tiles8, true, cell.r.ksteps, 1);
    if (wanted == 0 && impl.number == gru::Number::kF32 && mixed && tiles8 == 1 &&
        shape(2, true).blocks <= kClusterBlocks)
      consider(cell, shape(2, true), shapes);
    const size_t pairs = shapes.size();
    for (int warps = wanted > 0 ? wanted : std::min(4, (groups + 1) / 2);
         warps <= (wanted > 0 ? wanted : gru::kMaxWarps) && shapes.size() == pairs; ++warps)
      if (shape(warps, true).blocks <= kClusterBlocks) consider(cell, shape(warps, true), shapes);
  }
  if (path != GruPath::kGrid) return;
  for (const int warps : {4, 3, 2, 1})
    if (shapes.size() == before && (wanted == 0 || wanted == warps) && shape(warps, true).blocks <= impl.processors)
      consider(cell, shape(warps, true), shapes);
  if (shapes.size() == before && tiles8 != 2 && wanted == 0) consider(cell, shape(gru::kMaxWarps, false), shapes);
}

}  // namespace

Shape GruDeviceCell::Impl::shape_for(int64_t steps, int64_t batch) const {
  if (steps * batch > kLargestRows) return {};
  if (!shapes.empty() && shapes.front().path == GruPath::kFused &&
      (batch <= processors || options.path == GruPath::kFused))
    return shapes.front();
  // Of one sequence: a kernel for one, in clusters of the size that every device has.
  for (const Shape& s : shapes)
    if (batch == 1 && s.path != GruPath::kFused && s.blocks <= kPortableBlocks && gru::has_single(cell, s)) {
      Shape shape = s;
      shape.single = true;
      return shape;
    }
  // The first path and its smallest tile of which the device holds all at once, else the first path's largest tile.
  const auto holds_all = [&](const Shape& s) { return int64_t{8} * s.tiles8 * s.at_once >= batch; };
  const Shape* best = nullptr;
  for (const Shape& s : shapes)
    if (s.path != GruPath::kFused && (best == nullptr || (!holds_all(*best) && (holds_all(s) || s.path == best->path))))
      best = &s;
  return best == nullptr ? Shape{} : *best;
}

const char* gru_path_name(GruPath path) {
  constexpr const char* kNames[] = {"auto", "fused", "block", "cluster", "grid", "steps"};
  return kNames[static_cast<size_t>(path)];
}

int64_t gru_codes_bytes(const GruGrid& grid, int64_t rows, int64_t columns, GruCodes& layout) {
  layout.stride = align_up(std::max<int64_t>(columns, 1), 16);
  layout.plane_bytes = rows * layout.stride;
  return gru_planes(grid) * layout.plane_bytes;
}

Result<GruDeviceCell> GruDeviceCell::make(const GruSpec& spec, const GruCellOptions& options) {
  auto impl = std::make_shared<Impl>();
  Device device;
  LOWBIT_TRY(check_cuda(current_device(&device), "gru on the GPU"));
  impl->options = options;
  impl->processors = device.processors;
  impl->clusters = device.bulk_copies;
  const bool may_use_matrix = options.path != GruPath::kSteps;
  impl->number = gru::number_of(spec);
  impl->matrix_input = may_use_matrix && spec.w_bits <= 8 && spec.c <= kMaxMatrixK;
  impl->matrix_state =
      may_use_matrix && spec.r_bits <= 8 && spec.h <= kMaxMatrixK && impl->number != gru::Number::kInt64;
  Cell& cell = impl->cell;
  const std::vector<uint8_t> image = gru::pack_cell(spec, impl->matrix_input, impl->matrix_state, cell);
  const bool may_fuse = options.tile == 0 && options.warps == 0 && options.split == 0 &&
                        (options.path == GruPath::kAuto || options.path == GruPath::kFused);
  if (const int at_once = may_fuse && impl->matrix_state ? gru::fused_at_once(cell, impl->number) : 0; at_once > 0) {
    Shape shape;
    shape.path = GruPath::kFused;
    shape.warps = 2 * cell.groups;
    shape.at_once = at_once;
    impl->shapes.push_back(shape);
  }
  if (impl->matrix_state) {
    for (const GruPath path : {GruPath::kBlock, GruPath::kCluster, GruPath::kGrid}) {
      if (options.path != GruPath::kAuto && options.path != path) continue;
      for (const int tiles8 : {1, 2, 3, 4})
        if (options.tile == 0 || options.tile == 8 * tiles8) consider_path(*impl, path, tiles8, impl->shapes);
    }
  }
  const bool wanted = options.path != GruPath::kAuto && options.path != GruPath::kSteps;
  if (!wanted && impl->matrix_state && impl->shapes.empty()) return make(spec, {GruPath::kSteps, 0, 0});
  if (wanted && impl->shapes.empty())
    return fail(ErrorCode::kUnsupported, std::string("gru path ") + gru_path_name(options.path),
                "a cell or a device that it cannot be for", "another path");
  LOWBIT_TRY_ASSIGN(impl->memory, allocate(static_cast<int64_t>(image.size()), "gru weights"));
  LOWBIT_TRY(upload(impl->memory, image.data(), static_cast<int64_t>(image.size())));
  gru::point_into(cell, impl->memory.as<uint8_t>());
  return GruDeviceCell(std::move(impl));
}

namespace {

struct Workspace {
  int64_t ih = 0, h = 0, flags = 0, bytes = 0;
};

/// Of a tile: one per block, or per warp of split groups.
int flags_of(const Cell& cell, const Shape& shape) {
  return shape.split == 1 ? shape.blocks : cell.groups * shape.split;
}

Workspace workspace_of(const Cell& cell, const Shape& shape, int64_t steps, int64_t batch) {
  Workspace w;
  w.h = align_up(steps * batch * cell.ih_stride * cell.ih_bytes, 256);
  const int64_t state = 2 * batch * cell.h;
  const int64_t shared =
      int64_t{shape.at_once} * 2 * (shape.number == gru::Number::kF32 ? 1 : 2) * 8 * shape.tiles8 * gru::h_stride(cell);
  w.flags = w.h + align_up(shape.path == GruPath::kGrid ? shared : state, 256);
  w.bytes = w.flags + align_up(4 * int64_t{shape.at_once} * flags_of(cell, shape), 256);
  return w;
}

}  // namespace

int64_t GruDeviceCell::workspace_bytes(int64_t steps, int64_t batch) const {
  return workspace_of(impl_->cell, impl_->shape_for(steps, batch), steps, batch).bytes;
}

Status GruDeviceCell::run(const GruSequences& s) const {
  if (s.steps < 1 || s.batch < 1) return {};
  const Cell& cell = impl_->cell;
  const Shape shape = impl_->shape_for(s.steps, s.batch);
  const Workspace places = workspace_of(cell, shape, s.steps, s.batch);
  if (shape.path == GruPath::kSteps && cell.r.plain == nullptr)
    return fail(ErrorCode::kUnsupported, "gru on the GPU", std::to_string(s.steps * s.batch) + " rows",
                "less than 2^31", "run fewer sequences at a time");
  Call call;
  call.s = s;
  call.ih = s.workspace + places.ih;
  call.shared_h = s.workspace + places.h;
  if (shape.path == GruPath::kGrid) {
    call.flags = reinterpret_cast<uint32_t*>(s.workspace + places.flags);
    call.flag_count = shape.at_once * flags_of(cell, shape);
  }
  const auto stream = static_cast<cudaStream_t>(s.stream);
  if (shape.path == GruPath::kFused) return check_cuda(gru::launch_fused(cell, call, stream), "gru sequences");
  const bool boxes = gru::has_input_boxes(cell, s.steps * s.batch, impl_->options.input_boxes);
  const auto input = boxes                     ? gru::launch_input_boxes
                     : cell.x.tiles != nullptr ? gru::launch_input
                                               : gru::launch_input_plain;
  LOWBIT_TRY(check_cuda(input(cell, call, stream), "gru input product"));
  if (shape.path == GruPath::kSteps) return check_cuda(gru::launch_steps_plain(cell, call, stream), "gru steps");
  return check_cuda(gru::launch_sequences(cell, call, shape, stream), "gru sequences");
}

std::string GruDeviceCell::kernel(int64_t batch) const {
  const Shape s = impl_->shape_for(1, batch);
  std::string name = gru_path_name(s.path);
  if (s.path == GruPath::kSteps) return name;
  name += std::to_string(s.blocks) + "x" + std::to_string(s.warps);
  if (s.path == GruPath::kFused) return name;
  name += "_t" + std::to_string(8 * s.tiles8);
  const int in_registers =
      gru::ksteps_in_registers(s.number, s.path, s.tiles8, s.resident, impl_->cell.r.ksteps, s.split);
  if (in_registers > 0) name += in_registers * s.split >= impl_->cell.r.ksteps ? "_registers" : "_mixed";
  if (s.split > 1) name += "_split";
  if (!s.resident) name += "_streamed";
  if (s.single) name += "_single";
  return s.number == gru::Number::kF32 ? name : name + "_f64";
}

int64_t GruDeviceCell::device_bytes() const { return impl_->memory.size(); }

Status gru_encode(const float* x, int64_t rows, int64_t columns, const GruGrid& grid, const GruCodes& out,
                  void* stream) {
  if (rows * columns == 0) return {};
  return check_cuda(gru::launch_encode(x, rows, columns, grid, out, static_cast<cudaStream_t>(stream)), "gru encode");
}

Status gru_decode(const GruCodes& codes, int64_t rows, int64_t columns, const GruGrid& grid, float* y, void* stream) {
  if (rows * columns == 0) return {};
  return check_cuda(gru::launch_decode(codes, rows, columns, grid, y, static_cast<cudaStream_t>(stream)), "gru decode");
}

}  // namespace lowbit::cuda
