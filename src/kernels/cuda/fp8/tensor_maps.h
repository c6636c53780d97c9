#pragma once
// Codes of a matrix as the copy engine sees them.

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda::fp8 {

inline int64_t tiles_of(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

/// Boxes of `box_rows` rows by 128 codes; zeros outside.
inline bool make_map(const uint8_t* codes, int64_t rows, int64_t columns, int64_t ld, int box_rows, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[1] = {cuuint64_t(ld)};
  const cuuint32_t box[2] = {128, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  return encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(codes), sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace lowbit::cuda::fp8
