// Stands in for kernels/cuda where there is no CUDA toolkit: no devices, no kernels, and an error for each call.

#include "kernels/cuda_api.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_change_api.h"
#include "kernels/cuda_codes_api.h"
#include "kernels/cuda_fp8_api.h"
#include "kernels/cuda_gru_api.h"
#include "kernels/cuda_halves_api.h"
#include "kernels/cuda_logprob_api.h"
#include "kernels/cuda_matmul_api.h"
#include "kernels/cuda_memory_api.h"
#include "kernels/cuda_operators_api.h"
#include "kernels/cuda_packed_api.h"
#include "kernels/cuda_product_api.h"
#include "kernels/cuda_row_products_api.h"
#include "kernels/cuda_sample_api.h"
#include "kernels/cuda_step_api.h"
#include "kernels/cuda_table_api.h"

namespace lowbit::cuda {
namespace {

tl::unexpected<Error> not_built() {
  return fail(ErrorCode::kUnsupported, "device cuda", "a build without CUDA", "", "build where nvcc is installed");
}

}  // namespace

bool built() { return false; }
std::vector<DeviceInfo> devices() { return {}; }
Status use_device(int) { return not_built(); }
Result<int64_t> free_memory() { return not_built(); }
Result<Buffer> allocate(int64_t, const char*) { return not_built(); }
Result<Buffer> allocate_pinned(int64_t, const char*) { return not_built(); }
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
Status quantize_activations(const void*, Element, int64_t, int64_t, int64_t, int64_t, bool, int8_t*, int64_t, float*,
                            void*) {
  return not_built();
}
int64_t binary_tile_bytes(int64_t, int64_t) { return 0; }
Status binary_relayout(const uint8_t*, int64_t, int64_t, int64_t, uint8_t*, int32_t*, void*) { return not_built(); }
Status binarize_activations(const void*, Element, int64_t, int64_t, int64_t, uint8_t*, float*, int32_t*, void*) {
  return not_built();
}
Status binary_matmul(const BinaryMatmul&) { return not_built(); }
Status quantized_mm(int, const QuantizedMm&) { return not_built(); }

Status int8_rows(const Int8Rows&, void*) { return not_built(); }
Status int2_product(const Int2Product&, void*) { return not_built(); }
Status bit_rows(const BitRows&, void*) { return not_built(); }
Status bit_product(const BitProduct&, void*) { return not_built(); }

Status quantize_fp8(const Fp8Quant&, void*) { return not_built(); }
Status dequantize_fp8(const Fp8Dequant&, void*) { return not_built(); }
Status gemm_fp8(const Fp8Gemm&, void*, const Fp8GemmUse&) { return not_built(); }
Status grouped_gemm_fp8(const Fp8Gemm&, const Fp8Groups&, void*) { return not_built(); }
Status gemm_fp8_by_mma(const Fp8Gemm&, const Fp8Groups&, Fp8Cores, void*) { return not_built(); }

Status f32_matmul(const F32Matmul&) { return not_built(); }
bool takes_exact_products(const ExactProducts&) { return false; }
Status exact_products(const ExactProducts&) { return not_built(); }
int64_t gram_workspace_bytes(int64_t, int64_t, int64_t, int64_t) { return 0; }
Status add_gram(const AddGram&) { return not_built(); }
Status finish_gram(const double*, int64_t, int64_t, double, float*, void*) { return not_built(); }
Status norm_rows(const float*, const float*, int64_t, int64_t, float, float*, void*) { return not_built(); }
Status gate_rows(float*, const float*, int64_t, void*) { return not_built(); }
Status squared_relu_rows(float*, const float*, int64_t, void*) { return not_built(); }
Status hadamard_rows(float*, int64_t, int64_t, int64_t, float, void*) { return not_built(); }
Status add_rows(const float*, int64_t, float*, void*) { return not_built(); }
Status subtract_rows(const float*, int64_t, float*, void*) { return not_built(); }
Status copy_floats(const float*, int64_t, float*, void*) { return not_built(); }
Status find_non_finite(const float*, int64_t, uint64_t, uint64_t*, void*) { return not_built(); }

bool takes_step_products(const StepProducts&) { return false; }
bool leaves_codes(const StepProducts&) { return false; }
int64_t step_product_blocks(const StepProducts&) { return 0; }
Status step_products(const StepProducts&) { return not_built(); }

bool takes_row_products(const MatmulKernel&, std::span<const Matmul>) { return false; }
bool streams_rows(const MatmulKernel&, const Matmul&) { return false; }
Status row_products(const MatmulKernel&, std::span<const Matmul>) { return not_built(); }

Status rotate_and_store(const StoreRows&) { return not_built(); }
Status attend_pages(const AttendPages&) { return not_built(); }
Status attend_step(const AttendStep&) { return not_built(); }
bool has_attend_step(const AttendPages&) { return false; }
Status rotate_transform_and_store(const StoreTransformed&) { return not_built(); }
Status pack_pages(const PackPages&) { return not_built(); }
Status attend_packed(const AttendPacked&) { return not_built(); }
bool is_fast_packed(const AttendPacked&) { return false; }
bool has_fast_packed(int, int, int64_t) { return false; }
Status gather_rows(const float*, const int32_t*, int64_t, int64_t, float*, void*) { return not_built(); }
Status table_rows(const TableRows&) { return not_built(); }
Status norm_codes(const NormCodes&) { return not_built(); }
bool has_norm_codes(int64_t) { return false; }
bool takes_row_codes(const RowCodes&) { return false; }
Status row_codes(const RowCodes&) { return not_built(); }
Status round_rows(const RoundRows&) { return not_built(); }
Status clip_rows(const float*, int64_t, int64_t, int64_t, float*, void*) { return not_built(); }
Status halve_rows(const HalveRows&) { return not_built(); }
Status feed_tokens(const FeedTokens&) { return not_built(); }
Status round_to_halves(const float*, int64_t, bool, float*, void*) { return not_built(); }
Status upload_on(void*, void*, const void*, int64_t) { return not_built(); }
Status download_on(void*, void*, const void*, int64_t) { return not_built(); }
Status copy_on(void*, void*, const void*, int64_t) { return not_built(); }

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

Status choose_tokens(const ChooseTokens&) { return not_built(); }
int64_t choose_scratch_bytes(int64_t) { return 0; }
Status sum_logprobs(const Logprobs&) { return not_built(); }
Status report_chosen(const Logprobs&, const ChosenToken*) { return not_built(); }
int64_t logprob_scratch_bytes(int64_t, int64_t) { return 0; }
Status change_logits(const ChangeLogits&) { return not_built(); }
Status refuse_forbidden(const ChangeLogits&, ChosenToken*) { return not_built(); }

}  // namespace lowbit::cuda
