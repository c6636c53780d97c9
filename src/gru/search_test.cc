// Bit widths by search, AIMET encodings, weights with zero points.
#include <nlohmann/json.hpp>

#include "gru/test_networks.h"
#include "io/mapped_file.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

MeasuredNetwork make_fixture(uint64_t seed, int layers = 1, bool both = false) {
  return measured_network(seed, layers, both, 0.3);
}

TEST(GruSearch, MeetsTheFloorWithFewerBytesThanTheStart) {
  const MeasuredNetwork f = make_fixture(1);
  GruSearchOptions options;
  options.start = *gru_preset("gates12");
  options.start.table = GruTableMode::kDirect;  // made at once
  options.inputs = std::span(&f.in, 1);
  int64_t last = 0;
  for (const double floor : {18.0, 26.0}) {
    options.floor = floor;
    const auto report = search_gru_bits(f.net, f.ranges, options);
    ASSERT_TRUE(report) << report.error().message();
    const auto model = GruModel::quantize(f.net, f.ranges, report->config);
    ASSERT_TRUE(model);
    EXPECT_GE(sqnr(f, *model), floor);
    EXPECT_EQ(model->bytes(), report->bytes);
    EXPECT_LT(report->bytes, GruModel::quantize(f.net, f.ranges, options.start)->bytes());
    EXPECT_GE(report->bytes, last) << "a higher floor cannot be cheaper here";
    last = report->bytes;
    // Nothing that is still wide could have been narrowed: every last trial of a group fails.
    EXPECT_TRUE(std::any_of(report->tried.begin(), report->tried.end(), [](const auto& t) { return !t.meets; }));
  }
  options.floor = 150;
  EXPECT_FALSE(search_gru_bits(f.net, f.ranges, options));
}

TEST(GruSearch, TakesAnyMetric) {
  const MeasuredNetwork f = make_fixture(2);
  GruSearchOptions options;
  options.start = *gru_preset("w8a16");
  options.start.table = GruTableMode::kDirect;
  int calls = 0;
  options.metric = [&](const GruModel& m) -> Result<double> {
    ++calls;
    return m.config().r.bits >= 4 && m.config()[GruTensor::kH].bits >= 10 ? 1.0 : 0.0;
  };
  options.floor = 1;
  const auto report = search_gru_bits(f.net, f.ranges, options);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->config.r.bits, 4);
  EXPECT_EQ(report->config.w.bits, 2);
  EXPECT_EQ(report->config[GruTensor::kH].bits, 10);
  EXPECT_EQ(report->config[GruTensor::kX].bits, 4);
  EXPECT_EQ(calls, static_cast<int>(report->tried.size()));
}

TEST(GruEncodings, AreWhatTheSchemaSays) {
  const MeasuredNetwork f = make_fixture(3);
  const auto model = GruModel::quantize(f.net, f.ranges, *gru_preset("seed8"));
  const std::string path = testing::TempDir() + "gru_encodings.json";
  ASSERT_TRUE(model->save_encodings(path, true));
  auto json = nlohmann::json::parse(*read_text_file(path, 1 << 20), nullptr, false);
  EXPECT_EQ(json["version"], "1.0.0");
  EXPECT_EQ(json["activation_encodings"].size(), 10u);
  EXPECT_EQ(json["param_encodings"].size(), 4u);
  for (const char* section : {"activation_encodings", "param_encodings"})
    for (const auto& e : json[section]) {
      EXPECT_TRUE(e["name"].is_string() && e["bw"].is_number_integer() && e["is_sym"].is_boolean()) << e;
      EXPECT_EQ(e["dtype"], "INT");
      EXPECT_EQ(e["scale"].size(), e["offset"].size());
      EXPECT_EQ(e["enc_type"] == "PER_CHANNEL", e["scale"].size() > 1);
    }
  ASSERT_TRUE(model->save_encodings(path, false));
  json = nlohmann::json::parse(*read_text_file(path, 1 << 20), nullptr, false);
  EXPECT_EQ(json["version"], "0.6.1");
  const auto h = json["activation_encodings"]["cell.0.output.h"][0];
  EXPECT_EQ(h["bitwidth"], 8);
  EXPECT_EQ(h["is_symmetric"], "False");
  EXPECT_DOUBLE_EQ(h["min"].get<double>(), h["offset"].get<double>() * h["scale"].get<double>());
  EXPECT_DOUBLE_EQ(h["max"].get<double>(), (h["offset"].get<double>() + 255) * h["scale"].get<double>());
  // real = (code + offset) * scale is (q - zp) 2^-shift with q = code - 128.
  const GruScale s = model->output_scale();
  EXPECT_EQ(h["offset"], -128 - s.zp);
  EXPECT_EQ(h["scale"], std::ldexp(1.0, -s.shift));
}

TEST(GruEncodings, ComeBackAsTheyWent) {
  for (const char* preset : {"seed8", "gates12", "accurate"})
    for (const bool lists : {true, false}) {
      const MeasuredNetwork f = make_fixture(4, 2, true);
      GruConfig config = *gru_preset(preset);
      config.table = GruTableMode::kDirect;
      const auto model = GruModel::quantize(f.net, f.ranges, config);
      const std::string path = testing::TempDir() + "gru_encodings_back.json";
      ASSERT_TRUE(model->save_encodings(path, lists));
      const auto back = read_gru_encodings(path, f.net, config);
      ASSERT_TRUE(back) << back.error().message();
      const auto again = GruModel::quantize(f.net, back->ranges, back->config);
      ASSERT_TRUE(again) << again.error().message();
      const auto a = model->report(), b = again->report();
      for (size_t c = 0; c < a.size(); ++c)
        for (size_t t = 0; t < kGruTensors; ++t)
          EXPECT_EQ(a[c].scales[t].shift, b[c].scales[t].shift) << preset << c << t;
      EXPECT_EQ(model->run(f.in)->y, again->run(f.in)->y) << preset;
    }
}

TEST(GruEncodings, BrokenFilesAreNamed) {
  const MeasuredNetwork f = make_fixture(5);
  const auto model = GruModel::quantize(f.net, f.ranges, *gru_preset("seed8"));
  const std::string path = testing::TempDir() + "gru_encodings_broken.json";
  ASSERT_TRUE(model->save_encodings(path, true));
  const std::string good = *read_text_file(path, 1 << 20);
  const auto rejects = [&](auto change, const std::string& word) {
    auto json = nlohmann::json::parse(good, nullptr, false);
    change(json);
    ASSERT_TRUE(write_text_file(path, json.dump()));
    const auto read = read_gru_encodings(path, f.net, GruConfig{});
    ASSERT_FALSE(read) << word;
    EXPECT_NE(read.error().message().find(word), std::string::npos) << read.error().message();
  };
  rejects([](auto& j) { j.erase("param_encodings"); }, "param_encodings");
  rejects([](auto& j) { j["activation_encodings"].erase(0); }, "cell.0.input.x");
  rejects([](auto& j) { j["activation_encodings"][0]["bw"] = 33; }, "bits");
  rejects([](auto& j) { j["activation_encodings"][0]["scale"] = {-1.0}; }, "scale");
  rejects([](auto& j) { j["activation_encodings"][0]["offset"] = {0.5}; }, "offset");
  rejects([](auto& j) { j["activation_encodings"][0]["dtype"] = "FLOAT"; }, "FLOAT");
  rejects([](auto& j) { j["activation_encodings"] = 7; }, "cell.0.input.x");
  for (size_t cut = 0; cut < good.size(); cut += 97) {
    ASSERT_TRUE(write_text_file(path, good.substr(0, cut)));
    EXPECT_FALSE(read_gru_encodings(path, f.net, GruConfig{}));
  }
}

/// Unsigned weights with zero points compute the same as their centered values.
TEST(GruWeights, ZeroPointsGiveTheIntegersOfCentredWeights) {
  Rng rng(6);
  int compared = 0;
  for (int i = 0; i < 300; ++i) {
    GruCell cell = random_cell(rng, between(rng, 1, 12), between(rng, 1, 12));
    cell.w_format = cell.r_format = {between(rng, 2, 7), rng.below(2) == 0, false, 1};
    GruCell centred = cell;
    centred.w_format = centred.r_format = {9, false, true, 1};
    centred.w_zp.clear();
    centred.r_zp.clear();
    for (const int which : {0, 1}) {
      auto& q = which == 0 ? cell.w : cell.r;
      auto& zp = which == 0 ? cell.w_zp : cell.r_zp;
      auto& plain = which == 0 ? centred.w : centred.r;
      zp.assign(static_cast<size_t>(3 * cell.hidden), 0);
      const auto low = static_cast<int>(cell.w_format.q_min()), high = static_cast<int>(cell.w_format.q_max());
      for (auto& z : zp) z = between(rng, low, high);
      for (size_t j = 0; j < q.size(); ++j) {
        q[j] = between(rng, low, high);
        plain[j] = q[j] - zp[j / (q.size() / zp.size())];
      }
    }
    const auto a = GruPlan::make(cell), b = GruPlan::make(centred);
    ASSERT_EQ(bool(a), bool(b));
    if (!a) continue;
    EXPECT_LE((*a)->spec().w_bits, 8);  // seven bits stay bytes whatever their zero point
    const GruSpec& s = (*a)->spec();
    const auto x = random_codes(rng, 3 * s.c, s.grid[kSlotX]), h = random_codes(rng, 3 * s.h, s.grid[kSlotH]);
    EXPECT_TRUE(run_cell(kRefGru, s, x, h, 1, 3) == run_cell(kRefGru, (*b)->spec(), x, h, 1, 3));
    ++compared;
  }
  EXPECT_GT(compared, 150);
}

TEST(GruWeights, EveryFormatAndGranularityQuantizesAndSurvivesItsFile) {
  const MeasuredNetwork f = make_fixture(7, 2);
  for (const int bits : {4, 8, 12, 16})
    for (const bool is_unsigned : {false, true})
      for (const bool symmetric : {false, true})
        for (const GruGranularity g : {GruGranularity::kTensor, GruGranularity::kGate, GruGranularity::kRow}) {
          if (is_unsigned && symmetric) continue;  // no negative weights
          GruConfig config = *gru_preset("w8a16");
          config.table = GruTableMode::kDirect;
          config.w = config.r = {bits, is_unsigned, symmetric, 1};
          config.granularity = g;
          const auto model = GruModel::quantize(f.net, f.ranges, config);
          ASSERT_TRUE(model) << model.error().message();
          EXPECT_GT(sqnr(f, *model), bits == 4 ? 6 : 28) << bits << is_unsigned << symmetric << int(g);
          const std::string path = testing::TempDir() + "gru_weights.lbgru";
          ASSERT_TRUE(model->save(path));
          const auto back = GruModel::open(path);
          ASSERT_TRUE(back) << back.error().message();
          EXPECT_EQ(back->run(f.in)->y, model->run(f.in)->y);
        }
}

}  // namespace
}  // namespace lowbit
