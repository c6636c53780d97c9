// The GRU's sequence kernels, their own source, compiled for the host and run on fibers: needs no GPU. Against the
// reference.

#include <cuda_runtime_api.h>

#include "gru/test_networks.h"

// Everything of kernels/cuda/gru gets a namespace of its own: the program also holds what nvcc made of it.
#define gru gru_on_fibers
// The kernels' translation units as they are; kernels/cuda/gru/matrix.cuh is this folder's.
#define __launch_bounds__(...)
#include "kernels/cuda/gru/matrix.cuh"
#include "kernels/cuda/gru/pack.cc"
// Behind it: sequence_layout.cuh has an align_up of its own.
#include "kernels/cuda/gru/fused.cu"
#include "kernels/cuda/gru/sequences_f32_block.cu"
#include "kernels/cuda/gru/sequences_f32_cluster.cu"
#include "kernels/cuda/gru/sequences_f32_grid.cu"
#include "kernels/cuda/gru/sequences_f64.cu"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT
using cuda::gru_planes;
using cuda::GruPath;
using namespace cuda::gru;  // NOLINT

struct Problem {
  int64_t steps, batch;
  std::vector<int32_t> order, length;
  std::vector<uint16_t> x, state;
};

struct Answer {
  std::vector<uint16_t> y, state;
  std::vector<int32_t> ih;  // [steps * batch, 3H] centered
};

int64_t row_at(const Problem& p, int64_t step, int64_t i) { return step * p.batch + p.order[static_cast<size_t>(i)]; }

Answer reference(const GruSpec& s, const Problem& p) {
  Buffer scratch = *Buffer::allocate(kRefGru.scratch_bytes(s, p.steps * p.batch), "test");
  Answer a{std::vector<uint16_t>(static_cast<size_t>(p.steps * p.batch * s.h), 0x5a), p.state, {}};
  a.ih.resize(static_cast<size_t>(p.steps * p.batch * 3 * s.h));
  kRefGru.input(s, nullptr, p.x.data(), p.steps * p.batch, a.ih.data(), scratch.as<uint8_t>());
  std::vector<int32_t> ih(static_cast<size_t>(p.batch * 3 * s.h));
  for (int64_t t = 0; t < p.steps; ++t) {
    int64_t active = 0;
    while (active < p.batch && p.length[static_cast<size_t>(active)] > t) ++active;
    for (int64_t i = 0; i < active; ++i)
      std::copy_n(a.ih.begin() + row_at(p, t, i) * 3 * s.h, 3 * s.h, ih.begin() + i * 3 * s.h);
    kRefGru.step(s, nullptr, ih.data(), active, a.state.data(), nullptr, scratch.as<uint8_t>());
    for (int64_t i = 0; i < active; ++i)
      std::copy_n(a.state.begin() + i * s.h, s.h, a.y.begin() + row_at(p, t, i) * s.h);
  }
  return a;
}

/// Memory of a call of a cell, as the device has it.
struct Emulated {
  Cell cell;
  std::vector<uint8_t> image, ih, x, y, shared_h;
  std::vector<uint32_t> flags;
  std::vector<uint16_t> state;
  SequenceArgs args{};
};

std::unique_ptr<Emulated> prepare(const GruSpec& s, const Problem& p, const Answer& wanted) {
  auto e = std::make_unique<Emulated>();
  e->image = pack_cell(s, true, true, e->cell);
  point_into(e->cell, e->image.data());
  const Cell& cell = e->cell;
  const int64_t rows = p.steps * p.batch;
  e->ih.assign(static_cast<size_t>(rows * cell.ih_stride * cell.ih_bytes), 0x77);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t c = 0; c < 3 * s.h; ++c) {
      const auto code =
          uint32_t(wanted.ih[static_cast<size_t>(row * 3 * s.h + c)] + s.grid[kSlotIh].zp - s.grid[kSlotIh].lo);
      const auto to = static_cast<size_t>((row * cell.ih_stride + c / s.h * cell.padded + c % s.h) * cell.ih_bytes);
      std::memcpy(&e->ih[to], &code, static_cast<size_t>(cell.ih_bytes));
    }
  e->state = p.state;
  e->args.cell = cell;
  cuda::GruSequences& q = e->args.call.s;
  q.steps = p.steps;
  q.batch = p.batch;
  q.order = p.order.data();
  q.length = p.length.data();
  q.x.stride = align_up(int(s.c), 16);
  q.x.plane_bytes = rows * q.x.stride;
  e->x.assign(static_cast<size_t>(gru_planes(s.grid[kSlotX]) * q.x.plane_bytes), 0xcd);
  for (int64_t i = 0; i < rows * s.c; ++i)
    e->x[static_cast<size_t>(i / s.c * q.x.stride + i % s.c)] = uint8_t(p.x[static_cast<size_t>(i)]);
  q.x.data = e->x.data();
  q.y.stride = align_up(int(s.h), 16);
  q.y.plane_bytes = rows * q.y.stride;
  e->y.assign(static_cast<size_t>(gru_planes(s.grid[kSlotH]) * q.y.plane_bytes), 0x5a);
  q.y.data = e->y.data();
  q.state = e->state.data();
  e->args.call.ih = e->ih.data();
  return e;
}

void compare(const GruSpec& s, const Problem& p, const Emulated& e, const Answer& wanted) {
  EXPECT_EQ(e.state, wanted.state);
  const cuda::GruCodes& layout = e.args.call.s.y;
  for (int64_t row = 0; row < p.steps * p.batch; ++row)
    for (int64_t j = 0; j < s.h; ++j)
      for (int l = 0; l < gru_planes(s.grid[kSlotH]); ++l) {
        const uint8_t byte = e.y[static_cast<size_t>(l * layout.plane_bytes + row * layout.stride + j)];
        const uint16_t want = wanted.y[static_cast<size_t>(row * s.h + j)];
        if (byte != uint8_t(want >> (8 * l)) && !(want == 0x5a && byte == 0x5a)) {
          ADD_FAILURE() << "y of row " << row;
          return;
        }
      }
}

/// One kernel on one cell, `groups` groups of units to a block. False where it is not for the cell.
bool emulate(const GruSpec& s, const SequenceKernel& k, int groups, const Problem& p, const Answer& wanted) {
  const Number exact = number_of(s);
  const auto e = prepare(s, p, wanted);
  const Cell& cell = e->cell;
  const int in_registers = ksteps_in_registers(k.number, k.path, k.tiles8, k.resident, cell.r.ksteps, k.split);
  if (k.number < exact || k.in_registers != in_registers || (k.single && p.batch != 1)) return false;
  const int blocks = (cell.groups + groups - 1) / groups, tile = 8 * k.tiles8;
  if (k.path == GruPath::kBlock ? blocks != 1 || groups > kMaxWarps : blocks > 16) return false;
  const int planes = k.number == Number::kF32 ? 1 : 2, tiles = int(p.batch + tile - 1) / tile;
  const int at_once = k.path == GruPath::kGrid ? std::min(2, tiles) : tiles;
  SequenceArgs& args = e->args;
  args.blocks = blocks;
  args.at_once = at_once;
  e->shared_h.assign(static_cast<size_t>(at_once * 2 * planes * tile * width_of_h(cell.h)) + 16, 0x33);
  args.call.shared_h = e->shared_h.data() + (16 - reinterpret_cast<uintptr_t>(e->shared_h.data()) % 16) % 16;
  e->flags.assign(static_cast<size_t>(at_once * cell.groups * k.split), 0);
  args.call.flags = e->flags.data();
  const SharedLayout layout =
      shared_layout(cell, groups * k.split, tile, shared_ksteps(cell, in_registers, k.resident, k.split), k.path,
                    k.number == Number::kF32, k.split);
  const bool ended = emulation::run(at_once * blocks, 32 * groups * k.split, k.path == GruPath::kCluster ? blocks : 1,
                                    layout.bytes, [&] { k.run(args); });
  EXPECT_TRUE(ended) << "threads wait for each other";
  compare(s, p, *e, wanted);
  return true;
}

/// The kernel that computes its input product itself.
bool emulate_fused(const GruSpec& s, const FusedKernel& k, const Problem& p, const Answer& wanted) {
  const auto e = prepare(s, p, wanted);
  const Cell& cell = e->cell;
  if (number_of(s) != Number::kF32 || cell.x.limbs != 1 || cell.x.narrow == 0 || cell.r.small == 0) return false;
  if (cell.groups > 2 * k.ksteps || cell.x.ksteps > k.ksteps || cell.r.ksteps > k.ksteps) return false;
  const bool ended =
      emulation::run(int(p.batch), 64 * cell.groups, 1, fused_layout(cell).bytes, [&] { k.run(e->args); });
  EXPECT_TRUE(ended) << "threads wait for each other";
  compare(s, p, *e, wanted);
  return true;
}

/// A quantized network: its numbers fit f32, mostly.
Result<std::shared_ptr<const GruPlan>> usual_plan(Rng& rng, int64_t c, int64_t h) {
  const GruNetwork net = random_network(rng, 1, false, c, h);
  const auto x = normals(rng, 6 * c, 1);
  const GruInput in = input_of(x, 6, 1);
  const auto model = GruModel::quantize(net, *GruRanges::measure(net, std::span(&in, 1)),
                                        *gru_preset(rng.below(3) == 0 ? "gates12" : "seed8"));
  if (!model) return tl::unexpected(model.error());
  return model->impl().cells[0];
}

Result<std::shared_ptr<const GruPlan>> extreme_plan(Rng& rng, int64_t c, int64_t h) {
  GruCell cell = random_cell(rng, c, h);
  make_few_bits(rng, cell, between(rng, 2, 8));
  return GruPlan::make(std::move(cell));
}

TEST(GruOnFibers, EverySequenceKernelGivesTheBitsOfTheReference) {
  Rng rng(20260303);
  std::map<std::string, int> runs;
  const char* asked = std::getenv("LOWBIT_GRU_EMULATED");
  const int networks = asked != nullptr ? std::atoi(asked) : 60;
  for (int i = 0; i < networks; ++i) {
    const int columns = between(rng, 1, i % 5 == 1 ? 130 : 6), hidden = i == 7        ? 540
                                                                        : i % 12 == 4 ? between(rng, 257, 330)
                                                                                      : between(rng, 1,
                                                                                                i % 4 == 0   ? 120
                                                                                                : i % 4 == 1 ? 60
                                                                                                             : 30);
    const auto plan = i % 2 == 0 ? usual_plan(rng, columns, hidden) : extreme_plan(rng, columns, hidden);
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    Problem p{between(rng, 1, i % 5 == 0 ? 19 : 4), i % 3 == 0 ? 1 : between(rng, 1, 20), {}, {}, {}, {}};
    for (int64_t n = 0; n < p.batch; ++n) {
      p.order.push_back(static_cast<int32_t>(p.batch - 1 - n));
      p.length.push_back(between(rng, 0, static_cast<int>(p.steps)));
    }
    std::sort(p.length.rbegin(), p.length.rend());
    p.x = random_codes(rng, p.steps * p.batch * s.c, s.grid[kSlotX]);
    p.state = random_codes(rng, p.batch * s.h, s.grid[kSlotH]);
    const Answer wanted = reference(s, p);
    for (const FusedKernel& k : fused_kernels())
      if (emulate_fused(s, k, p, wanted)) ++runs["fused k" + std::to_string(k.ksteps)];
    for (const auto& list : {sequences_f32_block(), sequences_f32_cluster(), sequences_f32_grid(), sequences_f64()})
      for (const SequenceKernel& k : list) {
        const int all = int(s.h + 15) / 16;
        const int groups = k.path == GruPath::kBlock ? all : between(rng, 1, std::min(4, all));
        if (!emulate(s, k, groups, p, wanted)) continue;
        ++runs[std::string(cuda::gru_path_name(k.path)) + (k.number == Number::kF32 ? " f32" : " f64") + " t" +
               std::to_string(8 * k.tiles8) + " k" + std::to_string(k.in_registers) + (k.single ? " single" : "") +
               (k.split > 1 ? " split" : "") + (k.resident ? "" : " streamed")];
        if (HasFailure())
          FAIL() << "network " << i << " kernel " << runs.rbegin()->first << " path " << int(k.path) << " number "
                 << int(k.number) << " H " << s.h << " N " << p.batch << " T " << p.steps << " single " << k.single;
      }
  }
  for (const auto& [name, count] : runs) std::printf("%-32s %d runs\n", name.c_str(), count);
  EXPECT_EQ(runs.size(), 24u) << "every kernel of the lists must have run";
}

}  // namespace
}  // namespace lowbit
