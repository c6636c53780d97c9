// Products of decoding steps with int8 activations on fibers against plain loops, bit for bit: needs no GPU.

// A namespace of its own: the program also holds what nvcc made of them.
#define cuda cuda_on_fibers
#include "format/formats.h"
#include "tests/conformance/cuda_emulated/block_fibers.h"
// Behind them: the kernels as they are; kernels/cuda/ptx.cuh is this folder's.
#include "kernels/cuda/bit_step.h"
#include "kernels/cuda/half_step.h"
#include "tests/conformance/cuda_emulated/device_of_fibers.h"

namespace lowbit::cuda {

// Other kernels' steps.
bool takes_bit_step(const StepProducts&) { return false; }
int64_t bit_step_blocks(const StepProducts&) { return 0; }
Status bit_step_products(const StepProducts&) { return {}; }
bool takes_half_step(const StepProducts&) { return false; }
int64_t half_step_blocks(const StepProducts&) { return 0; }
Status half_step_products(const StepProducts&) { return {}; }

cudaError_t launch_products(const cudaLaunchConfig_t& config, const void* kernel, void** list);

}  // namespace lowbit::cuda

#define cudaLaunchKernelExC(config, kernel, list) launch_products(*(config), kernel, list)
#include "kernels/cuda/gemm/schedule/activation_groups_skinny.cc"
#include "kernels/cuda/step_products.cu"

namespace lowbit::cuda {

cudaError_t launch_products(const cudaLaunchConfig_t& config, const void* kernel, void** list) {
  auto* const function = reinterpret_cast<void (*)(ProductArgs)>(const_cast<void*>(kernel));
  return launch(function, config.gridDim, config.blockDim, config.dynamicSmemBytes, config.stream, false,
                *static_cast<const ProductArgs*>(list[0]));
}

}  // namespace lowbit::cuda

#include "tests/conformance/cuda_emulated/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/float_checks.h"
#include "tests/conformance/int8_step_checks.h"

namespace lowbit {
namespace {

TEST(Int8StepsOnFibers, Trellis) { check_int8_step_all(300, 6000, true); }

TEST(Int8StepsOnFibers, LongRows) {  // several shares of a warp
  for (const int64_t m : {1, 3})
    check_int8_step({.m = m, .k = 5000, .group = 128, .n = {20, 33}, .format = FormatId::kTrellis2}, 1);
}

TEST(Int8StepsOnFibers, OtherFormats) { check_int8_step_all(300, 6000, false); }

TEST(Int8StepsOnFibers, ExactScales) { check_int8_step_exact(200, 6000); }

TEST(Int8StepsOnFibers, CodesOfGatedProducts) {
  check_int8_step_codes({128, 192, 640}, {FormatId::kInt2, FormatId::kInt4, FormatId::kCodebook4});
  check_int8_step_codes({320}, {FormatId::kTrellis2});
}

}  // namespace
}  // namespace lowbit
