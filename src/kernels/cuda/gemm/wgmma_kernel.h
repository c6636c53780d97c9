#pragma once
// What the launcher knows of an instance of the sm_90a pipeline; the tables are filled by the gemm_wgmma_*.cu files.

#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

/// Tiles of one scale per row and two bits sum fewer columns than this (row_sum() in fragments.cuh).
inline constexpr int kSmallSumColumns = 16384;

/// Rows of x of the narrow tiles that fill a last wave, where there is one scale per row.
inline constexpr int kNarrowRows = 96;

/// In WgmmaKernel::fold: gemm_deep.cuh, one block or two for a tile.
inline constexpr int kDeepFold = 7, kDeepPairFold = 8;

struct WgmmaKernel {
  const void* function;
  const char* name;  // <isa>_<tile> of docs/kernels.md
  int threads, bm, tile_units;
  int fold;          // Fold: 0 one group only; 1, 3 groups are whole units of K; 2 half units; or SliceSums
  int shared_bytes;  // without parts; of a slice: SliceCut
  int pair_bytes;    // of two sums of every lane, in a part behind shared_bytes; 0: K cannot be cut
  int pairs;         // of a lane
  int blocks_per_processor;
};

inline bool is_deep(const WgmmaKernel& kernel) { return kernel.fold >= kDeepFold; }

/// One row per (activation, stored bits); ascending bm.
struct WgmmaTable {
  GemmActivation activation;
  int bits;
  const WgmmaKernel* kernels;
  int count;
};

extern const WgmmaTable kWgmmaInt8Bits2, kWgmmaInt8Bits4, kWgmmaInt8Bits8, kWgmmaBits;
extern const WgmmaTable kWgmmaF16Bits2, kWgmmaF16Bits4, kWgmmaBf16Bits2, kWgmmaBf16Bits4;

}  // namespace lowbit::cuda
