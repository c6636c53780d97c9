// Choosing and launching the kernel of a shape.

#include "kernels/cuda/gru/fused.cuh"
#include "kernels/cuda/gru/sequences.cuh"
#include "kernels/cuda/launch.h"

namespace lowbit::cuda::gru {
namespace {

const SequenceKernel* find(const Cell& cell, const Shape& s) {
  const int in_registers = ksteps_in_registers(s.number, s.path, s.tiles8, s.resident, cell.r.ksteps, s.split);
  for (const auto& list : {sequences_f32_block(), sequences_f32_cluster(), sequences_f32_grid(), sequences_f64()})
    for (const SequenceKernel& k : list)
      if (k.number == s.number && k.single == s.single && k.path == s.path && k.tiles8 == s.tiles8 &&
          k.resident == s.resident && k.in_registers == in_registers && k.split == s.split)
        return &k;
  return nullptr;
}

struct Launch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  Launch(const Shape& s, int blocks, cudaStream_t stream, bool overlap) {
    config.gridDim = dim3(unsigned(blocks));
    config.blockDim = dim3(unsigned(32 * s.warps));
    config.dynamicSmemBytes = size_t(s.shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    if (s.path == GruPath::kGrid) {
      attributes[0].id = cudaLaunchAttributeCooperative;
      attributes[0].val.cooperative = 1;
      config.numAttrs = 1;
      return;
    }
    if (s.path == GruPath::kCluster) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs].val.clusterDim = {unsigned(s.blocks), 1, 1};
      ++config.numAttrs;
    }
    if (overlap) {
      attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
      ++config.numAttrs;
    }
  }
};

const FusedKernel* find_fused(const Cell& cell) {
  for (const FusedKernel& k : fused_kernels())
    if (cell.groups <= 2 * k.ksteps && cell.x.ksteps <= k.ksteps && cell.r.ksteps <= k.ksteps) return &k;
  return nullptr;
}

}  // namespace

int fused_at_once(const Cell& cell, Number number) {
  const FusedKernel* const kernel = find_fused(cell);
  Device device;
  const int bytes = fused_layout(cell).bytes;
  if (number != Number::kF32 || cell.x.tiles == nullptr || cell.x.limbs != 1 || cell.x.narrow == 0 ||
      cell.r.small == 0 || kernel == nullptr || current_device(&device) != cudaSuccess || bytes > device.shared_bytes)
    return 0;
  const auto* const function = reinterpret_cast<const void*>(kernel->run);
  int count = 0;
  if (allow_shared(function, device) == cudaSuccess &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, 64 * cell.groups, size_t(bytes)) == cudaSuccess)
    return count * device.processors;
  (void)cudaGetLastError();
  return 0;
}

cudaError_t launch_fused(const Cell& cell, const Call& call, cudaStream_t stream) {
  const FusedKernel* const kernel = find_fused(cell);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel->run), device); e != cudaSuccess) return e;
  return launch(kernel->run, dim3(unsigned(call.s.batch)), dim3(unsigned(64 * cell.groups)),
                size_t(fused_layout(cell).bytes), stream, device.bulk_copies, SequenceArgs{cell, call, 1, 1});
}

int h_stride(const Cell& cell) { return width_of_h(cell.h); }

int shared_bytes_of(const Cell& cell, const Shape& s) {
  const int in_registers = ksteps_in_registers(s.number, s.path, s.tiles8, s.resident, cell.r.ksteps, s.split);
  return shared_layout(cell, s.warps, 8 * s.tiles8, shared_ksteps(cell, in_registers, s.resident, s.split), s.path,
                       s.number == Number::kF32, s.split)
      .bytes;
}

bool has_single(const Cell& cell, const Shape& shape) {
  Shape s = shape;
  s.single = true;
  return find(cell, s) != nullptr;
}

int tiles_at_once(const Cell& cell, const Shape& s) {
  const SequenceKernel* const kernel = find(cell, s);
  Device device;
  if (kernel == nullptr || current_device(&device) != cudaSuccess || s.shared_bytes > device.shared_bytes) return 0;
  const auto* const function = reinterpret_cast<const void*>(kernel->run);
  if (allow_shared(function, device) != cudaSuccess ||
      (s.path == GruPath::kCluster &&
       cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)) {
    (void)cudaGetLastError();
    return 0;
  }
  int count = 0;
  auto e = cudaSuccess;
  if (s.path == GruPath::kCluster) {
    const Launch launch(s, s.blocks, nullptr, false);
    e = cudaOccupancyMaxActiveClusters(&count, function, &launch.config);
  } else {
    e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, 32 * s.warps, size_t(s.shared_bytes));
    count = count * device.processors / s.blocks;
  }
  if (e == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

int tiles_alone(const Cell& cell, const Shape& shape) {
  Device device;
  if (current_device(&device) != cudaSuccess) return 0;
  Shape s = shape;
  s.shared_bytes = device.shared_bytes;
  return tiles_at_once(cell, s);
}

cudaError_t launch_sequences(const Cell& cell, const Call& call, const Shape& shape, cudaStream_t stream) {
  const SequenceKernel* const kernel = find(cell, shape);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel->run), device); e != cudaSuccess) return e;
  const int64_t tile = 8 * shape.tiles8, tiles = (call.s.batch + tile - 1) / tile;
  const bool one_each = shape.path != GruPath::kGrid;
  const int64_t at_once = one_each ? tiles : min(tiles, int64_t{shape.at_once});
  // Tables of 16-bit gates lie in global memory: the first-level cache is to have what shared memory leaves.
  if (shape.number == Number::kF64) {
    const auto e = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel->run),
                                        cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1);
    if (e != cudaSuccess) return e;
  }
  // Blocks start while the input product's last ones still run, and would share the multiprocessors that are free
  // first.
  Shape placed = shape;
  if (tiles <= shape.alone) placed.shared_bytes = device.shared_bytes;
  const Launch launch(placed, int(at_once * shape.blocks), stream, device.bulk_copies);
  return cudaLaunchKernelEx(&launch.config, kernel->run, SequenceArgs{cell, call, shape.blocks, int32_t(at_once)});
}

}  // namespace lowbit::cuda::gru
