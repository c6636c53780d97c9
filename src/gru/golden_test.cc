// The integers of a NumPy model of the specification: tests/golden/gru/make_gru_golden.py.
#include <map>

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

TEST(GruGolden, RandomCellsGiveTheIntegersOfTheSpecification) {
  Arrays a = golden("cases.npz");
  int cases = 0;
  for (int i = 0; a.contains("c" + std::to_string(i) + ".W"); ++i, ++cases) {
    SCOPED_TRACE("case " + std::to_string(i));
    const auto at = [&](const std::string& name) -> NpyArray& { return a.at("c" + std::to_string(i) + "." + name); };
    const Shape shape = at("x").shape;
    const int64_t hidden = at("R").shape[1];
    GruNetwork net;
    net.cells.push_back({shape[2], hidden, floats(at("W")), floats(at("R")), floats(at("bw")), floats(at("br"))});
    GruConfig config;
    const auto formats = integers<int32_t>(at("formats")), weights = integers<int32_t>(at("weights"));
    for (size_t t = 0; t < kGruTensors; ++t)
      config.tensors[t] = {static_cast<int>(formats[4 * t]), formats[4 * t + 1] != 0, formats[4 * t + 2] != 0,
                           static_cast<int>(formats[4 * t + 3])};
    config.w.bits = config.r.bits = static_cast<int>(weights[0]);
    config.bw.bits = config.br.bits = static_cast<int>(weights[1]);
    config.bias_at_product_scale = weights[2] == 0;
    config.table = GruTableMode::kDirect;
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
    const std::vector<float> x = floats(at("x"));
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
