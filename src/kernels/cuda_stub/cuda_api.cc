// Stands in for kernels/cuda where there is no CUDA toolkit: no devices, no kernels, and an error for each call.

#include "kernels/cuda_api.h"

namespace lowbit::cuda {
namespace {

tl::unexpected<Error> not_built() {
  return fail(ErrorCode::kUnsupported, "CUDA", "a build without it", "", "build on a machine with nvcc");
}

}  // namespace

bool built() { return false; }
std::vector<DeviceInfo> devices() { return {}; }
Status use_device(int) { return not_built(); }
Result<Buffer> allocate(int64_t, const char*) { return not_built(); }
Status upload(Buffer&, const void*, int64_t) { return not_built(); }
Status download(void*, const Buffer&, int64_t) { return not_built(); }
Status fill(Buffer&, int) { return not_built(); }
Status synchronize(void*) { return not_built(); }

Result<Stream> Stream::create() { return not_built(); }
Stream::~Stream() { handle_ = nullptr; }
Status Graph::begin(void*) { return not_built(); }
Result<Graph> Graph::end(void*) { return not_built(); }
Graph::~Graph() { handle_ = nullptr; }
Status Graph::launch(void*) const { return not_built(); }
Result<double> Graph::time(void*, int) const { return not_built(); }

const std::vector<MatmulKernel>& matmul_kernels() {
  static const std::vector<MatmulKernel> none;
  return none;
}
Status quantize_activations(const void*, Element, int64_t, int64_t, int64_t, int64_t, int8_t*, int64_t, float*, void*) {
  return not_built();
}
int64_t binary_tile_bytes(int64_t, int64_t) { return 0; }
Status binary_relayout(const uint8_t*, int64_t, int64_t, int64_t, uint8_t*, int32_t*, void*) { return not_built(); }
Status binarize_activations(const void*, Element, int64_t, int64_t, int64_t, uint8_t*, float*, int32_t*, void*) {
  return not_built();
}
Status binary_matmul(const BinaryMatmul&) { return not_built(); }
Status quantized_mm(int, const QuantizedMm&) { return not_built(); }

}  // namespace lowbit::cuda
