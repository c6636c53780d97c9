// The table of a chain of matmuls, its workspace and its launch.

#include <algorithm>
#include <cstring>
#include <string>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/cuda/matmul_chain.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_api.h"

namespace lowbit::cuda {
namespace {

constexpr int64_t kLine = 128;        // bytes: what one matmul hands over begins at a multiple
constexpr int64_t kStateBytes = 256;  // of the workspace; the exchange is behind it

Status check_weight(const Weight& w, int64_t previous_n, int64_t at) {
  const std::string where = "matmul " + std::to_string(at) + " of a chain";
  if (w.groups > 1 || w.offsets != nullptr || w.scales == nullptr)
    return fail(ErrorCode::kUnsupported, where, "scales per group, offsets, or none", "one scale per row");
  if (w.n < 1 || w.k < 1 || w.k > kMostChainColumns)
    return fail(ErrorCode::kUnsupported, where, std::to_string(w.n) + " x " + std::to_string(w.k),
                "at least one row, and 1 to " + std::to_string(kMostChainColumns) + " columns");
  if (at > 0 && previous_n < w.k)
    return fail(ErrorCode::kShapeMismatch, where, std::to_string(w.k) + " columns",
                "at most the " + std::to_string(previous_n) + " rows of the one before it");
  return {};
}

ChainLinear linear_of(const Weight& w) {
  ChainLinear l{};
  l.codes = w.codes;
  l.scales = w.scales;
  l.n = static_cast<int>(w.n);
  l.k = static_cast<int>(w.k);
  l.tiles = static_cast<int>(ceil_div(w.n, kTileRows));
  l.strips = static_cast<int>(ceil_div(w.k, GemvOrder<2>::kColumns));
  l.teams = kChainWarps / l.strips;
  l.team_inverse = 65536 / l.strips + 1;
  return l;
}

/// A workspace in which nothing was handed over. Columns that fill up the last word of a load are zeros for ever.
std::vector<uint8_t> empty_workspace(const MatmulChain& chain, const std::vector<ChainLinear>& linears) {
  std::vector<uint8_t> bytes(static_cast<size_t>(chain.workspace_bytes), 0xff);
  std::fill_n(bytes.begin(), kStateBytes, uint8_t{0});
  const int64_t element = element_bytes(chain.between);
  for (int64_t copy = 0; copy < 2; ++copy)
    for (size_t i = 0; i + 1 < linears.size(); ++i) {
      const int64_t used = linears[i].out_count * element, at = kStateBytes + copy * chain.half_bytes + linears[i].out;
      std::fill(bytes.begin() + at + used, bytes.begin() + at + round_up(used, kLine), uint8_t{0});
    }
  return bytes;
}

}  // namespace

Result<MatmulChain> make_matmul_chain(const std::vector<Weight>& weights, Element between) {
  if (weights.empty() || weights.size() > kMostChainLinears)
    return fail(ErrorCode::kInvalidArgument, "chain of matmuls", std::to_string(weights.size()),
                "1 to " + std::to_string(kMostChainLinears));
  if (between != Element::kF32 && between != Element::kBf16)
    return fail(ErrorCode::kInvalidArgument, "chain of matmuls", "another type between them", "f32 or bf16");
  MatmulChain chain;
  chain.between = between;
  chain.count = static_cast<int64_t>(weights.size());
  chain.n = weights.back().n;
  chain.k = weights.front().k;
  std::vector<ChainLinear> linears;
  for (size_t i = 0; i < weights.size(); ++i) {
    LOWBIT_TRY(check_weight(weights[i], i == 0 ? 0 : weights[i - 1].n, static_cast<int64_t>(i)));
    linears.push_back(linear_of(weights[i]));
  }
  ChainFit fit;
  LOWBIT_TRY(check_cuda(fit_chain(linears.data(), static_cast<int>(linears.size()), between == Element::kBf16, &fit),
                        "chain of matmuls"));
  if (fit.grid == 0)
    return fail(ErrorCode::kUnsupported, "chain of matmuls", "this device, or more rows than its shared memory holds",
                "compute capability 9, and fewer rows", "run the matmuls one by one");
  int turn = 0;
  int64_t handed = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    linears[i].turn = turn;
    linears[i].least = linears[i].tiles / fit.grid;
    linears[i].longer = linears[i].tiles % fit.grid;
    turn = (turn + linears[i].tiles) % fit.grid;
    linears[i].x = i == 0 ? 0 : linears[i - 1].out;
    linears[i].out = static_cast<int>(handed);
    linears[i].out_count = i + 1 < linears.size() ? linears[i + 1].k : 0;
    handed += round_up(linears[i].out_count * element_bytes(between), kLine);
  }
  chain.thread_blocks = fit.grid;
  chain.ring_at = fit.ring_at;
  chain.ring_bytes = fit.ring_bytes;
  chain.half_bytes = static_cast<int>(handed);
  chain.workspace_bytes = kStateBytes + 2 * int64_t{chain.half_bytes};
  chain.empty = empty_workspace(chain, linears);
  const auto bytes = static_cast<int64_t>(linears.size() * sizeof(ChainLinear));
  LOWBIT_TRY_ASSIGN(chain.linears, allocate(bytes, "chain of matmuls"));
  LOWBIT_TRY(upload(chain.linears, linears.data(), bytes));
  return chain;
}

Status run_matmul_chain(const MatmulChain& chain, const void* x, Element x_element, float* y, uint8_t* workspace,
                        void* stream) {
  if (x_element == Element::kInt8)
    return fail(ErrorCode::kInvalidArgument, "x of a chain of matmuls", "int8", "a float type");
  ChainArgs a{};
  a.linears = chain.linears.as<ChainLinear>();
  a.count = static_cast<int>(chain.count);
  a.x = x;
  a.x_element = x_element;
  a.y = y;
  a.state = reinterpret_cast<uint32_t*>(workspace);
  a.exchange = workspace + kStateBytes;
  a.half_bytes = chain.half_bytes;
  a.half = chain.between == Element::kBf16;
  a.ring_at = chain.ring_at;
  a.ring_bytes = chain.ring_bytes;
  return check_cuda(launch_chain(a, chain.thread_blocks, static_cast<cudaStream_t>(stream)), "chain of matmuls");
}

}  // namespace lowbit::cuda
