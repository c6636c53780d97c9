#pragma once
// A GRU cell as the kernels of this folder see it, and their launchers. Units are in groups of 16: group g holds units
// 16 g .. 16 g + 15, row i of its matrix tile is unit 16 g + 2 i for i < 8, else 16 g + 2 (i - 8) + 1, so that a lane's
// two results are neighbours in memory.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda_gru_api.h"

namespace lowbit::cuda::gru {

constexpr int kGroup = 16;       // units
constexpr int kStepK = 32;       // columns of one matrix instruction
constexpr int kTileBytes = 512;  // 16 rows x 32 columns of weights, 16 bytes a lane
constexpr int kMaxWarps = 8;
constexpr int kSmallTable = 4096;  // entries that fit shared memory

/// The type of numbers that gates and state are computed in. kF32 and kF64 where the plan has proved that nothing is
/// rounded but by rs(); kInt64: only in the plain kernels.
enum class Number : uint8_t { kF32, kF64, kInt64 };

/// Columns / 32 of R, of `ksteps`, that a warp keeps in registers; the others lie in shared memory. Up to half of a
/// lane's registers; none behind the last but in clusters, so that a kernel needs no branch.
constexpr LOWBIT_HD int ksteps_in_registers(Number number, GruPath path, int tiles8, bool resident, int ksteps,
                                            int split) {
  if (split == 2) return tiles8 == 2 ? 10 : 8;
  if (number != Number::kF32 || !resident || tiles8 > 2 || path == GruPath::kGrid) return 0;
  if (path == GruPath::kBlock) return ksteps <= 2 ? 2 : 4;
  return tiles8 == 1 ? 8 : 4;
}

/// Unit of row `row` of a group's tile.
constexpr LOWBIT_HD int unit_of_row(int row) { return row < 8 ? 2 * row : 2 * (row - 8) + 1; }

/// One product's weights. Rows of bias and shift: gate * padded + unit.
struct Product {
  // [3][groups][ksteps] (W) or [groups][ksteps][3] (R) tiles; null: weights of over 8 bits
  const uint8_t* tiles = nullptr;
  const int32_t* plain = nullptr;  // [3H, K], only for plain kernels
  const int64_t* bias = nullptr;   // with lo * sum of the row, for offset codes
  const int32_t* shift = nullptr;
  int32_t k = 0, ksteps = 0;  // ksteps is even
  int32_t limbs = 1;
  int32_t low = 0, high = 0;  // of the centered result
  int32_t narrow = 0;         // sums fit int32
  int32_t small = 0;          // sums are below 2^22, their right shifts at most 22
  int32_t exact = 0;          // sums with and without their bias, and biases, are below 2^24
};

struct Table {
  const uint16_t* data = nullptr;  // [entries] outputs minus lo by the input's offset code
  int32_t entries = 0;
};

struct Cell {
  int32_t h = 0, groups = 0, padded = 0;  // padded: 16 * groups
  GruGrid grid[kGruSlots];
  Product x, r;
  Table table[3];
  int32_t ih_bytes = 1;   // of a code of ih: 1 or 2
  int32_t ih_stride = 0;  // codes of a row of ih: 3 * padded
};

/// Where sequences lie; device pointers.
struct Call {
  GruSequences s;
  uint8_t* ih = nullptr;        // [rows][3][padded] offset codes
  uint8_t* shared_h = nullptr;  // kGrid: [tiles at once][2][planes][tile][h_stride]; kSteps: two states of uint16
  uint32_t* flags = nullptr;    // kGrid: [tiles at once][blocks of a tile, or warps]; the input product sets them to 0
  int32_t flag_count = 0;
};

/// How a launch of the steps is laid out.
struct Shape {
  GruPath path = GruPath::kSteps;
  int warps = 1, blocks = 1;  // of a tile
  int split = 1;              // warps of a group of units: 2 share its columns
  int tiles8 = 1;             // sequences of a tile / 8
  int at_once = 1;            // tiles that run at the same time
  bool resident = true;       // weights in shared memory
  Number number = Number::kF32;
  bool single = false;  // tiles of one sequence: a lane has one unit
  int shared_bytes = 0;
  int alone = 0;  // clusters in f32: tiles that run at the same time when no two blocks share a multiprocessor
};

/// Fills `cell` and returns the bytes that it refers to; its pointers are offsets into them until point_into().
std::vector<uint8_t> pack_cell(const GruSpec& spec, bool matrix_input, bool matrix_state, Cell& cell);
void point_into(Cell& cell, const uint8_t* base);
/// The cheapest numbers that are exact for a cell.
Number number_of(const GruSpec& spec);

int h_stride(const Cell& cell);  // bytes of a row of h in shared memory
int shared_bytes_of(const Cell& cell, const Shape& shape);

cudaError_t launch_input(const Cell& cell, const Call& call, cudaStream_t stream);
/// The input product with copies by tensor maps, for one plane of x and sums in int32 (input_wgmma.cu).
/// has_input_boxes: compute capability 9.0, and as many tiles as multiprocessors unless `skinny_too`.
cudaError_t launch_input_boxes(const Cell& cell, const Call& call, cudaStream_t stream);
bool has_input_boxes(const Cell& cell, int64_t rows, bool skinny_too);
cudaError_t launch_input_plain(const Cell& cell, const Call& call, cudaStream_t stream);
cudaError_t launch_steps_plain(const Cell& cell, const Call& call, cudaStream_t stream);
cudaError_t launch_sequences(const Cell& cell, const Call& call, const Shape& shape, cudaStream_t stream);
/// One sequence per block, the input product too: sequences that run at the same time, 0 when the cell or the device is
/// not for it; and the launch.
int fused_at_once(const Cell& cell, Number number);
cudaError_t launch_fused(const Cell& cell, const Call& call, cudaStream_t stream);
/// Tiles of this shape that fit the device at the same time; 0 when it cannot run there or has no kernel.
int tiles_at_once(const Cell& cell, const Shape& shape);
/// tiles_at_once() when each block has all of a multiprocessor's shared memory.
int tiles_alone(const Cell& cell, const Shape& shape);
/// There is a kernel of this shape for one sequence.
bool has_single(const Cell& cell, const Shape& shape);

cudaError_t launch_encode(const float* x, int64_t rows, int64_t columns, const GruGrid& grid, const GruCodes& out,
                          cudaStream_t stream);
cudaError_t launch_decode(const GruCodes& codes, int64_t rows, int64_t columns, const GruGrid& grid, float* y,
                          cudaStream_t stream);

}  // namespace lowbit::cuda::gru
