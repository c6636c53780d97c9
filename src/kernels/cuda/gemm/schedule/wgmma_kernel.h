#pragma once
// The launcher's view of an instance of the sm_90a pipeline; the tables are filled by instances/wgmma_*.cu.

#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

/// Tiles of one scale per row and two bits sum fewer columns than this (row_sum() in epilogue.cuh).
inline constexpr int kSmallSumColumns = 16384;

/// Tokens of the narrow tiles that fill a last wave, where there is one scale per row.
inline constexpr int kNarrowRows = 96;

/// In WgmmaKernel::scale_at: gemm_warp_specialized.cuh, one block or two for a tile.
inline constexpr int kSpecialized = 7, kSpecializedPair = 8;

struct WgmmaKernel {
  const void* function;
  const char* name;  // <isa>_<tile> of docs/kernels.md
  int threads, bm, tile_packs;
  int scale_at;      // ScaleAt: 0 one group only; 1, 3 groups are whole blocks of K; 2 half blocks; or SplitKSums
  int shared_bytes;  // without parts; of split-K: SplitKCut
  int pair_bytes;    // of two sums of every lane, in a part behind shared_bytes; 0: K cannot be cut
  int pairs;         // of a lane
  int blocks_per_processor;
};

inline bool is_warp_specialized(const WgmmaKernel& kernel) { return kernel.scale_at >= kSpecialized; }

/// One row per (activation, stored bits); ascending bm.
struct WgmmaTable {
  GemmActivation activation;
  int bits;
  const WgmmaKernel* kernels;
  int count;
};

extern const WgmmaTable kWgmmaInt8Bits2, kWgmmaInt8Bits4, kWgmmaInt8Bits8, kWgmmaBits;
extern const WgmmaTable kWgmmaF16Bits2, kWgmmaF16Bits4, kWgmmaF16Bits8, kWgmmaF16E4m3;
extern const WgmmaTable kWgmmaBf16Bits2, kWgmmaBf16Bits4, kWgmmaBf16Bits8, kWgmmaBf16E4m3;

}  // namespace lowbit::cuda
