// Files of integer networks, ranges and configurations; and what hostile files get.
#include <sys/resource.h>
#include <xxhash.h>

#include <cstring>
#include <functional>

#include "gru/onnx_test_files.h"
#include "gru/test_networks.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT
using namespace testing_io;   // NOLINT

// ---- Integer networks -----------------------------------------------------------------------------------------------

GruModel random_model(Rng& rng, int layers, bool bidirectional, const GruConfig& config, int64_t c = 5, int64_t h = 6) {
  const GruNetwork net = random_network(rng, layers, bidirectional, c, h);
  const auto x = normals(rng, 6 * 2 * c, 1);
  const GruInput in = input_of(x, 6, 2);
  const auto ranges = GruRanges::measure(net, std::span(&in, 1));
  EXPECT_TRUE(ranges);
  auto model = GruModel::quantize(net, *ranges, config);
  EXPECT_TRUE(model) << model.error().message();
  return *model;
}

TEST(GruFile, HoldsEveryNumber) {
  Scratch dir;
  Rng rng(4);
  for (int i = 0; i < 60; ++i) {
    const GruModel model = random_model(rng, between(rng, 1, 2), rng.below(2) == 0, random_config(rng));
    ASSERT_TRUE(model.save(dir / "net.lbgru"));
    const auto back = GruModel::open(dir / "net.lbgru");
    ASSERT_TRUE(back) << back.error().message();
    ASSERT_EQ(back->config().tensors, model.config().tensors);
    for (size_t cell = 0; cell < model.impl().cells.size(); ++cell) {
      const GruCell &a = model.impl().cells[cell]->cell(), &b = back->impl().cells[cell]->cell();
      EXPECT_EQ(a.w, b.w);
      EXPECT_EQ(a.r, b.r);
      EXPECT_EQ(a.bw, b.bw);
      EXPECT_EQ(a.br, b.br);
      EXPECT_EQ(a.bw_shift, b.bw_shift);
      for (size_t t = 0; t < 3; ++t) EXPECT_EQ(a.tables[t], b.tables[t]);
      for (size_t t = 0; t < kGruTensors; ++t) EXPECT_EQ(a.tensors[t].scale, b.tensors[t].scale);
    }
  }
}

TEST(GruFile, RangesComeBackAndGiveTheSameNetwork) {
  Scratch dir;
  Rng rng(5);
  const GruNetwork net = random_network(rng, 2, true, 4, 5);
  const auto x = normals(rng, 9 * 2 * 4, 1);
  const GruInput in = input_of(x, 9, 2);
  for (const auto method :
       {GruMethod::kMinMax, GruMethod::kEma, GruMethod::kPercentile, GruMethod::kMse, GruMethod::kSqnr}) {
    const auto ranges = GruRanges::measure(net, std::span(&in, 1), {method, 0.98});
    ASSERT_TRUE(ranges);
    ASSERT_TRUE(ranges->save(dir / "ranges.json"));
    const auto back = GruRanges::open(dir / "ranges.json");
    ASSERT_TRUE(back) << back.error().message();
    const auto a = GruModel::quantize(net, *ranges, *gru_preset("seed8")),
               b = GruModel::quantize(net, *back, *gru_preset("seed8"));
    ASSERT_TRUE(a && b);
    for (size_t i = 0; i < a->report().size(); ++i) EXPECT_EQ(a->report()[i].scales, b->report()[i].scales);
  }
}

TEST(GruFile, ConfigurationsComeBack) {
  Scratch dir;
  Rng rng(6);
  for (int i = 0; i < 50; ++i) {
    const GruConfig c = random_config(rng);
    write_file(dir / "bits.json", gru_config_json(c));
    const auto back = read_gru_config(dir / "bits.json", GruConfig{});
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(gru_config_json(*back), gru_config_json(c));
  }
  for (const char* bad :
       {R"({"output.h": {"bits": 0}})", R"({"output.h": {"bits": 17}})", R"({"weight.W": {"bits": 20}})",
        R"({"output.g": {"bits": 8}})", R"({"weight.bw": {"unsigned": true}})", R"({"preset": "x"})",
        R"({"table": {"segments": 5000}})", R"({"granularity": "column"})", R"({"bias": 3})",
        R"({"input.x": {"bits": "8"}})", R"([1])", R"({"weight.bw": {"bits": 1}})", ""}) {
    write_file(dir / "bits.json", bad);
    EXPECT_FALSE(read_gru_config(dir / "bits.json", GruConfig{})) << bad;
  }
}

// ---- Hostile files --------------------------------------------------------------------------------------------------

/// Cuts and changes `good`; `use` must survive and refuse every cut. Returns how many mutations were refused.
int attack(const std::string& good, const std::string& path, const std::function<bool(const std::string&)>& use,
           size_t header, uint64_t seed, int rounds = 1500) {
  Rng rng(seed);
  write_file(path, good);
  EXPECT_TRUE(use(path));
  for (int i = 0; i < rounds / 5; ++i) {
    const size_t cut = i < 40 ? static_cast<size_t>(i) : rng.below(good.size());
    write_file(path, good.substr(0, cut));
    EXPECT_FALSE(use(path)) << "cut at " << cut << " of " << good.size();
  }
  int refused = 0;
  for (int i = 0; i < rounds; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) {
      const size_t at = rng.below(std::min(header, bad.size()));
      const uint64_t kind = rng.below(5);
      if (kind == 0) bad[at] = static_cast<char>(bad[at] ^ (1 << rng.below(8)));
      if (kind == 1) bad[at] = static_cast<char>(rng.below(256));
      if (kind == 2) bad[at] = static_cast<char>(0xff);
      if (kind == 3) bad.erase(at, 1 + rng.below(8));
      if (kind == 4) bad.insert(at, bad.substr(rng.below(bad.size()), rng.below(16)));
    }
    write_file(path, bad);
    refused += !use(path);
  }
  return refused;
}

bool use_network(const std::string& path) {
  const auto net = load_gru(path);
  if (!net) return false;
  const std::vector<float> x(static_cast<size_t>(2 * net->input()), 0.5f);
  return run_gru(*net, input_of(x, 2, 1)).has_value();
}

bool use_model(const std::string& path) {
  const auto model = GruModel::open(path);
  if (!model) return false;
  const std::vector<float> x(static_cast<size_t>(2 * model->input()), 0.5f);
  return model->run(input_of(x, 2, 1)).has_value();
}

TEST(GruHostile, Onnx) {
  Scratch dir;
  Rng rng(7);
  const std::string good = onnx_bytes(random_network(rng, 2, false, 3, 2));
  attack(good, dir / "net.onnx", use_network, good.size(), 1);
}

TEST(GruHostile, Npz) {
  Scratch dir;
  for (const char* file : {"gru/networks.npz", "io/compressed.npz"}) {
    const std::string good = read_file(std::string(LOWBIT_SOURCE_DIR) + "/tests/golden/" + file);
    const auto use = [](const std::string& path) { return read_float_arrays(path).has_value(); };
    EXPECT_GT(attack(good, dir / "net.npz", use, good.size(), 2), 1000) << file;
  }
}

TEST(GruHostile, IntegerNetworkAndItsChecksum) {
  Scratch dir;
  Rng rng(8);
  const GruModel model = random_model(rng, 1, false, *gru_preset("seed8"), 3, 2);
  ASSERT_TRUE(model.save(dir / "a.lbgru"));
  const std::string good = read_file(dir / "a.lbgru");
  EXPECT_GT(attack(good, dir / "net.lbgru", use_model, good.size(), 3), 1400) << "the checksum covers every tensor";
}

std::string hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// Other numbers in the file, and the checksum that belongs to them: what is not refused gives the same integers
/// everywhere.
TEST(GruHostile, OtherNumbersBehindARightChecksum) {
  Scratch dir;
  Rng rng(11);
  int refused = 0, ran = 0;
  for (const auto& [preset, rounds] : {std::pair{"seed8", 300}, {"accurate", 60}}) {
    const GruModel model = random_model(rng, 1, true, *gru_preset(preset), 3, 2);
    ASSERT_TRUE(model.save(dir / "a.lbgru"));
    const std::string good = read_file(dir / "a.lbgru");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, good.data(), 8);
    const size_t start = 8 + header_bytes, mark = good.find("\"xxh3\":\"") + 8;
    for (int i = 0; i < rounds; ++i) {
      std::string bad = good;
      for (uint64_t n = 1 + rng.below(3); n > 0; --n) {
        const size_t at = start + rng.below((bad.size() - start) / 8) * 8, bytes = size_t{1} << rng.below(4);
        const int64_t numbers[] = {
            0, 1, -1, 31, 64, 127, 255, -32768, INT32_MAX, INT64_MIN, int64_t(rng.below(600)) - 300};
        std::memcpy(bad.data() + at, &numbers[rng.below(std::size(numbers))], bytes);
      }
      const std::string checksum = hexadecimal(XXH3_64bits(bad.data() + start, bad.size() - start));
      bad.replace(mark, checksum.size(), checksum);
      write_file(dir / "b.lbgru", bad);
      const auto opened = GruModel::open(dir / "b.lbgru");
      if (!opened) {
        EXPECT_EQ(opened.error().message().find("checksum"), std::string::npos);
        ++refused;
        continue;
      }
      const std::vector<float> x(static_cast<size_t>(6 * opened->input()), 0.5f);
      GruModel::RunOptions scalar, best;
      scalar.isa = "scalar";
      scalar.codes = best.codes = true;
      const auto a = opened->run(input_of(x, 3, 2), scalar), b = opened->run(input_of(x, 3, 2), best);
      ASSERT_EQ(a.has_value(), b.has_value());
      EXPECT_TRUE(!a || a->codes == b->codes);
      ++ran;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(ran, 30);
}

/// A shape that the file's tensors do not have must be noticed before anything of its size is made.
TEST(GruHostile, AShapeThatLiesTakesNoMemory) {
  Scratch dir;
  Rng rng(12);
  for (const char* preset : {"seed8", "w8a16"}) {
    const GruModel model = random_model(rng, 1, false, *gru_preset(preset), 5, 7);
    ASSERT_TRUE(model.save(dir / "a.lbgru"));
    std::string bad = read_file(dir / "a.lbgru");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bad.data(), 8);
    const size_t start = 8 + header_bytes, mark = bad.find("\"xxh3\":\"") + 8;
    const std::string shape = raw<int64_t>(5) + raw<int64_t>(7);
    const size_t at = bad.find(shape, start);
    ASSERT_NE(at, std::string::npos);
    bad.replace(at, 16, raw<int64_t>(20000) + raw<int64_t>(20000));
    bad.replace(mark, 16, hexadecimal(XXH3_64bits(bad.data() + start, bad.size() - start)));
    write_file(dir / "b.lbgru", bad);
    struct rusage before {
    }, after{};
    getrusage(RUSAGE_SELF, &before);
    const auto opened = GruModel::open(dir / "b.lbgru");
    getrusage(RUSAGE_SELF, &after);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(opened.error().message().find("W.codes"), std::string::npos) << opened.error().message();
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "kilobytes";
  }
}

/// A valid file whose numbers are changed and whose checksum is right: the plan and the derived shifts must catch it.
TEST(GruHostile, NumbersThatContradictEachOther) {
  Scratch dir;
  Rng rng(9);
  const GruModel model = random_model(rng, 1, false, *gru_preset("seed8"), 3, 2);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    GruCell cell = model.impl().cells[0]->cell();
    switch (rng.below(6)) {
      case 0:
        cell.tensors[rng.below(10)].scale.zp = between(rng, 128, 1 << 20);
        break;
      case 1:
        cell.tensors[rng.below(10)].scale.shift = between(rng, 32, 100);
        break;
      case 2:
        cell.tables[rng.below(3)].threshold[1 + rng.below(3)] = -1000;
        break;
      case 3:
        cell.w_shift[rng.below(6)] = between(rng, 40, 100);
        break;
      case 4:
        cell.w.pop_back();
        break;
      default:
        cell.tables[rng.below(3)].shift[0] = 63;
    }
    refused += !GruPlan::make(cell);
  }
  EXPECT_EQ(refused, 400);
}

TEST(GruHostile, Ranges) {
  Scratch dir;
  Rng rng(10);
  const GruNetwork net = random_network(rng, 1, false, 3, 4);
  const auto x = normals(rng, 5 * 3, 1);
  const GruInput in = input_of(x, 5, 1);
  const auto ranges = GruRanges::measure(net, std::span(&in, 1), {GruMethod::kSqnr, 1});
  ASSERT_TRUE(ranges && ranges->save(dir / "a.json"));
  std::string good = read_file(dir / "a.json");
  good.resize(good.find_last_of('}') + 1);
  const auto use = [&](const std::string& path) {
    const auto r = GruRanges::open(path);
    return r && GruModel::quantize(net, *r, *gru_preset("seed8")).has_value();
  };
  EXPECT_GT(attack(good, dir / "b.json", use, good.size(), 4, 300), 60);
}

}  // namespace
}  // namespace lowbit
