// Times gemm() on the shapes of docs/cuda-gemm.md against the vendor library, in one run: answers first, then CUDA
// graphs that rotate over at least 256 MiB of weights, median of samples. One JSON object a line. Usage:
// lowbit_gemm_bench [choice | explore] [text that the row's name must contain] LOWBIT_CUBLAS=path of libcublas.so: rows
// of the rival; without it they are left out.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "bench/gpu/gemm_timing.h"
#include "kernels/cuda/gemm/dispatch/choose.h"
#include "kernels/cuda/gemm/schedule/skinny.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "tests/conformance/cuda/gemm/gemm_case.h"

namespace lowbit::cuda {
namespace {

cudaStream_t stream;

struct Cublas {
  using Create = int (*)(void**);
  using SetStream = int (*)(void*, cudaStream_t);
  using GemmEx = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                         const void*, void*, int, int, int, int);
  void* handle = nullptr;
  GemmEx gemm = nullptr;
  Cublas() {
    const char* path = std::getenv("LOWBIT_CUBLAS");  // absent or empty: no rival
    void* lib = path != nullptr && *path != 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : nullptr;
    if (lib == nullptr) return;
    gemm = reinterpret_cast<GemmEx>(dlsym(lib, "cublasGemmEx"));
    reinterpret_cast<Create>(dlsym(lib, "cublasCreate_v2"))(&handle);
    reinterpret_cast<SetStream>(dlsym(lib, "cublasSetStream_v2"))(handle, stream);
  }
};

struct Row {
  const char* name;
  FormatId format;
  GemmActivation x;
  int64_t m, n, k, group;
};

// The rows of the issue, and shapes between them.
constexpr GemmActivation I8 = GemmActivation::kInt8, F16 = GemmActivation::kF16, B16 = GemmActivation::kBf16,
                         BIT = GemmActivation::kBit;
const Row kRows[] = {
    {"w2a8-bitnet", FormatId::kTernary, I8, 2048, 13824, 2560, 0},
    {"w2a8-bitnet", FormatId::kTernary, I8, 512, 13824, 2560, 0},
    {"w2a8-bitnet", FormatId::kTernary, I8, 64, 13824, 2560, 0},
    {"w4a16-g128", FormatId::kInt4, F16, 1, 4096, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 16, 4096, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 32, 4096, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 64, 4096, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 128, 4096, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 256, 4096, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 1, 14336, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 16, 14336, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 64, 14336, 4096, 128},
    {"w4a16-g128", FormatId::kInt4, F16, 256, 14336, 4096, 128},
    {"w4bf16-g128", FormatId::kInt4, B16, 1, 4096, 4096, 128},
    {"w4bf16-g128", FormatId::kInt4, B16, 16, 4096, 4096, 128},
    {"w4bf16-g128", FormatId::kInt4, B16, 64, 4096, 4096, 128},
    {"w4bf16-g128", FormatId::kInt4, B16, 256, 4096, 4096, 128},
    {"w4bf16-g128", FormatId::kInt4, B16, 1, 14336, 4096, 128},
    {"w4bf16-g128", FormatId::kInt4, B16, 64, 14336, 4096, 128},
    {"w4a8-g128", FormatId::kInt4, I8, 1, 4096, 4096, 128},
    {"w4a8-g128", FormatId::kInt4, I8, 16, 4096, 4096, 128},
    {"w4a8-g128", FormatId::kInt4, I8, 64, 4096, 4096, 128},
    {"w4a8-g128", FormatId::kInt4, I8, 256, 4096, 4096, 128},
    {"w4a8-g128", FormatId::kInt4, I8, 1, 14336, 4096, 128},
    {"w4a8-g128", FormatId::kInt4, I8, 64, 14336, 4096, 128},
    {"w4a8-row", FormatId::kInt4, I8, 1, 4096, 4096, 0},
    {"w4a8-row", FormatId::kInt4, I8, 16, 4096, 4096, 0},
    {"w4a8-row", FormatId::kInt4, I8, 64, 4096, 4096, 0},
    {"w4a8-row", FormatId::kInt4, I8, 256, 4096, 4096, 0},
    {"w2a8-gemv", FormatId::kTernary, I8, 1, 2560, 2560, 0},
    {"w2a8-gemv", FormatId::kTernary, I8, 1, 3840, 2560, 0},
    {"w2a8-gemv", FormatId::kTernary, I8, 1, 13824, 2560, 0},
    {"w2a8-gemv", FormatId::kTernary, I8, 1, 2560, 6912, 0},
    {"w2a8-gemv", FormatId::kTernary, I8, 1, 20480, 3200, 0},
    {"w2a8-gemv", FormatId::kTernary, I8, 1, 55296, 5120, 0},
    {"w4a8-g64", FormatId::kInt4, I8, 1, 4096, 4096, 64},
    {"w4a8-g64", FormatId::kInt4, I8, 8, 4096, 4096, 64},
    {"w1a1", FormatId::kBinary, BIT, 1, 4096, 4096, 0},
    {"w1a1", FormatId::kBinary, BIT, 16, 4096, 4096, 0},
    {"w1a1", FormatId::kBinary, BIT, 64, 4096, 4096, 0},
    {"w1a1", FormatId::kBinary, BIT, 2048, 4096, 4096, 0},
    {"w1a1", FormatId::kBinary, BIT, 8192, 8192, 8192, 0},
    {"int2a8", FormatId::kInt2, I8, 1, 4096, 4096, 0},
    {"int2a8", FormatId::kInt2, I8, 16, 4096, 4096, 0},
    {"int2a8", FormatId::kInt2, I8, 64, 4096, 4096, 0},
    {"int2a8", FormatId::kInt2, I8, 2048, 4096, 4096, 0},
    {"ternary-planes", FormatId::kTernaryPlanes, I8, 1, 4096, 4096, 0},
    {"ternary-planes", FormatId::kTernaryPlanes, I8, 16, 4096, 4096, 0},
    {"ternary-planes", FormatId::kTernaryPlanes, I8, 64, 4096, 4096, 0},
    {"w2a16-g128", FormatId::kInt2, B16, 16, 4096, 4096, 128},
    {"w2a16-g128", FormatId::kInt2, B16, 64, 4096, 4096, 128},
    {"w2a8-8192", FormatId::kInt2, I8, 8192, 8192, 8192, 0},
    {"w4a8-8192", FormatId::kInt4, I8, 8192, 8192, 8192, 0},
    {"w8a8-8192", FormatId::kInt8, I8, 8192, 8192, 8192, 0},
    {"w4a8-g128-large", FormatId::kInt4, I8, 2048, 4096, 4096, 128},
    {"w4a16-g128-large", FormatId::kInt4, F16, 2048, 4096, 4096, 128},
};

void print(const Row& r, const char* impl, const char* kernel, int split, const char* launch, const Time& t,
           double bytes) {
  static const char* const kX[] = {"int8", "f16", "bf16", "bit"};
  std::printf(
      "{\"row\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"group\": %lld, \"x\": \"%s\", \"impl\": \"%s\", "
      "\"kernel\": \"%s\", "
      "\"split\": %d, \"launch\": \"%s\", \"us\": %.3f, \"us_min\": %.3f, \"us_max\": %.3f, \"tops\": %.1f, "
      "\"weight_gbps\": %.0f}\n",
      r.name, (long long)r.m, (long long)r.n, (long long)r.k, (long long)r.group, kX[int(r.x)], impl, kernel, split,
      launch, t.median, t.best, t.worst, 2e-6 * double(r.m) * double(r.n) * double(r.k) / t.median,
      bytes / t.median / 1e3);
  std::fflush(stdout);
}

bool time_choice(const Row& r, CaseData& data, int copies, const GemmChoice& choice, const char* label, bool both) {
  const char* kernel = choice.skinny ? kSkinnyName : choice.wgmma != nullptr ? choice.wgmma->name : "sm80_128x64";
  data.poison();
  GemmProblem p = data.problem();
  GemmStatus s = gemm_as(p, choice, stream);
  must(cudaStreamSynchronize(stream), kernel);
  double worst = 0;
  const std::string wrong = s != GemmStatus::kOk ? gemm_status_name(s) : data.check(3000, &worst);
  if (!wrong.empty()) {
    std::printf("WRONG %s m %lld %s split %d: %s\n", r.name, (long long)r.m, kernel, choice.split, wrong.c_str());
    return false;
  }
  std::vector<GemmProblem> problems;
  for (int i = 0; i < copies; ++i) problems.push_back(data.problem(i));
  for (int overlap = both ? 0 : 1; overlap < 2; ++overlap) {
    for (GemmProblem& q : problems) q.overlap_previous = overlap == 1;
    const Time t = time_graph(stream, copies, [&](int i) { gemm_as(problems[size_t(i)], choice, stream); });
    print(r, label, kernel, choice.split, overlap ? "dependent" : "plain", t, double(data.weight_bytes()));
  }
  return true;
}

void time_rivals(const Row& r, const Cublas& cublas) {
  if (cublas.gemm == nullptr) return;
  struct Kind {
    const char* name;
    int in, out, compute, bytes;
  };
  const Kind kinds[] = {{"cublas_f16", 2, 2, 68, 2}, {"cublas_bf16", 14, 14, 68, 2}, {"cublas_int8", 3, 10, 72, 1}};
  for (const Kind& kind : kinds) {
    if (kind.in == 3 ? (r.x != I8 && r.x != BIT) || r.m % 4 != 0 : (r.x == F16) != (kind.in == 2)) continue;
    const size_t weights = size_t(r.n * r.k) * size_t(kind.bytes);
    const int copies = std::max(2, int(kCold / weights) + 1);
    uint8_t *w, *x, *y;
    must(cudaMalloc(&w, weights * size_t(copies)), "w"), must(cudaMalloc(&x, size_t(r.m * r.k) * 2), "x");
    must(cudaMalloc(&y, size_t(r.m * r.n) * 4), "y");
    std::vector<uint16_t> random(size_t(1) << 20);
    uint32_t z = 1;
    for (uint16_t& v : random) {
      z = z * 1664525u + 1013904223u;
      const uint16_t top = uint16_t(z >> 16);
      v = kind.in == 3 ? top : kind.in == 2 ? uint16_t((top & 0x83ff) | 0x3800) : uint16_t((top & 0x807f) | 0x3f00);
    }
    for (size_t at = 0; at < weights * size_t(copies); at += random.size() * 2)
      cudaMemcpy(w + at, random.data(), std::min(random.size() * 2, weights * size_t(copies) - at),
                 cudaMemcpyHostToDevice);
    for (size_t at = 0; at < size_t(r.m * r.k) * 2; at += random.size() * 2)
      cudaMemcpy(x + at, random.data(), std::min(random.size() * 2, size_t(r.m * r.k) * 2 - at),
                 cudaMemcpyHostToDevice);
    const float one_f = 1, zero_f = 0;
    const int one_i = 1, zero_i = 0;
    int status = 0;
    auto launch = [&](int i) {
      const bool ints = kind.in == 3;
      status |= cublas.gemm(cublas.handle, 1, 0, int(r.n), int(r.m), int(r.k), ints ? (const void*)&one_i : &one_f,
                            w + size_t(i) * weights, kind.in, int(r.k), x, kind.in, int(r.k),
                            ints ? (const void*)&zero_i : &zero_f, y, kind.out, int(r.n), kind.compute, -1);
    };
    launch(0);
    must(cudaStreamSynchronize(stream), kind.name);
    const Time t = time_graph(stream, copies, launch);
    if (status == 0) print(r, kind.name, kind.name, 1, "plain", t, double(weights));
    cudaFree(w), cudaFree(x), cudaFree(y);
  }
}

bool time_row(const Row& r, bool explore, const Cublas& cublas) {
  GemmCase c;
  c.format = r.format, c.activation = r.x, c.m = r.m, c.n = r.n, c.k = r.k, c.group = r.group;
  c.output = r.x == F16 ? GemmOutput::kF16 : GemmOutput::kBf16;
  const int copies = int(kCold / tile_bytes(c.format, c.activation, c.n, c.k)) + 1;
  CaseData data(c, 7, copies);
  const GemmChoice chosen = choose(data.problem(), 90, 132);
  bool right = time_choice(r, data, copies, chosen, "lowbit", true);
  if (explore) {
    if (can_run_skinny(data.problem(), 132, 232448))
      right = time_choice(r, data, copies, {nullptr, true, 1, 0}, "lowbit-explore", true) && right;
    const WgmmaTable* table = find_wgmma_table(r.x, stored_bits(r.format, r.x).bits);
    for (int i = 0; table != nullptr && i < table->count; ++i)
      for (int split : {1, 2, 4, 8}) {
        const WgmmaKernel& kernel = table->kernels[i];
        const int64_t tiles =
            ((r.m + kernel.bm - 1) / kernel.bm) * ((r.n + 64 * kernel.tile_packs - 1) / (64 * kernel.tile_packs));
        if (kernel.scale_at == 2 || (r.m > kernel.bm * 4 && kernel.bm < 128) || (split > 1 && tiles * split > 300) ||
            r.m * 4 <= kernel.bm)
          continue;
        if (can_run(kernel, data.problem(), split))
          right = time_choice(r, data, copies, {&kernel, false, split, 0}, "lowbit-explore", false) && right;
      }
    if (r.m <= 512) right = time_choice(r, data, copies, {}, "lowbit-explore", false) && right;
  }
  time_rivals(r, cublas);
  return right;
}

}  // namespace
}  // namespace lowbit::cuda

int main(int argc, char** argv) {
  using namespace lowbit::cuda;
  const bool explore = argc > 1 && std::strcmp(argv[1], "explore") == 0;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("{\"device\": \"%s\", \"processors\": %d, \"l2_mib\": %d, \"cold_mib\": %d}\n", device.name,
              device.multiProcessorCount, int(device.l2CacheSize >> 20), int(kCold >> 20));
  const Cublas cublas;
  bool right = true;
  for (const Row& r : kRows) {
    char name[96];
    std::snprintf(name, sizeof name, "%s-m%lld-n%lld", r.name, (long long)r.m, (long long)r.n);
    if (argc > 2 && std::strstr(name, argv[2]) == nullptr) continue;
    right = time_row(r, explore, cublas) && right;
  }
  return right ? 0 : 1;
}
