#pragma once
// The contract between src/gru/ and the GRU kernels of the GPU; no CUDA types. kernels/cuda/gru/ implements it,
// kernels/cuda_stub/ stands in for it without a toolkit. Meaning: kernels/ref/gru.cc, bit for bit.

#include <cstdint>
#include <memory>

#include "kernels/cuda_api.h"
#include "kernels/gru_api.h"

namespace lowbit::cuda {

/// Offset codes q - lo in device memory: one plane of bytes for formats up to 8 bits, else two, low bytes first.
/// Element (row, column) of plane p at data + p * plane_bytes + row * stride + column; plane_bytes and stride are
/// multiples of 16 and data is aligned to 16. What lies between the columns and the stride is never used but must be
/// readable.
struct GruCodes {
  uint8_t* data = nullptr;
  int64_t stride = 0, plane_bytes = 0;
};
constexpr int gru_planes(const GruGrid& g) { return g.hi - g.lo > 255 ? 2 : 1; }
/// Stride and plane_bytes for `rows` rows of `columns` codes; returns the bytes of all planes.
int64_t gru_codes_bytes(const GruGrid& grid, int64_t rows, int64_t columns, GruCodes& layout);

/// How the steps run. kFused: a sequence in a thread block that also computes its input product (small cells). kBlock:
/// a tile of sequences in one thread block. kCluster: in a cluster whose blocks pass h around through distributed
/// shared memory (compute capability 9). kGrid: in thread blocks that pass it through global memory. kSteps: one launch
/// per step, any widths. Except for kSteps one launch runs all steps.
enum class GruPath : uint8_t { kAuto, kFused, kBlock, kCluster, kGrid, kSteps };
const char* gru_path_name(GruPath path);  // "auto", "fused", "block", "cluster", "grid", "steps"

struct GruCellOptions {
  GruPath path = GruPath::kAuto;  // others: for tests; kUnsupported where the cell or the device does not allow it
  int tile = 0;                   // sequences of a tile: 8, 16, 24 or 32; 0: as many as keep the device busy
  int warps = 0;                  // of a thread block; 0: chosen
  int split = 0;                  // warps of 16 units: 1, or 2 that share the columns; 0: chosen
  bool input_boxes = false;       // the input product that is for many rows, however few there are
};

/// One direction of one layer over whole sequences.
struct GruSequences {
  int64_t steps = 0, batch = 0;
  bool batch_first = false;         // row of step t of sequence n: n * steps + t; else t * batch + n
  bool reverse = false;             // starts at each sequence's own end
  const int32_t* order = nullptr;   // device [batch]: sequences, longest first
  const int32_t* length = nullptr;  // device [batch]: their lengths
  GruCodes x;                       // [steps * batch, C]
  GruCodes y;                       // [steps * batch, .]; rows behind a sequence's end stay as they are
  int64_t y_column = 0;             // where this cell's H columns begin
  uint16_t* state = nullptr;        // device [batch, H] offset codes by `order`; becomes the final state
  uint8_t* workspace = nullptr;     // workspace_bytes(), aligned to 256
  void* stream = nullptr;
};

/// A cell's weights and tables in device memory. Immutable; copies share it. It stays on the device that was current.
class GruDeviceCell {
 public:
  /// Errors: kUnsupported (no GPU, a path that cannot be), kOutOfMemory.
  static Result<GruDeviceCell> make(const GruSpec& spec, const GruCellOptions& options = {});
  int64_t workspace_bytes(int64_t steps, int64_t batch) const;
  /// Enqueues work and returns; may be captured into a graph.
  Status run(const GruSequences& call) const;
  /// The path that `batch` sequences take, with its tile: "cluster4x4_t8" is 4 blocks of 4 warps, tiles of 8 sequences.
  std::string kernel(int64_t batch) const;
  int64_t device_bytes() const;

  struct Impl;

 private:
  explicit GruDeviceCell(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// clamp(rint(v 2^shift) + zp) - lo of x [rows, columns] in device memory; NaN gives the zero point.
Status gru_encode(const float* x, int64_t rows, int64_t columns, const GruGrid& grid, const GruCodes& out,
                  void* stream);
/// (q - zp) 2^-shift, to y [rows, columns]; and the codes q themselves.
Status gru_decode(const GruCodes& codes, int64_t rows, int64_t columns, const GruGrid& grid, float* y, void* stream);

}  // namespace lowbit::cuda
