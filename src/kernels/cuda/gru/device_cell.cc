// A cell's numbers in device memory, and the choice of a shape for a call.

#include "kernels/cuda/gru/device_cell.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/try.h"
#include "kernels/cuda/gru/shapes.h"
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
  std::vector<Shape> shapes;  // that can run here, better ones first; by tile, smaller ones first

  Shape shape_for(int64_t steps, int64_t batch) const;
};

namespace {

constexpr int64_t kMaxMatrixK = 65536;  // 255 * 128 * 65536 < 2^31
constexpr int64_t kLargestRows = (int64_t{1} << 31) - 1;
constexpr int kPortableBlocks = 8;

int64_t align_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

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
  if (impl->matrix_state)
    gru::add_shapes({cell, impl->number, options, impl->processors, device.bulk_copies}, impl->shapes);
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

/// Flags of a tile: one per block, or per warp of split groups.
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
