#include "kernels/cuda/bit_step.h"

#include <algorithm>
#include <span>

#include "base/checked.h"
#include "kernels/cuda/bit_step.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

constexpr int kMostWeightBytes = 84 << 10;  // of a thread block, so that a multiprocessor holds the next launch's too
constexpr int kLongRow = 4096;              // columns of x beyond which it counts how many thread blocks read them

bool of_pairs(const StepProducts& call) {
  return call.end == ProductEnd::kSilu || call.end == ProductEnd::kSquaredRelu;
}

struct BitStepLaunch {
  BitStepArgs args;
  int grid, threads, shared_bytes;
};

/// Tiles of thread blocks and their shared memory; false, and no threads, where it does not fit.
template <int kPer>
bool place_bit_step(BitStepLaunch& l, int tiles, int of_pair, int columns, int most, const Device& device) {
  BitStepArgs& p = l.args;
  GemvArgs& a = p.cut;
  l.threads = 0;
  a.least_tiles = tiles / l.grid;
  a.longer = tiles % l.grid;
  a.batch = static_cast<int>(ceil_div(tiles, l.grid)) * of_pair;
  a.teams = std::min(a.batch, kBitWarps<kPer> / a.team_warps);
  a.team_inverse = 65536 / a.team_warps + 1;
  // A thread for each output, too.
  const int warps = std::max(a.teams * a.team_warps, static_cast<int>(ceil_div(a.batch * kTileRows, 32)));
  if (a.batch > most * of_pair || warps != a.teams * a.team_warps) return false;
  const auto up = [](int at) { return static_cast<int>(round_up(at, 16)); };
  const int width = columns * kPer * a.team_warps;
  a.planes_at = kBitWeightsAt + a.batch * a.blocks_of_row * kTileBlockBytes;
  p.norm_at = up(a.planes_at + warps * kExchangeWords<kPer> * 4);
  p.codes_at = up(p.norm_at + (p.norm == nullptr ? 0 : 4 * a.k));
  p.factor_at = up(p.codes_at + width);
  l.shared_bytes = p.factor_at + 16 + 4 * 32;
  if (l.shared_bytes > device.shared_bytes) return false;
  p.workers = 32 * warps;
  l.threads = p.workers + (p.norm == nullptr ? 0 : 32);
  return true;
}

/// Strips of `per` blocks; false where it does not fit.
template <int kPer>
bool cut_bit_step(const StepProducts& call, const Device& device, BitStepLaunch& l) {
  BitStepArgs& p = l.args;
  GemvArgs& a = p.cut;
  const int columns = 512 / gemv_codes(*call.kernel).bits, of_pair = of_pairs(call) ? 2 : 1;
  a.blocks_of_row = std::max(1, static_cast<int>(ceil_div(a.k, columns)));
  a.team_warps = static_cast<int>(ceil_div(a.blocks_of_row, kPer));
  const int tile_bytes = of_pair * a.blocks_of_row * kTileBlockBytes,
            most = std::min(kMostBitTiles / of_pair, kMostWeightBytes / tile_bytes);
  if (most == 0 || a.team_warps > kBitWarps<kPer>) return false;
  int tiles = 0;
  for (int i = 0; i < (of_pair == 2 ? 1 : p.parts); ++i) tiles += static_cast<int>(ceil_div(p.part[i].n, kTileRows));
  l.grid = std::min(tiles, device.processors);
  // As few thread blocks as end together: multiprocessors are free for the attention behind q, k and v, too.
  if (of_pair == 1 && (a.k > kLongRow || p.end == ProductEnd::kStore))
    l.grid = static_cast<int>(ceil_div(tiles, ceil_div(tiles, l.grid)));
  while (!place_bit_step<kPer>(l, tiles, of_pair, columns, most, device) && l.grid < tiles)
    l.grid = std::min(tiles, l.grid + device.processors);
  return l.threads > 0;
}

template <int B>
const void* choose_bit_step(const StepProducts& call, const Device& device, BitStepLaunch& l) {
  int tiles = 0;
  for (int i = 0; i < call.count; ++i) tiles += static_cast<int>(ceil_div(l.args.part[i].n, kTileRows));
  if constexpr (B == 2)
    if (tiles <= 2 * device.processors && cut_bit_step<1>(call, device, l))
      return reinterpret_cast<const void*>(&bit_step<B, 1>);
  return cut_bit_step<2>(call, device, l) ? reinterpret_cast<const void*>(&bit_step<B, 2>) : nullptr;
}

/// The kernel, and its arguments in `l`; null where it does not fit.
const void* plan_bit_step(const StepProducts& call, const Device& device, BitStepLaunch& l) {
  const Matmul& first = call.parts[0];
  l = {};
  BitStepArgs& p = l.args;
  p.cut.k = static_cast<int>(first.w.k);
  p.cut.m = 1;
  const GemvCodes codes = gemv_codes(*call.kernel);
  p.cut.mul = codes.mul;
  p.cut.add = codes.add;
  p.rows = call.rows;
  p.norm = call.norm;
  p.eps = call.eps;
  p.end = call.end;
  int tile = 0;
  for (const Matmul& from : std::span(call.parts).first(static_cast<size_t>(call.count))) {
    p.part[p.parts++] = {
        from.w.codes, from.w.scales, from.bias, static_cast<float*>(from.y), static_cast<int>(from.w.n), tile};
    tile += static_cast<int>(ceil_div(from.w.n, kTileRows));
  }
  return codes.bits == 1 ? choose_bit_step<1>(call, device, l) : choose_bit_step<2>(call, device, l);
}

bool takes(const Matmul& part, const Matmul& first) {
  const Weight& w = part.w;
  return !part.x_groups && w.groups == 1 && w.offsets == nullptr && w.k == first.w.k && w.k % 4 == 0 && part.m == 1 &&
         part.y_element == Element::kF32 && w.n > 0 && w.n <= (1 << 24) && w.k <= (1 << 20);
}

}  // namespace

bool takes_bit_step(const StepProducts& call) {
  const int bits = gemv_codes(*call.kernel).bits;
  if ((bits != 1 && bits != 2) || call.rows == nullptr) return false;
  for (int i = 0; i < call.count; ++i)
    if (!takes(call.parts[static_cast<size_t>(i)], call.parts[0])) return false;
  if (of_pairs(call) && (call.count != 2 || call.parts[0].w.n != call.parts[1].w.n)) return false;
  Device device{};
  BitStepLaunch l;
  return current_device(&device) == cudaSuccess && plan_bit_step(call, device, l) != nullptr;
}

int64_t bit_step_blocks(const StepProducts& call) {
  Device device{};
  BitStepLaunch l{};
  if (current_device(&device) == cudaSuccess) plan_bit_step(call, device, l);
  return l.grid;
}

Status bit_step_products(const StepProducts& call) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "products");
  BitStepLaunch l;
  const void* const kernel = plan_bit_step(call, device, l);
  if (const auto e = allow_shared(kernel, device); e != cudaSuccess) return check_cuda(e, "products");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(l.grid));
  config.blockDim = dim3(static_cast<unsigned>(l.threads));
  config.dynamicSmemBytes = static_cast<size_t>(l.shared_bytes);
  config.stream = static_cast<cudaStream_t>(call.parts[0].stream);
  config.attrs = &attribute;
  config.numAttrs = call.parts[0].overlap && device.bulk_copies ? 1 : 0;
  void* list[] = {&l.args};
  return check_cuda(cudaLaunchKernelExC(&config, kernel, list), "products");
}

}  // namespace lowbit::cuda
