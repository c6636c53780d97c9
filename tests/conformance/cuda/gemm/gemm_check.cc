// Conformance on a device: random problems, tails, all formats, scalings and element types, every kernel that can run
// each of them, against plain loops on the CPU. Integers bit for bit. Usage: lowbit_gemm_check [cases] [seed]
// [seconds] [anything: only scales of x per 32 columns].
// Exit 1: a difference, 77: no device.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "kernels/cuda/gemm/dispatch/choose.h"
#include "kernels/cuda/gemm/primitives/running_arch.h"
#include "kernels/cuda/gemm/schedule/activation_groups.h"
#include "kernels/cuda/gemm/schedule/skinny.h"
#include "kernels/cuda/gemm/schedule/split_k.h"
#include "kernels/cuda/gemm/weight_order/stored_bits.h"
#include "tests/conformance/cuda/gemm/gemm_case.h"

namespace lowbit::cuda {
namespace {

struct Tally {
  int cases = 0, launches = 0, failures = 0;
  int by_kernel[3] = {0, 0, 0};
  double worst = 0;
};

uint64_t state = 1;
int below(int n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return int((state >> 33) % uint64_t(n));
}

GemmCase random_case() {
  GemmCase c;
  do {
    c.format = FormatId(kDenseFormats + below(RandomAccessFormatList::kSize));
    c.activation = GemmActivation(below(2) == 0 ? 0 : 1 + below(3));
  } while (stored_bits(c.format, c.activation).bits % kTable == 0);  // tables: activation groups alone
  c.output = GemmOutput(below(3));
  static const int kM[] = {1, 1, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 200, 257};
  c.m = kM[below(16)];
  c.n = 1 + below(below(3) == 0 ? 700 : 200);
  c.k = 1 + below(below(3) == 0 ? 2500 : 600);
  if (below(3) == 0) c.n = 64 * (1 + below(8));
  if (below(2) == 0) c.k = 128 * (1 + below(16));
  const bool int8 = c.activation == GemmActivation::kInt8, bits = c.activation == GemmActivation::kBit;
  if ((int8 || bits) && below(8) == 0)  // one row: pipelines are refilled. Floats: 1e-6 is too little for sums so long
    c.m = 1, c.n = 1 + below(40), c.k = 8192 + 32 * below(600);
  static const int kGroup[] = {0, 64, 128, 128, 64, 32, 256, 384, 96, 512};
  c.group = kGroup[below(10)];
  if (int8 && below(6) == 0)  // split-K, up to eight groups of a warpgroup and several copies of x
    c.m = 2 + below(15), c.k = 128 * (4 + below(29)), c.group = 128 * below(2);
  if (!int8 && !bits && below(6) == 0)  // the same: copies of x that take turns; stages of 128 columns; bulk copies
    c.m = below(3) == 0 ? 1 : below(2) == 0 ? 2 + below(15) : 64, c.k = 128 * (1 + below(32)), c.group = 128 * below(3);
  if (!int8 && !bits && below(6) == 0)  // split-K: any number of blocks for each warp, groups that end within its part
    c.m = 1 + below(16), c.k = 64 * (1 + below(64)), c.group = 64 * below(6);
  const int aligned = int8 ? 16 : 8;
  if (below(5) != 0)
    c.x_pad = (aligned - c.k % aligned) % aligned + aligned * below(2);  // aligned rows
  else
    c.x_pad = below(5), c.x_shift = below(3);
  c.y_pad = below(4) == 0 ? 1 + below(5) : 0;
  if (below(4) == 0) c.y_pad = (8 - c.n % 8) % 8 + 8 * below(2);  // aligned rows of y that are longer than n
  c.x_groups = int8 && below(3) == 0;
  c.offsets = below(6) == 0;
  c.bias = below(2) == 0;
  c.extremes = below(10) == 0;
  if (bits) {
    c.group = c.x_shift = 0, c.offsets = false;
    if (below(2) == 0) c.k *= 8;
    c.x_pad = below(3) == 0 ? (8 - c.k % 8) % 8 : (128 - c.k % 128) % 128 + 128 * below(2);
  }
  c.overlap = below(2) == 0;
  return c;
}

/// More tiles than multiprocessors, one scale per row: the last wave may be of narrow tiles.
GemmCase many_tiles() {
  GemmCase c;
  static const FormatId kFormats[] = {FormatId::kTernary, FormatId::kInt4, FormatId::kInt8, FormatId::kBinary};
  c.format = kFormats[below(4)];
  c.activation = c.format == FormatId::kBinary ? GemmActivation::kBit : GemmActivation::kInt8;
  c.output = below(2) == 0 ? GemmOutput::kF16 : GemmOutput::kBf16;
  c.m = 1 + below(1500), c.n = 8 * (1 + below(1800)), c.k = 16 * (1 + below(40));
  if (c.activation == GemmActivation::kBit) c.k *= 8;
  c.x_pad = (128 - c.k % 128) % 128;
  c.y_pad = 8 * below(2);
  c.bias = below(2) == 0;
  c.overlap = below(2) == 0;
  return c;
}

/// One token and more tiles of 16 rows of weights than multiprocessors: blocks take several.
GemmCase tall() {
  GemmCase c;
  do c = random_case();
  while (c.k > 2500);
  c.m = 1, c.n = 2000 + below(below(2) == 0 ? 3000 : 24000);
  return c;
}

void run_one(CaseData& data, const GemmCase& c, const GemmChoice& choice, Tally& tally, int64_t samples = 0) {
  data.poison();
  const GemmStatus status = gemm_as(data.problem(), choice, nullptr);
  const cudaError_t e = cudaDeviceSynchronize();
  std::string wrong = status != GemmStatus::kOk ? gemm_status_name(status)
                      : e != cudaSuccess        ? cudaGetErrorString(e)
                                                : "";
  if (wrong.empty()) wrong = data.check(samples, &tally.worst);
  ++tally.launches, ++tally.by_kernel[choice.skinny ? 2 : choice.wgmma != nullptr];
  if (wrong.empty()) return;
  ++tally.failures;
  std::printf("FAIL %s: %s split %d: %s\n", c.text().c_str(),
              choice.skinny  ? kSkinnyName
              : choice.wgmma ? choice.wgmma->name
                             : "sm80",
              choice.split, wrong.c_str());
  if (e != cudaSuccess) std::exit(2);
}

void run_case(const GemmCase& c, uint64_t seed, bool all_kernels, int arch, Tally& tally) {
  CaseData data(c, seed, 1);
  const GemmProblem p = data.problem();
  ++tally.cases;
  run_one(data, c, {}, tally);
  run_one(data, c, choose(p, arch, 132), tally);
  if (can_run_skinny(p, 132, 232448)) run_one(data, c, {nullptr, true, 1, 0}, tally);
  if (arch != 90) return;
  const WgmmaTable* table = find_wgmma_table(c.activation, stored_bits(c.format, c.activation).bits);
  for (int i = 0; all_kernels && table != nullptr && i < table->count; ++i)
    for (int split = 1; split <= 8; split *= 2)
      if (can_run(table->kernels[i], p, split)) run_one(data, c, {&table->kernels[i], false, split, 0}, tally);
}

void run_many_tiles(Tally& tally) {
  const GemmCase c = many_tiles();
  CaseData data(c, state, 1);
  const WgmmaTable* table = find_wgmma_table(c.activation, stored_bits(c.format, c.activation).bits);
  if (table == nullptr) return;
  ++tally.cases;
  for (int i = 0; i < table->count; ++i)
    if (table->kernels[i].scale_at == 0 && can_run(table->kernels[i], data.problem(), 1))
      run_one(data, c, {&table->kernels[i], false, 1, 0}, tally, 20000);
}

void run_tall(Tally& tally) {
  const GemmCase c = tall();
  CaseData data(c, state, 1);
  ++tally.cases;
  if (can_run_skinny(data.problem(), 132, 232448)) run_one(data, c, {nullptr, true, 1, 0}, tally, 20000);
}

/// Split-K of any number of tiles, launches that overlap, of two problems in turn: every one gives the bits of the
/// first, which is checked. What is right only mostly is seen here: places of shared memory that are filled again, sums
/// of other blocks.
void run_repeated(Tally& tally) {
  GemmCase c;
  static const FormatId kFormats[] = {FormatId::kInt4, FormatId::kInt2};
  c.format = kFormats[below(2)], c.activation = below(2) == 0 ? GemmActivation::kF16 : GemmActivation::kBf16;
  c.output = GemmOutput::kBf16;
  c.m = 2 + below(15), c.n = 64 * (below(3) == 0 ? 1 + below(8) : 16 + below(100));
  c.k = below(2) == 0 ? 512 * (1 + below(8)) : 64 * (4 + below(61)), c.group = 64 * below(4);
  CaseData data[2] = {{c, state, 1}, {c, state + 1, 1}};
  const WgmmaTable* table = find_wgmma_table(c.activation, stored_bits(c.format, c.activation).bits);
  if (table == nullptr) return;
  ++tally.cases;
  for (int i = 0; i < table->count; ++i)
    for (int split = 2; split <= 8; split *= 2) {
      const GemmChoice choice{&table->kernels[i], false, split, 0};
      if (!is_split_k(table->kernels[i]) || !can_run(table->kernels[i], data[0].problem(), split)) continue;
      std::vector<uint8_t> first[2];
      for (int j = 0; j < 2; ++j) run_one(data[j], c, choice, tally, 5000), first[j] = data[j].output();
      for (int round = 0; round < 100; ++round) {
        for (int launch = 0; launch < 8; ++launch) {
          GemmProblem p = data[launch % 2].problem();
          p.overlap_previous = true;
          if (gemm_as(p, choice, nullptr) != GemmStatus::kOk) ++tally.failures;
        }
        tally.launches += 8, tally.by_kernel[1] += 8;
        if (data[0].output() == first[0] && data[1].output() == first[1]) continue;
        ++tally.failures;
        std::printf("FAIL %s: %s split %d: other bits in round %d\n", c.text().c_str(), choice.wgmma->name, split,
                    round);
        break;
      }
    }
}

constexpr FormatId kActivationGroupFormats[] = {FormatId::kInt2,    FormatId::kInt4,      FormatId::kInt8,
                                                FormatId::kTernary, FormatId::kCodebook4, FormatId::kTrellis2,
                                                FormatId::kTrellis2};

/// Scales of x per group of 32 columns: every tile that can run, and launches that overlap, which give the same bits.
void run_activation_groups(Tally& tally) {
  GemmCase c;
  static const int64_t kPerScale[] = {1, 2, 4, 4, 3, 8, 1000};
  c.format = kActivationGroupFormats[below(7)], c.output = GemmOutput(below(3)), c.group = kActivationGroupColumns;
  c.m = 1 + below(below(3) == 0 ? 300 : 70), c.n = 1 + below(below(2) == 0 ? 130 : 500);
  c.k = below(2) == 0 ? 1 + below(3000) : 64 * (1 + below(50));
  if (below(10) == 0)  // blocks take several tiles
    c.m = 1000 + below(1000), c.n = 1200 + below(1000), c.k = 1 + below(700);
  c.x_groups = true, c.per_scale = kPerScale[below(7)];
  c.exact_x_scales = c.per_scale == 4 && c.format != FormatId::kInt8 && c.format != FormatId::kCodebook4 &&
                     c.format != FormatId::kTrellis2 && below(2) == 0;
  c.offsets = below(5) == 0, c.bias = below(2) == 0, c.extremes = below(8) == 0, c.y_pad = below(3);
  if (below(4) != 0)
    c.x_pad = (16 - c.k % 16) % 16;
  else
    c.x_pad = below(5), c.x_shift = below(3);
  CaseData data(c, state, 1);
  ++tally.cases;
  for (int t = 1; t <= int(kLastActivationGroupTile); ++t)
    for (int launch = 0; launch < 4; ++launch) {
      GemmProblem p = data.problem();
      p.overlap_previous = launch > 0;
      if (launch < 2) data.poison();
      const GemmStatus status = gemm_activation_groups_as(p, c.per_scale, ActivationGroupTile(t), nullptr);
      if (status == GemmStatus::kUnsupported) break;
      if (launch == 1 || launch == 2) continue;
      const cudaError_t e = cudaDeviceSynchronize();
      std::string wrong = status != GemmStatus::kOk ? gemm_status_name(status)
                          : e != cudaSuccess        ? cudaGetErrorString(e)
                                                    : "";
      if (wrong.empty()) wrong = data.check(3000, &tally.worst);
      ++tally.launches, ++tally.by_kernel[t == int(ActivationGroupTile::kSkinny) ? 2 : 0];
      if (wrong.empty()) continue;
      ++tally.failures;
      std::printf("FAIL %s: %s: %s\n", c.text().c_str(), kActivationGroupTileNames[t], wrong.c_str());
      if (e != cudaSuccess) std::exit(2);
    }
}

/// Streams of weights: every tile, blocks with several tiles, K beyond what stays in shared memory, and up to three
/// weights in one launch, which gives the bits of a launch for each.
void run_streams(Tally& tally) {
  static const ActivationGroupTile kTiles[] = {ActivationGroupTile::kStream16x16, ActivationGroupTile::kStream32x16,
                                               ActivationGroupTile::kStream16x32, ActivationGroupTile::kStream32x32};
  static const int64_t kPerScale[] = {2, 4, 2, 4, 1, 3, 6, 8, 100000};
  GemmCase c;
  c.format = kActivationGroupFormats[below(7)], c.group = kActivationGroupColumns, c.x_groups = true;
  c.per_scale = kPerScale[below(9)], c.output = GemmOutput(below(3));
  c.m = 1 + below(32), c.k = 128 * (1 + below(below(4) == 0 ? 130 : 40));
  c.bias = below(2) == 0, c.extremes = below(8) == 0, c.y_pad = below(3);
  std::vector<std::unique_ptr<CaseData>> data;
  std::vector<std::vector<uint8_t>> wanted;
  std::vector<GemmProblem> parts;
  for (int i = 0; i < 1 + below(3); ++i) {
    c.n = 1 + below(below(6) == 0 ? 9000 : 300);
    data.push_back(std::make_unique<CaseData>(c, state, 1));
    parts.push_back(data.back()->problem());
    parts.back().x = parts.front().x, parts.back().x_scale = parts.front().x_scale;
    data.back()->poison();
    if (gemm_activation_groups_as(parts.back(), c.per_scale, ActivationGroupTile::k64x32, nullptr) != GemmStatus::kOk)
      ++tally.failures;
    wanted.push_back(data.back()->output());
  }
  ++tally.cases;
  const ActivationGroupTile chosen = choose_activation_groups(parts.front(), c.per_scale, running_arch(), 132, 232448);
  if (running_arch() == 90 && is_stream(chosen) &&
      gemm_activation_groups_stream(parts, c.per_scale, chosen, nullptr) != GemmStatus::kOk)
    ++tally.failures, std::printf("FAIL %s: the stream that was chosen does not run\n", c.text().c_str());
  for (const ActivationGroupTile tile : kTiles)
    for (int launch = 0; launch < 4; ++launch) {
      for (const auto& one : data)
        if (launch < 2) one->poison();
      for (GemmProblem& p : parts) p.overlap_previous = launch > 0;
      const GemmStatus status = gemm_activation_groups_stream(parts, c.per_scale, tile, nullptr);
      if (status == GemmStatus::kUnsupported) break;
      if (launch == 1 || launch == 2) continue;
      const cudaError_t e = cudaDeviceSynchronize();
      ++tally.launches, ++tally.by_kernel[2];
      bool right = status == GemmStatus::kOk && e == cudaSuccess;
      for (size_t i = 0; right && i < data.size(); ++i) right = data[i]->output() == wanted[i];
      if (right) continue;
      ++tally.failures;
      std::printf("FAIL %s, %zu weights: %s: other bits\n", c.text().c_str(), data.size(),
                  kActivationGroupTileNames[size_t(tile)]);
      if (e != cudaSuccess) std::exit(2);
    }
}

int refusals() {
  int wrong = 0;
  auto expect = [&](const char* what, GemmProblem p, GemmStatus status) {
    if (gemm(p, nullptr) != status) std::printf("FAIL %s: %s\n", what, gemm_status_name(gemm(p, nullptr))), ++wrong;
  };
  GemmCase c;
  c.m = 4, c.n = 64, c.k = 128;
  const CaseData data(c, 1, 1);
  GemmProblem p = data.problem();
  p.m = 0, p.x = nullptr, p.y = nullptr;
  expect("m = 0", p, GemmStatus::kOk);
  p = data.problem(), p.m = -1;
  expect("m < 0", p, GemmStatus::kInvalidArgument);
  p = data.problem(), p.ldx = 100;
  expect("ldx < k", p, GemmStatus::kInvalidArgument);
  p = data.problem(), p.x_scale = nullptr;
  expect("no scale of x", p, GemmStatus::kInvalidArgument);
  p = data.problem(), p.w.tiles = nullptr;
  expect("no weights", p, GemmStatus::kInvalidArgument);
  p = data.problem(), p.w.format = FormatId::kFp8;
  expect("float values", p, GemmStatus::kUnsupported);
  p = data.problem(), p.w.group = 48;
  expect("group 48", p, GemmStatus::kUnsupported);
  return wrong;
}

}  // namespace
}  // namespace lowbit::cuda

int main(int argc, char** argv) {
  using namespace lowbit::cuda;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device\n");
    return 77;
  }
  const int cases = argc > 1 ? std::atoi(argv[1]) : 500;
  state = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const int seconds = argc > 3 ? std::atoi(argv[3]) : 1000000;  // stop after
  const bool only_activation_groups = argc > 4;
  const int arch = running_arch();
  Tally tally;
  tally.failures += refusals();
  const clock_t begin = clock();
  for (int i = 0; i < cases && tally.failures < 20 && (clock() - begin) / CLOCKS_PER_SEC < seconds; ++i) {
    run_activation_groups(tally);
    run_streams(tally);
    if (only_activation_groups) continue;
    run_case(random_case(), state, i % 2 == 0, arch, tally);
    if (i % 32 == 0 && arch == 90) run_many_tiles(tally);
    if (i % 8 == 0) run_tall(tally);
    if (i % 16 == 0 && arch == 90) run_repeated(tally);
  }
  std::printf(
      "gemm conformance: %d cases, %d launches (%d mma.sync, %d wgmma, %d few rows), %d failures, worst half error "
      "%.3g of the "
      "terms\n",
      tally.cases, tally.launches, tally.by_kernel[0], tally.by_kernel[1], tally.by_kernel[2], tally.failures,
      tally.worst);
  return tally.failures != 0;
}
