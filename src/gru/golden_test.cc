// The integers of a NumPy model of the specification: tests/golden/gru/make_gru_golden.py.
#include <map>

#include "gru/mutated_cell.h"
#include "gru/ranges.h"
#include "gru/test_networks.h"
#include "io/npy.h"

namespace lowbit {
namespace {

using testing_gru::data_dir;
using testing_gru::has_data;

using Arrays = std::map<std::string, NpyArray>;

Arrays golden(const std::string& file) {
  Arrays out;
  auto arrays = read_npz(std::string(LOWBIT_SOURCE_DIR) + "/tests/golden/gru/" + file);
  if (!arrays) {
    ADD_FAILURE() << arrays.error().message();
    return out;
  }
  for (NpyArray& a : *arrays) out.emplace(a.name, std::move(a));
  return out;
}

std::vector<float> floats(const NpyArray& a) {
  std::vector<float> out(static_cast<size_t>(*element_count(a.shape)));
  convert_to_f32(a.view(), 0, static_cast<int64_t>(out.size()), out.data());
  return out;
}

template <class T>
std::vector<int64_t> integers(const NpyArray& a) {
  const T* p = a.data.as<T>();
  return {p, p + *element_count(a.shape)};
}

template <class T>
std::vector<int64_t> widened(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

/// Ranges of one cell, as given.
GruRanges given_ranges(const GruNetwork& net, const std::vector<float>& ranges) {
  auto impl = std::make_shared<GruRanges::Impl>();
  impl->steps = 1;
  impl->cells.push_back({net.input(), net.cells[0].hidden, {}, {}});
  GruRanges out(impl);
  for (int t = 0; t < kGruTensors; ++t)
    out.set_range(0, static_cast<GruTensor>(t), ranges[static_cast<size_t>(2 * t)],
                  ranges[static_cast<size_t>(2 * t + 1)]);
  return out;
}

/// One of the file's cases, quantized.
struct GoldenCase {
  GruNetwork net;
  GruConfig config;
  Shape shape;  // of x
  std::vector<float> x;
};

GoldenCase golden_case(Arrays& a, int i) {
  const auto at = [&](const std::string& name) -> NpyArray& { return a.at("c" + std::to_string(i) + "." + name); };
  GoldenCase c;
  c.shape = at("x").shape;
  c.x = floats(at("x"));
  const int64_t hidden = at("R").shape[1];
  c.net.cells.push_back({c.shape[2], hidden, floats(at("W")), floats(at("R")), floats(at("bw")), floats(at("br"))});
  const auto formats = integers<int32_t>(at("formats")), weights = integers<int32_t>(at("weights"));
  for (size_t t = 0; t < kGruTensors; ++t)
    c.config.tensors[t] = {static_cast<int>(formats[4 * t]), formats[4 * t + 1] != 0, formats[4 * t + 2] != 0,
                           static_cast<int>(formats[4 * t + 3])};
  c.config.w.bits = c.config.r.bits = static_cast<int>(weights[0]);
  c.config.bw.bits = c.config.br.bits = static_cast<int>(weights[1]);
  c.config.bias_at_product_scale = weights[2] == 0;
  c.config.table = GruTableMode::kDirect;
  return c;
}

TEST(GruGolden, RandomCellsGiveTheIntegersOfTheSpecification) {
  Arrays a = golden("cases.npz");
  int cases = 0;
  for (int i = 0; a.contains("c" + std::to_string(i) + ".W"); ++i, ++cases) {
    SCOPED_TRACE("case " + std::to_string(i));
    const auto at = [&](const std::string& name) -> NpyArray& { return a.at("c" + std::to_string(i) + "." + name); };
    const auto [net, config, shape, x] = golden_case(a, i);
    const auto model = GruModel::quantize(net, given_ranges(net, floats(at("ranges"))), config);
    ASSERT_TRUE(model) << model.error().message();
    const GruCell& cell = model->impl().cells[0]->cell();
    std::vector<int64_t> scales;
    for (const GruParam& p : cell.tensors) {
      scales.push_back(p.scale.shift);
      scales.push_back(p.scale.zp);
    }
    EXPECT_EQ(scales, integers<int32_t>(at("scales")));
    EXPECT_EQ(widened(cell.w), integers<int32_t>(at("qW")));
    EXPECT_EQ(widened(cell.r), integers<int32_t>(at("qR")));
    EXPECT_EQ(widened(cell.w_shift), integers<int32_t>(at("sW")));
    EXPECT_EQ(widened(cell.r_shift), integers<int32_t>(at("sR")));
    EXPECT_EQ(widened(cell.bw), integers<int64_t>(at("qbw")));
    EXPECT_EQ(widened(cell.br), integers<int64_t>(at("qbr")));
    GruModel::RunOptions options;
    options.codes = true;
    for (const GruKernel* kernel : runnable_gru_kernels()) {
      options.isa = kernel == &kRefGru ? "scalar" : kernel->isa;
      const auto out = model->run(testing_gru::input_of(x, shape[0], shape[1]), options);
      ASSERT_TRUE(out) << out.error().message();
      EXPECT_EQ(widened(out->codes), integers<int32_t>(at("h"))) << kernel->name;
    }
  }
  EXPECT_EQ(cases, 24);
}

/// h of every step of a golden case, from the cell with a mistake.
std::vector<int64_t> mutated(const GruSpec& s, const GoldenCase& c, testing_gru::Mutant mutant) {
  const testing_gru::MutatedCell cell(s, mutant);
  GruParam x;
  x.format.bits = c.config[GruTensor::kX].bits;
  x.format.is_unsigned = c.config[GruTensor::kX].is_unsigned;
  x.scale = {s.grid[kSlotX].shift, s.grid[kSlotX].zp};
  const int64_t steps = c.shape[0], batch = c.shape[1], columns = c.shape[2];
  std::vector<int64_t> out(static_cast<size_t>(steps * batch * s.h));
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<int64_t> h(static_cast<size_t>(s.h), s.grid[kSlotH].zp), q(static_cast<size_t>(columns));
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t i = 0; i < columns; ++i)
        q[static_cast<size_t>(i)] = quantize_value(c.x[static_cast<size_t>((t * batch + n) * columns + i)], x);
      cell.step(q, h);
      std::copy(h.begin(), h.end(), out.begin() + (t * batch + n) * s.h);
    }
  }
  return out;
}

/// Random cells of extreme zero points against the reference: what the golden vectors' usual formats cannot see.
void kill_with_random_cells(std::array<int, static_cast<size_t>(testing_gru::Mutant::kCount)>& killed) {
  using namespace testing_gru;  // NOLINT
  Rng rng(20260401);
  for (int i = 0; i < 400; ++i) {
    GruCell cell = random_cell(rng, 3, 4);
    if (i % 2 == 0) {  // where one rounding of both terms would be possible, and matter
      cell[GruTensor::kHh].scale.shift = cell[GruTensor::kIh].scale.shift;
      for (const GruTensor t : {GruTensor::kUi, GruTensor::kRi})
        cell[t].scale.shift = cell[GruTensor::kIh].scale.shift - 2;
    }
    for (size_t t = 0; t < 3; ++t) {
      GruParam& in = cell[kGateInputs[t]];
      in.format.bits = std::min(in.format.bits, 10);
      in.scale.zp = std::clamp(in.scale.zp, in.lo(), in.hi());
      cell.tables[t] = make_table(t == 2 ? GruFunction::kTanh : GruFunction::kSigmoid, in, cell[kGateOutputs[t]],
                                  GruTableMode::kDirect, 0);
    }
    const auto plan = GruPlan::make(std::move(cell));
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    const auto x = random_codes(rng, s.c, s.grid[kSlotX]), h = random_codes(rng, s.h, s.grid[kSlotH]);
    const auto wanted = run_cell(kRefGru, s, x, h, 1, 1).h;
    const auto codes = [](const std::vector<uint16_t>& u, const GruGrid& g) {
      std::vector<int64_t> q;
      for (const uint16_t v : u) q.push_back(int64_t{v} + g.lo);
      return q;
    };
    for (size_t m = 0; m < killed.size(); ++m) {
      auto state = codes(h, s.grid[kSlotH]);
      MutatedCell(s, static_cast<Mutant>(m)).step(codes(x, s.grid[kSlotX]), state);
      killed[m] += state != codes(wanted, s.grid[kSlotH]);
    }
  }
}

/// Golden vectors and random cells tell every mistake of the list from none, and strict cover from one step of
/// saturation.
TEST(GruGolden, KillEveryMutant) {
  Arrays a = golden("cases.npz");
  std::array<int, static_cast<size_t>(testing_gru::Mutant::kCount)> killed{};
  int strict = 0, cases = 0;
  for (int i = 0; a.contains("c" + std::to_string(i) + ".W"); ++i, ++cases) {
    const GoldenCase c = golden_case(a, i);
    const auto at = [&](const std::string& name) -> NpyArray& { return a.at("c" + std::to_string(i) + "." + name); };
    const GruRanges ranges = given_ranges(c.net, floats(at("ranges")));
    const auto model = GruModel::quantize(c.net, ranges, c.config);
    ASSERT_TRUE(model);
    const auto wanted = integers<int32_t>(at("h"));
    for (size_t m = 0; m < killed.size(); ++m)
      killed[m] += mutated(model->impl().cells[0]->spec(), c, static_cast<testing_gru::Mutant>(m)) != wanted;
    GruConfig other = c.config;
    for (GruFormat& f : other.tensors) f.saturate = 1 - f.saturate;
    const auto changed = GruModel::quantize(c.net, ranges, other);
    if (!changed) continue;
    std::vector<int64_t> scales;
    for (const GruParam& p : changed->impl().cells[0]->cell().tensors) {
      scales.push_back(p.scale.shift);
      scales.push_back(p.scale.zp);
    }
    strict += scales != integers<int32_t>(at("scales"));
  }
  kill_with_random_cells(killed);
  EXPECT_EQ(killed[0], 0) << "the cell without a mistake must give the golden vectors";
  for (size_t m = 1; m < killed.size(); ++m) EXPECT_GT(killed[m], 0) << "mutant " << m << " lives";
  EXPECT_GT(strict, 0);
  EXPECT_EQ(cases, 24);
}

uint32_t crc32(const std::vector<int32_t>& values) {
  uint32_t crc = ~0u;
  for (const int32_t v : values)
    for (int byte = 0; byte < 4; ++byte) {
      crc ^= static_cast<uint32_t>(v) >> (8 * byte) & 0xff;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
  return ~crc;
}

void check_network(Arrays& a, const std::string& name, const GruNetwork& net) {
  const int64_t steps = 20, batch = 2, count = steps * batch * net.input();
  std::vector<float> x;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i)
    x.push_back((static_cast<float>((i * 2654435761u + 12345) >> 8 & 127) - 64) / 64);
  for (const char* preset : {"seed8", "w8a16"}) {
    GruConfig config = *gru_preset(preset);
    config.table = GruTableMode::kDirect;
    const auto model = GruModel::quantize(net, given_ranges(net, floats(a.at(name + ".ranges"))), config);
    ASSERT_TRUE(model) << model.error().message();
    GruModel::RunOptions options;
    options.codes = true;
    const auto out = model->run(testing_gru::input_of(x, steps, batch), options);
    ASSERT_TRUE(out) << out.error().message();
    EXPECT_EQ(crc32(out->codes), a.at(name + "." + preset).data.as<uint32_t>()[0]) << name << " " << preset;
  }
}

TEST(GruGolden, RealNetworks) {
  if (!has_data()) GTEST_SKIP() << "no rnn/g2p in " << data_dir();
  Arrays a = golden("networks.npz");
  for (const char* part : {"enc", "dec"}) {
    const auto net = load_gru(data_dir() + "/rnn/g2p/checkpoint20.npz", {std::string(part) + "_"});
    ASSERT_TRUE(net) << net.error().message();
    check_network(a, std::string("g2p_") + part, *net);
  }
  const auto both = load_gru(data_dir() + "/rnn/nsnet2");
  ASSERT_TRUE(both) << both.error().message();
  ASSERT_EQ(both->layers(), 2);
  for (int i = 0; i < 2; ++i) {
    GruNetwork one;
    one.cells.push_back(both->cells[static_cast<size_t>(i)]);
    check_network(a, "nsnet2_" + std::to_string(i + 1), one);
  }
}

}  // namespace
}  // namespace lowbit
