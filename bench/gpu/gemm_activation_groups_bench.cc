// Times products of int8 x with a scale per group of 32 columns in every tile that can run them, the answer checked
// first: cold weights, dependent launches. One line for each. Usage: lowbit_gemm_activation_groups_bench [case's text]
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bench/gpu/gemm_timing.h"
#include "kernels/cuda/gemm/schedule/activation_groups.h"

namespace lowbit::cuda {
namespace {

struct Shape {
  const char* name;
  FormatId format;
  int64_t group, n, k;  // columns that share a scale of the weights
};
const Shape kShapes[] = {
    {"int4-g128-qkv", FormatId::kInt4, 128, 6144, 4096},    {"int4-g128-o", FormatId::kInt4, 128, 4096, 4096},
    {"int4-g128-up", FormatId::kInt4, 128, 14336, 4096},    {"int4-g128-kv", FormatId::kInt4, 128, 1024, 4096},
    {"int4-g128-down", FormatId::kInt4, 128, 4096, 14336},  {"int4-g64-qkv", FormatId::kInt4, 64, 6144, 4096},
    {"int4-g64-down", FormatId::kInt4, 64, 4096, 14336},    {"int4-g32-qkv", FormatId::kInt4, 32, 6144, 4096},
    {"int2-g128-qkv", FormatId::kInt2, 128, 6144, 4096},    {"int8-g128-qkv", FormatId::kInt8, 128, 6144, 4096},
    {"int8-row-qkv", FormatId::kInt8, 4096, 6144, 4096},    {"int4-g64-smol-o", FormatId::kInt4, 64, 576, 576},
    {"int4-g64-smol-qkv", FormatId::kInt4, 64, 960, 576},   {"int4-g64-smol-up", FormatId::kInt4, 64, 3072, 576},
    {"int4-g64-smol-down", FormatId::kInt4, 64, 576, 1536},
};
constexpr int64_t kTokens[] = {8, 16, 32, 64, 128, 256, 512, 1024, 2048};

bool time_shape(const Shape& shape, int64_t m, int processors, int shared, cudaStream_t stream) {
  GemmCase c;
  c.format = shape.format, c.m = m, c.n = shape.n, c.k = shape.k, c.group = kActivationGroupColumns;
  c.per_scale = shape.group / kActivationGroupColumns, c.x_groups = true, c.output = GemmOutput::kBf16;
  c.exact_x_scales = shape.group == 128 && shape.format != FormatId::kInt8;
  const int copies = std::min(40, int(kCold / tile_bytes(c.format, c.activation, c.n, c.k)) + 1);
  CaseData data(c, 7, copies);
  const ActivationGroupTile chosen = choose_activation_groups(data.problem(), c.per_scale, 90, processors, shared);
  bool right = true;
  for (int t = 1; t <= int(kLastActivationGroupTile); ++t) {
    const auto tile = ActivationGroupTile(t);
    if ((tile == ActivationGroupTile::kSkinny && m > 8) || (tile < ActivationGroupTile::k64x32 && m > 128) ||
        (tile >= ActivationGroupTile::k64x32 && m < 64))
      continue;
    data.poison();
    must(cudaDeviceSynchronize(), "poison");
    const GemmStatus status = gemm_activation_groups_as(data.problem(), c.per_scale, tile, stream);
    if (status == GemmStatus::kUnsupported) continue;
    must(cudaStreamSynchronize(stream), shape.name);
    double worst = 0;
    const std::string wrong = status != GemmStatus::kOk ? gemm_status_name(status) : data.check(2000, &worst);
    if (!wrong.empty()) {
      std::printf("WRONG %s m %lld %s: %s\n", shape.name, (long long)m, kActivationGroupTileNames[t], wrong.c_str());
      right = false;
      continue;
    }
    std::vector<GemmProblem> problems;
    for (int i = 0; i < copies; ++i) problems.push_back(data.problem(i)), problems.back().overlap_previous = true;
    const Time time = time_graph(
        stream, copies, [&](int i) { gemm_activation_groups_as(problems[size_t(i)], c.per_scale, tile, stream); });
    std::printf("%-18s m %4lld %-21s %s %8.2f us %7.1f TOP/s %6.0f GB/s\n", shape.name, (long long)m,
                kActivationGroupTileNames[t], tile == chosen ? "*" : " ", time.median,
                2e-6 * double(m) * double(c.n) * double(c.k) / time.median,
                double(data.weight_bytes()) / time.median / 1e3);
    std::fflush(stdout);
  }
  return right;
}

}  // namespace
}  // namespace lowbit::cuda

int main(int argc, char** argv) {
  using namespace lowbit::cuda;
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s\n", device.name);
  bool right = true;
  for (const Shape& shape : kShapes)
    for (const int64_t m : kTokens) {
      char text[96];
      std::snprintf(text, sizeof text, "%s-m%lld", shape.name, (long long)m);
      if (argc > 1 && std::strstr(text, argv[1]) == nullptr) continue;
      right = time_shape(shape, m, device.multiProcessorCount, int(device.sharedMemPerBlockOptin), stream) && right;
    }
  return right ? 0 : 1;
}
