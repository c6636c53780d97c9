// The GRU on the GPU against the CPU reference, bit for bit: random cells on every path that they can take, whole
// models with layers, directions, lengths and first states. LOWBIT_GRU_NETWORKS sets how many random cells run,
// LOWBIT_GRU_SEED which: programs with different ones share a long list.

#include "gru/test_networks.h"
#include "kernels/cuda_gru_api.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT
using cuda::GruPath;

int asked_for(const char* variable, int otherwise) {
  const char* asked = std::getenv(variable);
  return asked != nullptr ? std::atoi(asked) : otherwise;
}

/// A run of one cell: shapes, codes, lengths.
struct Problem {
  int64_t steps, batch;
  bool batch_first, reverse;
  std::vector<int32_t> order, length;
  std::vector<uint16_t> x, state;  // [steps * batch, C]; [batch, H] by order
};

int64_t row_of(const Problem& p, int64_t step, int64_t i) {
  const int64_t t = p.reverse ? p.length[static_cast<size_t>(i)] - 1 - step : step;
  const int64_t n = p.order[static_cast<size_t>(i)];
  return p.batch_first ? n * p.steps + t : t * p.batch + n;
}

struct Answer {
  std::vector<uint16_t> y, state;
  bool operator==(const Answer&) const = default;
};

constexpr uint16_t kUnwritten = 0x5a5a;  // what y holds before; rows behind a sequence's end keep it

Answer on_cpu(const GruKernel& kernel, const GruSpec& s, const Problem& p) {
  Buffer packed = *Buffer::allocate(kernel.packed_bytes(s), "test");
  kernel.pack(s, packed.as<uint8_t>());
  Buffer scratch = *Buffer::allocate(kernel.scratch_bytes(s, p.batch), "test");
  Answer a{std::vector<uint16_t>(static_cast<size_t>(p.steps * p.batch * s.h), kUnwritten), p.state};
  std::vector<uint16_t> x(static_cast<size_t>(p.batch * s.c));
  std::vector<int32_t> ih(static_cast<size_t>(p.batch * 3 * s.h));
  for (int64_t t = 0; t < p.steps; ++t) {
    int64_t active = 0;
    while (active < p.batch && p.length[static_cast<size_t>(active)] > t) ++active;
    for (int64_t i = 0; i < active; ++i) std::copy_n(p.x.begin() + row_of(p, t, i) * s.c, s.c, x.begin() + i * s.c);
    kernel.input(s, packed.as<uint8_t>(), x.data(), active, ih.data(), scratch.as<uint8_t>());
    kernel.step(s, packed.as<uint8_t>(), ih.data(), active, a.state.data(), nullptr, scratch.as<uint8_t>());
    for (int64_t i = 0; i < active; ++i)
      std::copy_n(a.state.begin() + i * s.h, s.h, a.y.begin() + row_of(p, t, i) * s.h);
  }
  return a;
}

Buffer uploaded(const void* from, int64_t bytes) {
  Buffer b = *cuda::allocate(bytes, "test");
  EXPECT_TRUE(cuda::upload(b, from, bytes));
  return b;
}

/// Codes of `grid` as planes; what lies between the columns and the stride is poison.
std::vector<uint8_t> planes_of(const std::vector<uint16_t>& codes, int64_t columns, const GruGrid& grid,
                               cuda::GruCodes& layout) {
  const int64_t rows = static_cast<int64_t>(codes.size()) / columns;
  std::vector<uint8_t> out(static_cast<size_t>(cuda::gru_codes_bytes(grid, rows, columns, layout)), 0xcd);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      for (int l = 0; l < cuda::gru_planes(grid); ++l)
        out[static_cast<size_t>(l * layout.plane_bytes + r * layout.stride + c)] =
            static_cast<uint8_t>(codes[static_cast<size_t>(r * columns + c)] >> (8 * l));
  return out;
}

std::string on_gpu(const cuda::GruDeviceCell& cell, const GruSpec& s, const Problem& p, Answer& a) {
  cuda::GruSequences call;
  call.steps = p.steps;
  call.batch = p.batch;
  call.batch_first = p.batch_first;
  call.reverse = p.reverse;
  const std::vector<uint8_t> x = planes_of(p.x, s.c, s.grid[kSlotX], call.x);
  a.y.assign(static_cast<size_t>(p.steps * p.batch * s.h), kUnwritten);
  std::vector<uint8_t> y = planes_of(a.y, s.h, s.grid[kSlotH], call.y);
  const Buffer dx = uploaded(x.data(), int64_t(x.size())), dy = uploaded(y.data(), int64_t(y.size())),
               order = uploaded(p.order.data(), 4 * p.batch), length = uploaded(p.length.data(), 4 * p.batch),
               state = uploaded(p.state.data(), 2 * p.batch * s.h);
  const int64_t bytes = cell.workspace_bytes(p.steps, p.batch);
  Buffer workspace = *cuda::allocate(bytes, "test");
  EXPECT_TRUE(cuda::fill(workspace, 0xa5));
  call.x.data = const_cast<uint8_t*>(dx.as<uint8_t>());
  call.y.data = const_cast<uint8_t*>(dy.as<uint8_t>());
  call.order = order.as<int32_t>();
  call.length = length.as<int32_t>();
  call.state = const_cast<uint16_t*>(state.as<uint16_t>());
  call.workspace = workspace.as<uint8_t>();
  if (const auto ran = cell.run(call); !ran) return ran.error().message();
  if (const auto done = cuda::synchronize(nullptr); !done) return done.error().message();
  a.state.resize(p.state.size());
  EXPECT_TRUE(cuda::download(a.state.data(), state, 2 * p.batch * s.h));
  EXPECT_TRUE(cuda::download(y.data(), dy, int64_t(y.size())));
  for (int64_t r = 0; r < p.steps * p.batch; ++r)
    for (int64_t c = 0; c < s.h; ++c) {
      uint16_t code = 0;
      for (int l = 0; l < cuda::gru_planes(s.grid[kSlotH]); ++l)
        code = static_cast<uint16_t>(code | y[static_cast<size_t>(l * call.y.plane_bytes + r * call.y.stride + c)]
                                                << (8 * l));
      a.y[static_cast<size_t>(r * s.h + c)] = code;
    }
  return "";
}

Problem random_problem(Rng& rng, const GruSpec& s, int64_t steps, int64_t batch, bool ragged) {
  Problem p{steps, batch, rng.below(2) == 0, rng.below(2) == 0, {}, {}, {}, {}};
  for (int64_t i = 0; i < batch; ++i) {
    p.order.push_back(static_cast<int32_t>(i));
    p.length.push_back(ragged ? between(rng, 0, static_cast<int>(steps)) : static_cast<int>(steps));
  }
  for (int64_t i = batch - 1; i > 0; --i)
    std::swap(p.order[static_cast<size_t>(i)], p.order[rng.below(static_cast<uint64_t>(i + 1))]);
  std::sort(p.length.rbegin(), p.length.rend());
  p.x = random_codes(rng, steps * batch * s.c, s.grid[kSlotX]);
  p.state = random_codes(rng, batch * s.h, s.grid[kSlotH]);
  return p;
}

/// Unwritten rows hold the poison's bytes, of which one-byte formats keep the low one.
void mask_unwritten(const GruSpec& s, Answer& a) {
  if (cuda::gru_planes(s.grid[kSlotH]) == 1)
    for (auto& q : a.y) q = static_cast<uint16_t>(q & 0xff);
}

struct Counter {
  std::map<std::string, int> runs;
};

/// All paths and tiles that the cell can take. `boxes`: the input product that is for many rows.
void compare_all_paths(const GruSpec& s, const Problem& p, const Answer& wanted, Counter& counter, int which,
                       bool boxes) {
  for (const GruPath path :
       {GruPath::kAuto, GruPath::kFused, GruPath::kBlock, GruPath::kCluster, GruPath::kGrid, GruPath::kSteps})
    for (const auto& [tile, split] : {std::pair{0, 0}, {8, 1}, {8, 2}, {16, 1}, {16, 2}, {24, 2}, {32, 1}}) {
      if ((path == GruPath::kAuto || path == GruPath::kFused || path == GruPath::kSteps) != (tile == 0)) continue;
      const auto cell = cuda::GruDeviceCell::make(s, {path, tile, 0, split, boxes});
      if (!cell) {
        ASSERT_TRUE(path != GruPath::kAuto && path != GruPath::kSteps) << cell.error().message();
        continue;
      }
      Answer got;
      const std::string problem = on_gpu(*cell, s, p, got);
      ASSERT_EQ(problem, "") << cell->kernel(p.batch) << " network " << which;
      mask_unwritten(s, got);
      ASSERT_EQ(got.state, wanted.state) << cell->kernel(p.batch) << " network " << which << ": T " << p.steps << " N "
                                         << p.batch << " C " << s.c << " H " << s.h;
      ASSERT_EQ(got.y, wanted.y) << cell->kernel(p.batch) << " network " << which << ": T " << p.steps << " N "
                                 << p.batch << " C " << s.c << " H " << s.h;
      const std::string name = cell->kernel(p.batch);
      const size_t shape = name.find_first_of("0123456789");
      const size_t tail = name.find("_t");
      ++counter.runs[name.substr(0, shape) + (tail == std::string::npos ? "" : name.substr(tail))];
    }
}

TEST(GruOnGpu, RandomCellsOnEveryPath) {
  LOWBIT_NEEDS_GPU();
  Rng rng(uint64_t(asked_for("LOWBIT_GRU_SEED", 20260202)));
  const int wanted = asked_for("LOWBIT_GRU_NETWORKS", 2000);
  Counter counter;
  int compared = 0;
  for (int i = 0; compared < wanted && i < 4 * wanted; ++i) {
    const int size = i % 8 == 0 ? 300 : i % 4 == 0 ? 90 : 24;
    GruCell cell = random_cell(rng, between(rng, 1, size), between(rng, 1, size));
    if (rng.below(2) == 0) make_few_bits(rng, cell, between(rng, 2, 8));
    const auto plan = GruPlan::make(std::move(cell));
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    const int64_t steps = between(rng, 1, i % 50 == 0 ? 40 : 6), batch = between(rng, 1, i % 25 == 0 ? 70 : 9);
    const Problem p = random_problem(rng, s, steps, batch, rng.below(2) == 0);
    Answer reference = on_cpu(kRefGru, s, p);
    mask_unwritten(s, reference);
    compare_all_paths(s, p, reference, counter, i, i % 2 == 1);
    if (HasFatalFailure()) return;
    ++compared;
  }
  EXPECT_EQ(compared, wanted);
  for (const auto& [name, runs] : counter.runs) std::printf("%-32s %d runs\n", name.c_str(), runs);
  EXPECT_GT(counter.runs["steps"], wanted / 2);
}

/// Seeds' 8 bits at the shapes that are timed, and odd ones beside them; the reference is the CPU's best kernel, which
/// the CPU's own test compares with the plain loops.
TEST(GruOnGpu, LargeCellsOnEveryPath) {
  LOWBIT_NEEDS_GPU();
  struct Shape {
    int64_t t, n, c, h;
  };
  Rng rng(5);
  Counter counter;
  for (const char* preset : {"seed8", "gates12", "accurate"})
    for (const Shape& shape :
         {Shape{9, 1, 64, 64}, Shape{9, 64, 256, 256}, Shape{9, 32, 512, 512}, Shape{9, 128, 1024, 1024},
          Shape{9, 37, 401, 399}, Shape{5, 300, 130, 129}, Shape{3, 5, 40, 2100}, Shape{3, 70, 6000, 48}}) {
      GruNetwork net;
      net.cells.push_back({shape.c, shape.h, normals(rng, 3 * shape.h * shape.c, 0.08),
                           normals(rng, 3 * shape.h * shape.h, 0.08), normals(rng, 3 * shape.h, 0.1),
                           normals(rng, 3 * shape.h, 0.1)});
      const auto sample = normals(rng, 4 * shape.c, 1);
      const GruInput in = input_of(sample, 4, 1);
      const auto ranges = GruRanges::measure(net, std::span(&in, 1));
      ASSERT_TRUE(ranges);
      const auto model = GruModel::quantize(net, *ranges, *gru_preset(preset));
      ASSERT_TRUE(model) << model.error().message();
      const GruSpec& s = model->impl().cells[0]->spec();
      const Problem p = random_problem(rng, s, shape.t, shape.n, true);
      Answer reference = on_cpu(gru_kernel(best_isa()), s, p);
      mask_unwritten(s, reference);
      compare_all_paths(s, p, reference, counter, static_cast<int>(shape.h), true);
      if (HasFatalFailure()) return;
    }
  for (const auto& [name, runs] : counter.runs) std::printf("%-32s %d runs\n", name.c_str(), runs);
}

TEST(GruOnGpu, WholeModels) {
  LOWBIT_NEEDS_GPU();
  Rng rng(7);
  for (int i = 0; i < 24; ++i) {
    const bool both = i % 2 == 0;
    const int64_t c = between(rng, 1, 40), h = between(rng, 1, 70), steps = between(rng, 1, 12),
                  batch = between(rng, 1, 9);
    const GruNetwork net = random_network(rng, 1 + i % 3, both, c, h);
    const auto x = normals(rng, steps * batch * c, 1), h0 = normals(rng, batch * net.state_size(), 0.4);
    std::vector<int64_t> lengths;
    for (int64_t n = 0; n < batch; ++n) lengths.push_back(between(rng, 0, static_cast<int>(steps)));
    GruInput in = input_of(x, steps, batch);
    const auto ranges = GruRanges::measure(net, std::span(&in, 1));
    in.batch_first = i % 3 == 0;
    if (i % 4 < 2) in.lengths = lengths;
    if (i % 5 < 3) in.h0 = h0;
    const auto model = GruModel::quantize(net, *ranges, *gru_preset(i % 4 == 0 ? "accurate" : "seed8"));
    ASSERT_TRUE(model);
    GruModel::RunOptions options;
    options.codes = true;
    const auto wanted = model->run(in, options);
    options.device = "cuda";
    const auto got = model->run(in, options);
    ASSERT_TRUE(wanted && got) << got.error().message();
    EXPECT_EQ(got->codes, wanted->codes) << i;
    EXPECT_EQ(got->y, wanted->y) << i;
    EXPECT_EQ(got->final_state, wanted->final_state) << i;
    const auto verified = verify_gru(*model, net, in);
    ASSERT_TRUE(verified);
    EXPECT_TRUE(verified->ok) << i;
  }
}

}  // namespace
}  // namespace lowbit
