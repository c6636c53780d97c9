// A GPU that is the host: the kernels of src/kernels/cuda/block/ on fibers, memory of the host's, streams that run at
// once, and for int8 activations one plain loop in place of all tuned kernels. With it backend/cuda runs whole models
// where there is no GPU. Compiled with another name for the namespace cuda, as all of this program: the library has the
// real one.

#include "tests/conformance/cuda_emulated/block_kernels.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "base/try.h"
#include "format/formats.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_memory_api.h"
#include "kernels/cuda_product_api.h"
#include "kernels/cuda_row_products_api.h"
#include "kernels/kernel_name.h"
#include "kernels/registry.h"
#include "kernels/tables.h"

namespace lowbit::cuda {

bool built() { return true; }
std::vector<DeviceInfo> devices() { return {{"fibers", 8, 0, 4, int64_t{1} << 30}}; }
Status use_device(int index) {
  return index == 0 ? Status{} : fail(ErrorCode::kUnsupported, "CUDA device " + std::to_string(index), "1 usable");
}

int64_t bytes_left = int64_t{1} << 40;  // tests give it less
Result<int64_t> free_memory() { return bytes_left; }

/// Of no more bytes than asked for, and full of what nobody wants to read.
Result<Buffer> allocate(int64_t bytes, const char* what) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (bytes > bytes_left)
    return fail(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes of device memory",
                "at most " + std::to_string(bytes_left) + " free");
  bytes_left -= bytes;
  auto* const memory = static_cast<std::byte*>(std::malloc(size));
  std::memset(memory, 0xcd, size);
  return Buffer::borrow({memory, static_cast<size_t>(bytes)},
                        std::shared_ptr<void>(memory,
                                              [bytes](void* p) {
                                                bytes_left += bytes;
                                                std::free(p);
                                              }),
                        lowbit::Device::kCuda);
}

Status upload(Buffer& to, const void* from, int64_t bytes) { return copy_on(nullptr, to.data(), from, bytes); }
Status download(void* to, const Buffer& from, int64_t bytes) { return copy_on(nullptr, to, from.data(), bytes); }
Status fill(Buffer& to, int value) {
  std::memset(to.data(), value, static_cast<size_t>(to.size()));
  return {};
}
int64_t waits_left = std::numeric_limits<int64_t>::max();  // tests give it less
Status synchronize(void*) {
  return waits_left-- > 0 ? Status{} : fail(ErrorCode::kIo, "CUDA stream", "a failure", "none");
}
Status upload_on(void*, void* to, const void* from, int64_t bytes) { return copy_on(nullptr, to, from, bytes); }
Status download_on(void*, void* to, const void* from, int64_t bytes) { return copy_on(nullptr, to, from, bytes); }
Status copy_on(void*, void* to, const void* from, int64_t bytes) {
  fibers::now_or_recorded([=] {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  });
  return {};
}
Result<Buffer> allocate_pinned(int64_t bytes, const char* what) {
  auto buffer = allocate(bytes, what);
  return Buffer::borrow({buffer->data(), static_cast<size_t>(bytes)}, std::make_shared<Buffer>(*buffer));
}

// A graph is what would have been done meanwhile: arguments are those of the recording, memory is read when it runs.
Status Graph::begin(void*) {
  fibers::recording = new fibers::Recording;
  return {};
}
Result<Graph> Graph::end(void*) { return Graph(std::exchange(fibers::recording, nullptr)); }
Graph::~Graph() { delete static_cast<fibers::Recording*>(handle_); }
Status Graph::launch(void*) const {
  for (const auto& work : *static_cast<fibers::Recording*>(handle_)) work();
  return {};
}
Result<Stream> Stream::create() { return Stream(nullptr); }
Stream::~Stream() { handle_ = nullptr; }

Status quantize_activations(const void* x, Element, int64_t m, int64_t k, int64_t ldx, int64_t group, bool exact_scales,
                            int8_t* codes, int64_t ldq, float* scales, void*) {
  fibers::now_or_recorded([=] {
    const int64_t shared = exact_scales ? 4 : 1, width = shared * (group > 0 ? group : k),
                  groups = (k + width / shared - 1) / (width / shared);
    std::vector<int32_t> sums(static_cast<size_t>(groups));
    for (int64_t r = 0; r < m; ++r) {
      float* const of_row = scales + r * groups;
      ref_table().vector->quantize_groups_int8(static_cast<const float*>(x) + r * ldx, nullptr, 1.0f, k, width, ldq,
                                               exact_scales, codes + r * ldq, of_row, sums.data());
      for (int64_t g = groups - 1; g > 0; --g) of_row[g] = of_row[g / shared];
    }
  });
  return {};
}

namespace {

/// docs/numerics.md, Matmul, as it stands there; `value`: of column k.
template <class Value>
void multiply_row(const Matmul& call, int64_t row, int64_t n, const Value& value) {
  const Weight& w = call.w;
  const auto* const x = static_cast<const int8_t*>(call.x) + row * call.ldx;
  float acc = 0, part = 0, part_x = 0;
  for (int64_t g = 0; g < w.groups; ++g) {
    float sum = 0, sum_x = 0;  // integers that f32 holds
    for (int64_t k = g * w.group; k < std::min(w.k, (g + 1) * w.group); ++k) {
      sum += static_cast<float>(value(k)) * x[k];
      sum_x += x[k];
    }
    const float scale = call.x_groups ? call.x_scales[row * w.groups + g] : 1.0f;
    part = std::fmaf(sum, scale, part);
    part_x = std::fmaf(sum_x, scale, part_x);
    if ((g + 1) % w.groups_per_scale != 0 && g + 1 != w.groups) continue;
    acc = std::fmaf(part, w.scales[g * factor_rows(w.n) + n], acc);
    if (w.offsets != nullptr) acc = std::fmaf(part_x, w.offsets[g * factor_rows(w.n) + n], acc);
    part = part_x = 0;
  }
  const float bias = call.bias == nullptr ? 0.0f : call.bias[n];
  static_cast<float*>(call.y)[row * call.ldy + n] =
      call.x_groups ? acc + bias : std::fmaf(acc, call.x_scales[row], bias);
}

template <class F>
void multiply_all(const Matmul& call) {
  for (int64_t n = 0; n < call.w.n; ++n) {
    const uint8_t* const row = call.w.codes + n * call.w.row_bytes;
    const auto value = [&](int64_t k) {
      const uint8_t* const pack = row + k / F::kElems * F::kPackBytes;
      const int e = static_cast<int>(k % F::kElems);
      if constexpr (F::Codec::kKind == CodecKind::kTable) {
        return call.w.table[F::code_at(pack, e)];
      } else {
        return F::decode(pack, e);
      }
    };
    for (int64_t row_of_x = 0; row_of_x < call.m; ++row_of_x) multiply_row(call, row_of_x, n, value);
  }
}
template <class F>
Status multiply(const Matmul& call) {
  fibers::now_or_recorded([=] { multiply_all<F>(call); });
  return {};
}

template <class F>
int64_t plain_row_bytes(int64_t k) {
  return (k + F::kElems - 1) / F::kElems * F::kPackBytes;
}
template <class F>
Status plain_relayout(const uint8_t* from, int64_t stride, int64_t rows, int64_t k, uint8_t* to, void*) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * plain_row_bytes<F>(k), from + r * stride, size_t(plain_row_bytes<F>(k)));
  return {};
}
const char* refuses_nothing(const MatmulShape&) { return ""; }
int64_t needs_nothing(const MatmulShape&, Element) { return 0; }

template <class F>
constexpr KernelName kPlainName = matmul_name(F::kName, Activation::kInt8, "cuda_warp");

template <class... F>
std::vector<MatmulKernel> plain_kernels(TypeList<F...>) {
  return {MatmulKernel{kPlainName<F>.text, "", F::kId, Activation::kInt8, 0, 1, &refuses_nothing, &plain_row_bytes<F>,
                       &plain_relayout<F>, &needs_nothing, &multiply<F>}...};
}

}  // namespace

const std::vector<MatmulKernel>& matmul_kernels() {
  static const std::vector<MatmulKernel> all = plain_kernels(RandomAccessFormatList{});
  return all;
}

bool takes_row_products(const MatmulKernel&, std::span<const Matmul> calls) {
  return calls.size() > 1 && calls.front().m >= 3 && calls.front().x_groups;
}
bool streams_rows(const MatmulKernel&, const Matmul& call) { return call.m == 2; }
Status row_products(const MatmulKernel& kernel, std::span<const Matmul> calls) {
  for (const Matmul& call : calls) LOWBIT_TRY(kernel.run(call));
  return {};
}

bool takes_step_products(const StepProducts& call) {
  bool takes = call.parts[0].m <= kMostStepRows;
  const bool one = call.rows != nullptr && call.parts[0].m == 1;  // of which codes share a scale
  for (int i = 0; i < call.count; ++i) {
    const Matmul& part = call.parts[size_t(i)];
    takes = takes && (part.x_groups || one) && part.exact_scales == call.parts[0].exact_scales;
    if (part.exact_scales && call.rows != nullptr && part.m > 1) takes = takes && part.w.k % 128 == 0;
  }
  return takes;
}
bool leaves_codes(const StepProducts& call) {
  const Matmul& first = call.parts[0];
  return call.rows != nullptr && first.m == 1 && first.x_groups && !first.exact_scales && first.w.n % 64 == 0 &&
         (call.end == ProductEnd::kSilu || call.end == ProductEnd::kSquaredRelu);
}
int64_t step_product_blocks(const StepProducts& call) { return call.parts[0].w.n / 16 + 1; }

/// By definition: what the launches would do one after the other.
Status step_products(const StepProducts& call) {
  fibers::now_or_recorded([=] {
    const Matmul& first = call.parts[0];
    const int64_t m = first.m, k = first.w.k, ldq = (k + 63) / 64 * 64;
    std::vector<float> x(size_t(m * k)), scales(size_t(m * first.w.groups));
    std::vector<int8_t> codes(size_t(m * ldq));
    const bool whole = call.norm != nullptr && !first.x_groups;
    if (whole) {
      (void)norm_codes({call.rows, call.norm, call.eps, m, k, 0, codes.data(), ldq, scales.data(), nullptr, false});
    } else if (call.norm != nullptr) {
      (void)norm_rows(call.rows, call.norm, m, k, call.eps, x.data(), nullptr);
    } else if (call.rows != nullptr) {
      std::copy_n(call.rows, x.size(), x.data());
    }
    if (call.rows != nullptr && !whole)
      (void)quantize_activations(x.data(), Element::kF32, m, k, k, first.x_groups ? first.w.group : 0,
                                 first.exact_scales, codes.data(), ldq, scales.data(), nullptr);
    std::vector<std::vector<float>> y;
    for (int i = 0; i < call.count; ++i) {
      Matmul part = call.parts[size_t(i)];
      y.emplace_back(size_t(m * part.w.n));
      if (call.rows != nullptr) part.x = codes.data(), part.ldx = ldq, part.x_scales = scales.data();
      part.y = y.back().data();
      part.ldy = part.w.n;
      (void)call.kernel->run(part);
    }
    const auto count = int64_t(y[0].size());
    if (call.end == ProductEnd::kSilu) (void)gate_rows(y[0].data(), y[1].data(), count, nullptr);
    if (call.end == ProductEnd::kSquaredRelu) (void)squared_relu_rows(y[0].data(), y[1].data(), count, nullptr);
    for (int i = 0; i < call.count; ++i) {
      auto* const to = static_cast<float*>(call.parts[size_t(i)].y);
      if (call.end == ProductEnd::kAdd) {
        (void)add_rows(y[size_t(i)].data(), count, to, nullptr);
      } else if (i == 0 || call.end == ProductEnd::kStore) {
        std::ranges::copy(y[size_t(i)], to);
      }
    }
    if (call.y_codes != nullptr)
      (void)quantize_activations(first.y, Element::kF32, 1, first.w.n, first.w.n, 32, false, call.y_codes, first.w.n,
                                 call.y_scales, nullptr);
  });
  return {};
}

}  // namespace lowbit::cuda
