// The keyed table: one row per kernel, format and kind of activations, better ones first.

#include <algorithm>
#include <string>
#include <string_view>

#include "base/checked.h"
#include "format/formats.h"
#include "format/registry.h"
#include "kernels/cuda/bit_step.h"
#include "kernels/cuda/generic.h"
#include "kernels/cuda/integer_gemv.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/tensor_matmul.h"
#include "kernels/cuda_api.h"
#include "kernels/kernel_name.h"

namespace lowbit::cuda {

// Defined in integer_gemv.cu.
template <int B>
cudaError_t launch_integer_gemv(const GemvArgs& a, bool grouped, bool overlap, cudaStream_t stream);
template <int B>
bool gemv_fits(int k, int groups);
cudaError_t launch_counted_gemv(const GemvArgs& a, bool overlap, cudaStream_t stream);
bool counted_gemv_fits(int k);

namespace {

cudaStream_t as_stream(void* handle) { return static_cast<cudaStream_t>(handle); }

constexpr int64_t kLargestExtent = int64_t{1} << 30;

// ---- Integer GEMV

/// Field width of a format in the order of integer_gemv.h: the least of 1, 2, 4, 8 that holds its alphabet.
template <class F>
constexpr int kGemvBits = [] {
  int step = 1;
  if constexpr (F::Codec::kAffine) step = F::Codec::kMul;
  const int largest = (F::Codec::kMax - F::Codec::kMin) / step;
  return largest <= 1 ? 1 : largest <= 3 ? 2 : largest <= 15 ? 4 : 8;
}();

template <class F>
constexpr int kGemvMul = [] {
  if constexpr (F::Codec::kAffine) return F::Codec::kMul;
  return 1;
}();
template <class F>
constexpr int kGemvAdd = [] {
  if constexpr (F::Codec::kAffine) return F::Codec::kAdd;
  return F::Codec::kMin;
}();

template <int B>
const char* gemv_refuses(const MatmulShape& s) {
  if (s.exact_scales) return "exact scales of x";
  if (s.n > kLargestExtent || s.k > kLargestExtent) return "extents over 2^30";
  if (s.groups > 1) {
    const int64_t blocks = s.group / 32;
    if (s.group % 32 != 0 || (blocks & (blocks - 1)) != 0) return "groups that are not 32, 64, 128, ... columns";
  }
  if (!gemv_fits<B>(static_cast<int>(s.k), static_cast<int>(s.groups))) return "more columns than shared memory holds";
  return "";
}

template <int B>
int64_t gemv_row_bytes(int64_t k) {
  return std::max<int64_t>(1, ceil_div(k, GemvOrder<B>::kColumns)) * kBlockBytes;
}

/// Values that the kernel for one token takes with codes of two bits that are counted.
template <class F>
constexpr bool kCountable = F::Codec::kMax - F::Codec::kMin == 2 && kGemvBits<F> == 2;

const char* counted_refuses(const MatmulShape& s) {
  if (s.n > kLargestExtent || s.k > kLargestExtent) return "extents over 2^30";
  if (s.groups > 1) return "scales per group";
  return counted_gemv_fits(static_cast<int>(s.k)) ? "" : "more columns than the warps of a thread block share";
}

template <class F, bool kCounted>
Status gemv_relayout(const uint8_t* from, int64_t stride, int64_t rows, int64_t k, uint8_t* to, void* stream) {
  constexpr int kBits = kGemvBits<F>;
  return check_cuda(launch_relayout(F::kId, kBits, kGemvMul<F>, kGemvAdd<F>, kCounted, from, stride, rows, k, to,
                                    gemv_row_bytes<kBits>(k), as_stream(stream)),
                    "matmul relayout");
}

int64_t no_workspace(const MatmulShape&, Element) { return 0; }

template <class F, bool kCounted>
Status gemv_run(const Matmul& call) {
  const Weight& w = call.w;
  GemvArgs a{};
  a.codes = w.codes;
  a.scales = w.scales;
  a.offsets = w.offsets;
  a.bias = call.bias;
  a.x = call.x;
  a.x_scales = call.x_scales;
  a.y = call.y;
  a.ldx = call.ldx;
  a.ldy = call.ldy;
  a.n = static_cast<int>(w.n);
  a.factor_rows = static_cast<int>(factor_rows(w.n));
  a.k = static_cast<int>(w.k);
  a.m = static_cast<int>(call.m);
  a.groups = static_cast<int>(w.groups);
  a.groups_per_scale = static_cast<int>(w.groups_per_scale);
  for (int64_t columns = 32; w.groups > 1 && columns < w.group; columns *= 2) ++a.group_shift;
  if (w.groups <= 1) a.group_shift = 26;  // one group, however long
  a.mul = kGemvMul<F>;
  a.add = kGemvAdd<F>;
  a.x_groups = call.x_groups;
  a.x_element = call.x_element;
  a.y_element = call.y_element;
  if constexpr (kCounted) return check_cuda(launch_counted_gemv(a, call.overlap, as_stream(call.stream)), "matmul");
  return check_cuda(launch_integer_gemv<kGemvBits<F>>(a, w.groups > 1, call.overlap, as_stream(call.stream)), "matmul");
}

// ---- Tensor cores

template <FormatId kId, Activation kX>
struct Tensor {
  static const char* refuses(const MatmulShape& s) { return tensor_refuses(kId, kX, s); }
  static int64_t row_bytes(int64_t k) { return tensor_row_bytes(kId, kX, k); }
  static Status relayout(const uint8_t* from, int64_t stride, int64_t rows, int64_t k, uint8_t* to, void* stream) {
    return tensor_relayout(kId, kX, from, stride, rows, k, to, stream);
  }
  static int64_t workspace(const MatmulShape& s, Element x) { return tensor_workspace(kX, s, x); }
  static Status run(const Matmul& call) { return tensor_run(kId, kX, call); }
  static int32_t instance(const MatmulShape& s) { return tensor_instance(kId, kX, s); }
  static std::string name(const MatmulShape& s, int32_t instance) { return tensor_instance_name(kId, kX, s, instance); }
};

// ---- Fallback

const char* generic_refuses(const MatmulShape& s) { return s.k > kLargestExtent ? "more than 2^30 columns" : ""; }

template <class F>
int64_t generic_row_bytes(int64_t k) {
  return round_up(ceil_div(k, F::kElems) * F::kPackBytes, 16);
}
template <int kBytes>
int64_t dense_row_bytes(int64_t k) {
  return round_up(k * kBytes, 16);
}

template <FormatId kId, int64_t (*kRowBytes)(int64_t)>
Status generic_relayout(const uint8_t* from, int64_t stride, int64_t rows, int64_t k, uint8_t* to, void* stream) {
  const auto width = static_cast<size_t>(std::min(row_bytes(kId, k), stride)),
             to_stride = static_cast<size_t>(kRowBytes(k));
  if (rows == 0 || width == 0) return {};
  if (auto s = check_cuda(cudaMemsetAsync(to, 0, to_stride * static_cast<size_t>(rows), as_stream(stream)),
                          "matmul relayout");
      !s)
    return s;
  return check_cuda(cudaMemcpy2DAsync(to, to_stride, from, static_cast<size_t>(stride), width,
                                      static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, as_stream(stream)),
                    "matmul relayout");
}

/// int8 activations that come as floats are quantized into the workspace: codes, then scales.
struct QuantizedWorkspace {
  int64_t ldq, scales_at, bytes;
};
QuantizedWorkspace quantized_workspace(int64_t m, int64_t k, int64_t scales) {
  const int64_t ldq = round_up(std::max<int64_t>(k, 1), 64), at = round_up(m * ldq, 256);
  return {ldq, at, at + 4 * m * scales};
}
int64_t generic_workspace(const MatmulShape& s, Element x) {
  return x == Element::kInt8 ? 0 : quantized_workspace(s.m, s.k, s.x_groups ? s.groups : 1).bytes;
}

template <FormatId kId, bool kInt8>
Status generic_run(const Matmul& call) {
  GenericArgs a = {call.w, call.bias, call.x, call.x_element, call.x_scales, call.x_groups,
                   call.m, call.ldx,  call.y, call.y_element, call.ldy};
  const auto stream = as_stream(call.stream);
  if (kInt8 && call.x_element != Element::kInt8) {
    const auto at = quantized_workspace(call.m, call.w.k, call.x_groups ? call.w.groups : 1);
    auto* const codes = reinterpret_cast<int8_t*>(call.workspace);
    auto* const scales = reinterpret_cast<float*>(call.workspace + at.scales_at);
    if (auto s = check_cuda(
            launch_quantize(call.x, call.x_element, call.m, call.w.k, call.ldx, call.x_groups ? call.w.group : 0,
                            call.exact_scales, codes, at.ldq, scales, call.overlap, stream),
            "quantize activations");
        !s)
      return s;
    a.x = codes;
    a.x_element = Element::kInt8;
    a.ldx = at.ldq;
    a.x_scales = scales;
  }
  return check_cuda(launch_generic(kId, kInt8, a, stream), "matmul");
}

// ---- Names

template <class F>
constexpr KernelName kGemvName = matmul_name(F::kName, Activation::kInt8, "cuda_gemv16x8");
template <class F>
constexpr KernelName kCountedName = matmul_name(F::kName, Activation::kInt8, "cuda_gemv16x1");
template <class F, Activation kX>
constexpr KernelName kTensorName = matmul_name(F::kName, kX, "cuda_tensor");
template <class F>
constexpr KernelName kGenericInt8Name = matmul_name(F::kName, Activation::kInt8, "cuda_warp");
template <class F>
constexpr KernelName kGenericFloatName = matmul_name(F::kName, Activation::kF32, "cuda_warp");

constexpr const char *kGemvDoc = "docs/kernels.md#cuda-integer-gemv", *kTensorDoc = "docs/kernels.md#cuda-tensor-cores",
                     *kGenericDoc = "docs/kernels.md#cuda-fallback";

template <class F>
void add_gemv(std::vector<MatmulKernel>& all) {
  if constexpr (F::Codec::kKind == CodecKind::kInteger) {
    constexpr int kBits = kGemvBits<F>;
    if constexpr (kCountable<F>)
      all.push_back({kCountedName<F>.text, kGemvDoc, F::kId, Activation::kInt8, 1, kTileRows, &counted_refuses,
                     &gemv_row_bytes<2>, &gemv_relayout<F, true>, &no_workspace, &gemv_run<F, true>});
    all.push_back({kGemvName<F>.text, kGemvDoc, F::kId, Activation::kInt8, kMaxGemvRows, kTileRows,
                   &gemv_refuses<kBits>, &gemv_row_bytes<kBits>, &gemv_relayout<F, false>, &no_workspace,
                   &gemv_run<F, false>});
  }
}
template <class F, Activation kX>
void add_tensor(std::vector<MatmulKernel>& all) {
  using T = Tensor<F::kId, kX>;
  if (tensor_has(F::kId, kX))
    all.push_back({kTensorName<F, kX>.text, kTensorDoc, F::kId, kX, 0, static_cast<int>(factor_rows(1)), &T::refuses,
                   &T::row_bytes, &T::relayout, &T::workspace, &T::run, &T::instance, &T::name});
}
template <class F>
void add_generic(std::vector<MatmulKernel>& all) {
  constexpr auto kRowBytes = &generic_row_bytes<F>;
  all.push_back({kGenericInt8Name<F>.text, kGenericDoc, F::kId, Activation::kInt8, 0, 1, &generic_refuses, kRowBytes,
                 &generic_relayout<F::kId, kRowBytes>, &generic_workspace, &generic_run<F::kId, true>});
  all.push_back({kGenericFloatName<F>.text, kGenericDoc, F::kId, Activation::kF32, 0, 1, &generic_refuses, kRowBytes,
                 &generic_relayout<F::kId, kRowBytes>, &no_workspace, &generic_run<F::kId, false>});
}
template <FormatId kId, int kBytes>
void add_dense(std::vector<MatmulKernel>& all, const char* name) {
  constexpr auto kRowBytes = &dense_row_bytes<kBytes>;
  all.push_back({name, kGenericDoc, kId, Activation::kF32, 0, 1, &generic_refuses, kRowBytes,
                 &generic_relayout<kId, kRowBytes>, &no_workspace, &generic_run<kId, false>});
}

template <class... F>
std::vector<MatmulKernel> make_kernels(TypeList<F...>) {
  std::vector<MatmulKernel> all;
  (add_tensor<F, Activation::kInt8>(all), ...);
  (add_tensor<F, Activation::kF32>(all), ...);
  add_tensor<Trellis2, Activation::kInt8>(all);  // beside these formats; all other kernels take what it expands to
  (add_gemv<F>(all), ...);
  (add_generic<F>(all), ...);
  add_dense<FormatId::kF32, 4>(all, "matmul_f32_af32__cuda_warp");
  add_dense<FormatId::kF16, 2>(all, "matmul_f16_af32__cuda_warp");
  add_dense<FormatId::kBf16, 2>(all, "matmul_bf16_af32__cuda_warp");
  return all;
}

}  // namespace

const std::vector<MatmulKernel>& matmul_kernels() {
  static const std::vector<MatmulKernel> all = make_kernels(RandomAccessFormatList{});
  return all;
}

namespace {

template <class F>
void find_gemv_codes(FormatId format, GemvCodes& codes) {
  if constexpr (F::Codec::kKind == CodecKind::kInteger)
    if (F::kId == format) codes = {kGemvBits<F>, kGemvMul<F>, kGemvAdd<F>};
}
template <class... F>
GemvCodes find_gemv_codes(FormatId format, TypeList<F...>) {
  GemvCodes codes;
  (find_gemv_codes<F>(format, codes), ...);
  return codes;
}

}  // namespace

GemvCodes gemv_codes(const MatmulKernel& kernel) {
  if (!std::string_view(kernel.name).ends_with("__cuda_gemv16x8")) return {};
  return find_gemv_codes(kernel.format, RandomAccessFormatList{});
}

Status quantize_activations(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, int64_t group,
                            bool exact_scales, int8_t* codes, int64_t ldq, float* scales, void* stream) {
  return check_cuda(
      launch_quantize(x, element, m, k, ldx, group, exact_scales, codes, ldq, scales, true, as_stream(stream)),
      "quantize activations");
}

}  // namespace lowbit::cuda
