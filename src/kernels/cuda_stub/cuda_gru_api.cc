// Stands in for kernels/cuda/gru where there is no CUDA toolkit.

#include "kernels/cuda_gru_api.h"

namespace lowbit::cuda {
namespace {

tl::unexpected<Error> not_built() {
  return fail(ErrorCode::kUnsupported, "CUDA", "a build without it", "", "build on a machine with nvcc");
}

}  // namespace

struct GruDeviceCell::Impl {};

int64_t gru_codes_bytes(const GruGrid&, int64_t, int64_t, GruCodes&) { return 0; }
const char* gru_path_name(GruPath) { return ""; }
Result<GruDeviceCell> GruDeviceCell::make(const GruSpec&, const GruCellOptions&) { return not_built(); }
int64_t GruDeviceCell::workspace_bytes(int64_t, int64_t) const { return 0; }
Status GruDeviceCell::run(const GruSequences&) const { return not_built(); }
std::string GruDeviceCell::kernel(int64_t) const { return ""; }
int64_t GruDeviceCell::device_bytes() const { return 0; }
Status gru_encode(const float*, int64_t, int64_t, const GruGrid&, const GruCodes&, void*) { return not_built(); }
Status gru_decode(const GruCodes&, int64_t, int64_t, const GruGrid&, float*, void*) { return not_built(); }

}  // namespace lowbit::cuda
