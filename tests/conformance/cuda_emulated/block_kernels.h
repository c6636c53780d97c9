#pragma once
// The kernels of src/kernels/cuda/block/, their own source, compiled for the host and run on fibers. For one
// translation unit of a program, in which `cuda` is another name: the library's namespace holds what nvcc made of them.

#include "tests/conformance/cuda_emulated/block_fibers.h"
// Behind it: the kernels' translation units as they are; kernels/cuda/elements.cuh is this folder's.
#include "tests/conformance/cuda_emulated/device_of_fibers.h"

namespace {

/// Device memory of kernels is host memory here.
cudaError_t copy_on_fibers(void* to, const void* from, size_t bytes) {
  std::copy_n(static_cast<const char*>(from), bytes, static_cast<char*>(to));
  return cudaSuccess;
}

}  // namespace

#define cudaMemcpyAsync(to, from, bytes, kind, stream) copy_on_fibers(to, from, bytes)
// One after the other: each has an unnamed namespace with the same constants.
#include "kernels/cuda/block/matmul.cu"
#define kThreads kGramThreads
#include "kernels/cuda/block/gram.cu"
#undef kThreads
#define kThreads kRowThreads
#include "kernels/cuda/block/rows.cu"
#undef kThreads
#include "kernels/cuda/block/attention.cu"
#include "kernels/cuda/block/attention_codes.cu"
#include "kernels/cuda/block/attention_packed.cu"
#include "kernels/cuda/block/attention_packed_span.cu"
#include "kernels/cuda/block/attention_prompt.cu"
#include "kernels/cuda/block/attention_step.cu"
#include "kernels/cuda/block/attention_tensor_step.cu"
#include "kernels/cuda/block/attention_tensor_stream.cu"
#include "kernels/cuda/block/attention_tensor_tiles.cu"
#include "kernels/cuda/block/change_logits.cu"
#include "kernels/cuda/block/exact_products.cu"
#include "kernels/cuda/block/feed_tokens.cu"
#include "kernels/cuda/block/flat_codes.cu"
#include "kernels/cuda/block/halves.cu"
#include "kernels/cuda/block/norm_codes.cu"
#include "kernels/cuda/block/pack_pages.cu"
#include "kernels/cuda/block/row_codes.cu"
#include "kernels/cuda/block/sample.cu"
#include "kernels/cuda/half_step.cu"
// Behind it: both are on sample.cuh.
#include "kernels/cuda/block/logprobs.cu"
#include "kernels/cuda/block/steps.cu"
#include "kernels/cuda/block/table.cu"
