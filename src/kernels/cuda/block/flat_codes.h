#pragma once
// Between row_codes.cu, which chooses, and flat_codes.cu.

#include <cuda_runtime_api.h>

#include "kernels/cuda_codes_api.h"

namespace lowbit::cuda {

/// Rows without a norm and without padding, whose groups of 32, of E4M3 128, fill them.
cudaError_t launch_flat_codes(const RowCodes& call, bool overlap);

}  // namespace lowbit::cuda
