// Times the product of FP8 codes in blocks on compute capability 9.0 against cuBLASLt's block-scaled one, in one run:
// answers first, then CUDA graphs that rotate over at least 256 MiB of weights, median of samples. One JSON object a
// line. Usage:
//   lowbit_fp8_gemm_bench [choice | explore | rival | once] [M N K]...
// explore: all tiles, and not only the one that is chosen; rival: cuBLASLt alone, for `lowbit bench fp8 --vs cublaslt`;
// once: a few launches as `choice` times them, scales by column, and nothing else, for a profiler.
// LOWBIT_CUBLASLT=path of libcublasLt.so; without it the rival is left out. Exit 1: a wrong answer; 2: no rival.
#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/float.h"
#include "base/rng.h"
#include "bench/gpu/gemm_timing.h"
#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda_fp8_api.h"

namespace lowbit::cuda {
namespace {

cudaStream_t stream;

template <class T>
struct Memory {
  T* at = nullptr;
  explicit Memory(size_t count) { must(cudaMalloc(&at, count * sizeof(T)), "cudaMalloc"); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(at); }
};

/// Fills `count` elements with copies of a pattern.
template <class T>
void fill(T* to, size_t count, const std::vector<T>& pattern) {
  for (size_t i = 0; i < count; i += pattern.size())
    must(cudaMemcpy(to + i, pattern.data(), std::min(pattern.size(), count - i) * sizeof(T), cudaMemcpyHostToDevice),
         "fill");
}

/// Codes of normally distributed numbers, whose largest of a block is about 448.
std::vector<uint8_t> normal_codes(uint64_t seed) {
  Rng rng(seed);
  std::vector<uint8_t> codes((size_t(1) << 20) + 37);
  for (uint8_t& c : codes) {
    double v = 0;
    for (int i = 0; i < 12; ++i) v += rng.uniform() - 0.5;
    const double magnitude = std::abs(v) * 160;
    const int exponent = std::max(-6, std::ilogb(std::max(magnitude, 1e-9)));
    const int fraction = std::min(15, int(std::lround(std::ldexp(magnitude, 3 - exponent))));
    const int code = fraction < 8 ? fraction : (exponent + 7) * 8 + fraction - 8;
    c = uint8_t(std::min(code, 0x7e) | (v < 0 ? 0x80 : 0));
  }
  return codes;
}

/// Operands of one product, with weights once for each of `copies`. Scales of a lie in both orders, by column as
/// cuBLASLt wants them; so do those of b, in rows of multiples of 4.
struct Case {
  int64_t m, n, k, blocks = (k + 127) / 128, ldb_scales = (blocks + 3) / 4 * 4, lda_scales = (m + 3) / 4 * 4,
                   b_blocks = (n + 127) / 128;
  int copies = std::max(2, int(int64_t(kCold) / (n * k)) + 1);
  Memory<uint8_t> a{size_t(m * k)}, b{size_t(n * k) * size_t(copies)};
  Memory<float> a_scales{size_t(m * blocks)}, a_columns{size_t(lda_scales * blocks)},
      b_scales{size_t(b_blocks * ldb_scales)};
  Memory<float> wanted{size_t(m * n)}, got{size_t(m * n)};
  Case(int64_t rows, int64_t columns, int64_t depth) : m(rows), n(columns), k(depth) {
    fill(a.at, size_t(m * k), normal_codes(1));
    fill(b.at, size_t(n * k) * size_t(copies), normal_codes(2));
    std::vector<float> by_row(size_t(m * blocks)), by_column(size_t(lda_scales * blocks)),
        of_b(size_t(b_blocks * ldb_scales));
    Rng rng(3);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < blocks; ++j)
        by_row[size_t(i * blocks + j)] = by_column[size_t(j * lda_scales + i)] = float(0.5 + rng.uniform()) * 0.01f;
    for (float& s : of_b) s = float(0.5 + rng.uniform()) * 0.001f;
    fill(a_scales.at, by_row.size(), by_row), fill(a_columns.at, by_column.size(), by_column);
    fill(b_scales.at, of_b.size(), of_b);
  }
  DeviceGemm problem(int copy, bool by_column, Fp8Element element, void* c) const {
    DeviceGemm g;
    g.m = m, g.n = n, g.k = k;
    g.a = a.at, g.lda = k;
    g.a_scales = by_column ? a_columns.at : a_scales.at, g.lda_scales = by_column ? lda_scales : blocks;
    g.a_scales_by_column = by_column;
    g.b = b.at + int64_t(copy) * n * k, g.ldb = k;
    g.b_scales = b_scales.at, g.ldb_scales = ldb_scales;
    g.c = c, g.element = element, g.ldc = n;
    return g;
  }
  /// |got - wanted| / |wanted|, of results in f32 or in bf16.
  double error() const {
    return error_of<float>([](float v) { return v; });
  }
  double error_of_bf16() const { return error_of<uint16_t>(bf16_to_f32); }

 private:
  mutable std::vector<float> answer_;  // `wanted` on the host

  template <class T>
  double error_of(const auto& value) const {
    const size_t count = size_t(m * n);
    if (answer_.empty()) {
      answer_.resize(count);
      must(cudaMemcpy(answer_.data(), wanted.at, count * sizeof(float), cudaMemcpyDeviceToHost), "wanted");
    }
    const auto v = std::make_unique_for_overwrite<T[]>(count);
    must(cudaMemcpy(v.get(), got.at, count * sizeof(T), cudaMemcpyDeviceToHost), "got");
    double error = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
      const double difference = double(value(v[i])) - answer_[i];
      error += difference * difference;
      norm += double(answer_[i]) * answer_[i];
    }
    return std::sqrt(error / norm);
  }
};

void print(const Case& c, const char* name, const Time& t, double error) {
  std::printf(
      "{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"impl\": \"%s\", \"us\": %.2f, \"us_min\": %.2f, \"us_max\": "
      "%.2f, \"tflops\": %.0f, \"error\": %.2g}\n",
      (long long)c.m, (long long)c.n, (long long)c.k, name, t.median, t.best, t.worst,
      2e-6 * double(c.m) * double(c.n) * double(c.k) / t.median, error);
  std::fflush(stdout);
}

using Launch = std::function<bool(const DeviceGemm&)>;

/// The answer in f32 against f16 tensor cores, whose products are exact; then times with results in bf16.
bool time_ours(const Case& c, const std::string& name, bool by_column, const Launch& launch) {
  must(cudaMemset(c.got.at, 0xff, size_t(c.m * c.n) * 4), "memset");
  if (!launch(c.problem(0, by_column, Fp8Element::kF32, c.got.at))) return false;
  must(cudaStreamSynchronize(stream), name.c_str());
  const double error = c.error();
  if (!(error <= 1e-3)) {
    std::printf("WRONG %lld %lld %lld %s: %g\n", (long long)c.m, (long long)c.n, (long long)c.k, name.c_str(), error);
    return false;
  }
  const Time t =
      time_graph(stream, c.copies, [&](int i) { launch(c.problem(i, by_column, Fp8Element::kBf16, c.got.at)); });
  print(c, name.c_str(), t, error);
  return true;
}

bool time_cut(const Case& c, const fp8::Cut& cut, bool by_column, bool early = true) {
  Device device;
  must(current_device(&device), "device");
  std::string name = "lowbit " + std::to_string(cut.p) + "x" + std::to_string(cut.q);
  if (cut.skinny) name += " K in " + std::to_string(cut.split) + ", " + std::to_string(cut.blocks) + " at once";
  if (by_column) name += ", scales by column";
  if (!early) name += ", weights late";
  return time_ours(c, name, by_column, [&](DeviceGemm g) {
    cudaError_t error = cudaSuccess;
    g.new_weights = !early;
    const bool taken = cut.skinny ? fp8::launch_skinny(g, {}, cut, device, stream, &error)
                                  : fp8::launch_many_rows(g, {}, cut, device, stream, &error);
    return taken && error == cudaSuccess;
  });
}

/// A launch for each copy of the weights.
bool launch_once(const Case& c) {
  Device device;
  must(current_device(&device), "device");
  const fp8::Cut cut = fp8::choose_cut(c.problem(0, true, Fp8Element::kBf16, nullptr), device);
  cudaError_t error = cudaSuccess;
  bool taken = true;
  for (int i = 0; i < c.copies; ++i) {
    DeviceGemm g = c.problem(i, true, Fp8Element::kBf16, c.got.at);
    g.new_weights = false;
    taken = taken && (cut.skinny ? fp8::launch_skinny(g, {}, cut, device, stream, &error)
                                 : fp8::launch_many_rows(g, {}, cut, device, stream, &error));
  }
  must(error, "launch");
  must(cudaStreamSynchronize(stream), "launch");
  return taken;
}

#define LOWBIT_LT(name) reinterpret_cast<decltype(&name)>(dlsym(library_, #name))
/// cuBLASLt's: scales of a by column, results in bf16. Column major: c^T [n, m] = b [k, n]^T times a [k, m].
class CublasLt {
 public:
  CublasLt() {
    const char* path = std::getenv("LOWBIT_CUBLASLT");  // absent or empty: no rival
    library_ = path != nullptr && *path != 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : nullptr;
    if (library_ != nullptr && LOWBIT_LT(cublasLtCreate)(&handle_) != CUBLAS_STATUS_SUCCESS) library_ = nullptr;
  }
  enum Outcome { kRight, kWrong, kNone };
  Outcome time(const Case& c) const {
    if (library_ == nullptr) return kNone;
    cublasLtMatmulDesc_t product;
    LOWBIT_LT(cublasLtMatmulDescCreate)(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
      LOWBIT_LT(cublasLtMatmulDescSetAttribute)(product, what, &value, sizeof value);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T), set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(c.b_scales.at));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(c.a_columns.at));
    cublasLtMatrixLayout_t b, a, out;
    LOWBIT_LT(cublasLtMatrixLayoutCreate)(&b, CUDA_R_8F_E4M3, uint64_t(c.k), uint64_t(c.n), c.k);
    LOWBIT_LT(cublasLtMatrixLayoutCreate)(&a, CUDA_R_8F_E4M3, uint64_t(c.k), uint64_t(c.m), c.k);
    LOWBIT_LT(cublasLtMatrixLayoutCreate)(&out, CUDA_R_16BF, uint64_t(c.n), uint64_t(c.m), c.n);
    constexpr size_t kSpace = size_t(64) << 20;
    const Memory<uint8_t> space(kSpace);
    cublasLtMatmulPreference_t preference;
    LOWBIT_LT(cublasLtMatmulPreferenceCreate)(&preference);
    LOWBIT_LT(cublasLtMatmulPreferenceSetAttribute)
    (preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kSpace, sizeof kSpace);
    cublasLtMatmulHeuristicResult_t found[1];
    int count = 0;
    LOWBIT_LT(cublasLtMatmulAlgoGetHeuristic)(handle_, product, b, a, out, out, preference, 1, found, &count);
    const float one = 1, zero = 0;
    cublasStatus_t status = count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    const auto launch = [&](int i) {
      const cublasStatus_t s =
          LOWBIT_LT(cublasLtMatmul)(handle_, product, &one, c.b.at + int64_t(i) * c.n * c.k, b, c.a.at, a, &zero,
                                    c.got.at, out, c.got.at, out, &found[0].algo, space.at, kSpace, stream);
      if (s != CUBLAS_STATUS_SUCCESS) status = s;
    };
    if (count > 0) {
      launch(0);
      must(cudaStreamSynchronize(stream), "cublasLtMatmul");
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
      std::fprintf(stderr, "cublasLt: status %d\n", int(status));
      return kNone;
    }
    const double error = c.error_of_bf16();
    if (!(error <= 5e-3)) {
      std::fprintf(stderr, "cublasLt: WRONG, error %g\n", error);
      return kWrong;
    }
    print(c, "cublasLt", time_graph(stream, c.copies, launch), error);
    return kRight;
  }

 private:
  void* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
};

/// All that may be worth a try: for few rows of a as many thread blocks as fit in two rounds.
std::vector<fp8::Cut> cuts_of(const Case& c, const Device& device) {
  std::vector<fp8::Cut> cuts;
  constexpr int64_t kFewRows = 128;
  if (c.m > kFewRows)
    for (const auto& [p, q] :
         {std::array{256, 128}, {192, 128}, {128, 128}, {128, 144}, {128, 192}, {128, 96}, {128, 64}})
      cuts.push_back({.p = p, .q = q});
  if (c.m > kFewRows) return cuts;
  for (const int q : {32, 64, 128}) cuts.push_back({.p = 64, .q = q});
  for (const int q : {64, 96, 128, 192})
    if (c.m > 64) cuts.push_back({.p = 128, .q = q});
  int least = 8;
  while (least < c.m && least < 32) least *= 2;
  for (const int q : {least, least / 2})
    for (int split = 1; q >= 8 && split <= 4; ++split)
      for (int blocks = 1; blocks <= 3; ++blocks) {
        const int64_t tiles = (c.n + 63) / 64 * ((c.m + q - 1) / q);
        if (c.blocks >= 3 * split && tiles * split <= 3 * int64_t{device.processors})
          cuts.push_back({.skinny = true, .q = q, .split = split, .blocks = blocks});
      }
  return cuts;
}

/// 0, or what main() answers.
int time_shape(const Case& c, const std::string& what, const CublasLt& rival) {
  if (what == "once") return launch_once(c) ? 0 : 1;
  const Status made =
      gemm_fp8_by_mma(c.problem(0, false, Fp8Element::kF32, c.wanted.at), {}, Fp8Cores::kHalves, stream);
  must(cudaStreamSynchronize(stream), "reference");
  if (!made) std::fprintf(stderr, "%s\n", made.error().message().c_str());
  if (!made) return 1;
  const CublasLt::Outcome outcome = rival.time(c);
  if (what == "rival") return outcome == CublasLt::kRight ? 0 : outcome == CublasLt::kWrong ? 1 : 2;
  bool right = outcome != CublasLt::kWrong;
  Device device;
  must(current_device(&device), "device");
  for (const bool by_column : {false, true}) {
    if (what == "explore" && by_column)
      for (const fp8::Cut& cut : cuts_of(c, device)) time_cut(c, cut, by_column);  // not every cut has a kernel
    const fp8::Cut chosen = fp8::choose_cut(c.problem(0, by_column, Fp8Element::kBf16, nullptr), device);
    right = time_cut(c, chosen, by_column) && right;
    if (what == "explore" && by_column && c.m > 32 && c.m <= 128) time_cut(c, chosen, by_column, false);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace lowbit::cuda

int main(int argc, char** argv) {
  using namespace lowbit::cuda;
  const std::string what = argc > 1 ? argv[1] : "choice";
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "device");
  if (what != "rival" && what != "once")
    std::printf("{\"device\": \"%s\", \"processors\": %d, \"cold_mib\": %d}\n", device.name, device.multiProcessorCount,
                int(kCold >> 20));
  const CublasLt rival;
  std::vector<std::array<int64_t, 3>> shapes;
  for (int i = 2; i + 2 < argc; i += 3)
    shapes.push_back({std::atoll(argv[i]), std::atoll(argv[i + 1]), std::atoll(argv[i + 2])});
  if (shapes.empty())
    for (const auto& [n, k] :
         {std::array<int64_t, 2>{4096, 7168}, {7168, 2048}, {2112, 7168}, {24576, 1536}, {8192, 8192}})
      for (const int64_t m : {1, 16, 64, 128, 512, 2048, 4096, 8192}) shapes.push_back({m, n, k});
  int worst = 0;
  for (const auto& [m, n, k] : shapes) worst = std::max(worst, time_shape(Case(m, n, k), what, rival));
  return worst;
}
