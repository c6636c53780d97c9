// Properties of every network, whatever its numbers. Each property fails for a named fault of the arithmetic.
#include <cmath>

#include "base/rounding.h"
#include "gru/float_forward.h"
#include "gru/ranges.h"
#include "gru/test_networks.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

std::vector<int32_t> codes_of(const GruModel& model, const GruInput& in, const std::string& isa = "scalar") {
  GruModel::RunOptions options;
  options.isa = isa;
  options.codes = true;
  auto out = model.run(in, options);
  EXPECT_TRUE(out) << out.error().message();
  return out->codes;
}

double sqnr(const std::vector<float>& wanted, const std::vector<float>& got) {
  double signal = 0, noise = 1e-300;
  for (size_t i = 0; i < wanted.size(); ++i) {
    signal += static_cast<double>(wanted[i]) * wanted[i];
    noise += std::pow(static_cast<double>(wanted[i]) - got[i], 2);
  }
  return 10 * std::log10(signal / noise);
}

GruModel model_of(std::vector<GruCell> cells, GruConfig config, bool bidirectional = false) {
  auto impl = make_gru_impl(config, bidirectional, std::move(cells));
  EXPECT_TRUE(impl) << impl.error().message();
  return GruModel(*impl);
}

// ---- The rounding shift ---------------------------------------------------------------------------------------------

TEST(GruRounding, ShiftsAreHalfToEvenOfTheExactQuotient) {
  Rng rng(1);
  for (int i = 0; i < 200000; ++i) {
    const int k = between(rng, 1, 62);
    int64_t x = static_cast<int64_t>(rng.next()) >> between(rng, 2, 62);
    if (rng.below(4) == 0 && k < 52)
      x = (static_cast<int64_t>(rng.below(1000)) - 500) * (int64_t{1} << k) + (int64_t{1} << (k - 1));
    // floor division in 128 bits, then the rest decides
    const __int128 unit = static_cast<__int128>(1) << k;
    __int128 q = x / unit, rest = x % unit;
    if (rest < 0) {
      rest += unit;
      --q;
    }
    const bool up = 2 * rest > unit || (2 * rest == unit && (q & 1) != 0);
    ASSERT_EQ(rounding_shift(x, k), static_cast<int64_t>(q + (up ? 1 : 0))) << x << " >> " << k;
  }
  EXPECT_EQ(rounding_shift(5, 1), 2);    // half up and half away give 3
  EXPECT_EQ(rounding_shift(-5, 1), -2);  // truncation and half away give -3
  EXPECT_EQ(rounding_shift(7, 1), 4);    // truncation gives 3
  EXPECT_EQ(rounding_shift(-3, -2), -12);
  EXPECT_EQ(rounding_shift(INT64_MAX / 4, 63), 0);
}

TEST(GruRounding, ManyValuesAreQuantizedAsOne) {
  Rng rng(20);
  for (int i = 0; i < 300; ++i) {
    GruParam p;
    p.format = random_config(rng).tensors[0];
    p.scale = {between(rng, -31, 31), p.format.symmetric ? 0 : between(rng, p.lo(), p.hi())};
    std::vector<float> v = normals(rng, 40, std::ldexp(1.0, between(rng, -30, 30)));
    for (const float special : {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f}) v.push_back(special);
    for (int half = -5; half <= 5; ++half) v.push_back(std::ldexp(static_cast<float>(half) + 0.5f, -p.scale.shift));
    std::vector<uint16_t> codes(v.size());
    std::vector<float> back(v.size());
    quantize_codes(v, p, codes.data());
    dequantize_codes(codes, p, back.data());
    for (size_t j = 0; j < v.size(); ++j) {
      const int32_t q = quantize_value(v[j], p);
      ASSERT_EQ(codes[j] + p.lo(), q) << v[j];
      ASSERT_EQ(static_cast<double>(back[j]), dequantize_value(q, p.scale));
    }
  }
}

// ---- The cell -------------------------------------------------------------------------------------------------------

TEST(GruProperties, StreamingGivesTheBitsOfTheWholeSequence) {
  Rng rng(2);
  for (int i = 0; i < 30; ++i) {
    const int64_t steps = between(rng, 1, 12), batch = between(rng, 1, 3), c = between(rng, 1, 9),
                  h = between(rng, 1, 11);
    const GruNetwork net = random_network(rng, between(rng, 1, 3), false, c, h);
    const auto x = normals(rng, steps * batch * c, 1);
    const GruModel model = quantized(net, x, steps, batch, random_config(rng));
    const auto whole = codes_of(model, input_of(x, steps, batch));
    auto stream = model.stream(batch, "scalar");
    ASSERT_TRUE(stream);
    const GruParam& in = model.impl().cells[0]->cell()[GruTensor::kX];
    std::vector<int32_t> xq(static_cast<size_t>(batch * c)), y(static_cast<size_t>(batch * h));
    for (int64_t t = 0; t < steps; ++t) {
      for (size_t j = 0; j < xq.size(); ++j) xq[j] = quantize_value(x[static_cast<size_t>(t * batch * c) + j], in);
      ASSERT_TRUE(stream->step_codes(xq, y));
      for (size_t j = 0; j < y.size(); ++j) ASSERT_EQ(y[j], whole[static_cast<size_t>(t * batch * h) + j]);
    }
  }
}

/// A stream stopped anywhere goes on from its state, as codes and as floats, in another stream.
TEST(GruProperties, AStreamGoesOnFromItsState) {
  Rng rng(21);
  const int64_t steps = 6, batch = 2, c = 3, h = 5;
  const GruNetwork net = random_network(rng, 2, false, c, h);
  const auto x = normals(rng, steps * batch * c, 1);
  const GruModel model = quantized(net, x, steps, batch, *gru_preset("accurate"));
  const auto whole = *model.run(input_of(x, steps, batch));
  for (const bool as_codes : {false, true}) {
    std::vector<float> y(static_cast<size_t>(batch * h));
    auto stream = *model.stream(batch, "scalar");
    for (int64_t t = 0; t < steps; ++t) {
      auto next = *model.stream(batch, "scalar");
      ASSERT_TRUE(as_codes ? next.set_state_codes(stream.state_codes()) : next.set_state(stream.state()));
      EXPECT_EQ(next.state_codes(), stream.state_codes());
      ASSERT_TRUE(
          next.step(std::span(x).subspan(static_cast<size_t>(t * batch * c), static_cast<size_t>(batch * c)), y));
      for (size_t j = 0; j < y.size(); ++j) ASSERT_EQ(y[j], whole.y[static_cast<size_t>(t * batch * h) + j]);
      stream = std::move(next);
    }
    stream.reset();
    EXPECT_EQ(stream.state(), std::vector<float>(static_cast<size_t>(2 * batch * h)));
  }
}

TEST(GruProperties, AWrongStateChangesNothing) {
  Rng rng(22);
  const GruNetwork net = random_network(rng, 2, false, 3, 5);
  const GruModel model = quantized(net, normals(rng, 12, 1), 4, 1, *gru_preset("seed8"));
  auto stream = *model.stream(1, "scalar");
  auto state = stream.state_codes();
  for (int32_t& q : state) q = 1;
  ASSERT_TRUE(stream.set_state_codes(state));
  const auto before = stream.state_codes();
  for (const int32_t wrong : {-129, 128}) {
    std::vector<int32_t> bad(state.size(), 2);
    bad.back() = wrong;  // of the last layer
    const auto refused = stream.set_state_codes(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message().find(std::to_string(wrong)), std::string::npos);
    EXPECT_EQ(stream.state_codes(), before);
    std::vector<int32_t> y(5);
    EXPECT_FALSE(stream.step_codes(std::vector<int32_t>{0, 0, wrong}, y));
    EXPECT_EQ(stream.state_codes(), before);
  }
  EXPECT_EQ(stream.set_state_codes(std::vector<int32_t>(3)).error().code, ErrorCode::kShapeMismatch);
  EXPECT_EQ(stream.set_state(std::vector<float>(11)).error().code, ErrorCode::kShapeMismatch);
}

TEST(GruProperties, SequencesOfABatchDoNotSeeEachOther) {
  Rng rng(3);
  const int64_t steps = 6, batch = 5, c = 4, h = 7;
  const GruNetwork net = random_network(rng, 2, true, c, h);
  const auto x = normals(rng, steps * batch * c, 1);
  const GruModel model = quantized(net, x, steps, batch, *gru_preset("seed8"));
  GruInput in = input_of(x, steps, batch);
  const std::vector<int64_t> lengths = {6, 2, 0, 5, 1};
  in.lengths = lengths;
  const auto together = codes_of(model, in);
  const int32_t zero = model.output_scale().zp;
  for (int64_t n = 0; n < batch; ++n) {
    std::vector<float> one;
    for (int64_t t = 0; t < lengths[static_cast<size_t>(n)]; ++t)
      one.insert(one.end(), x.begin() + (t * batch + n) * c, x.begin() + (t * batch + n + 1) * c);
    const auto alone = codes_of(model, input_of(one, lengths[static_cast<size_t>(n)], 1));
    for (int64_t t = 0; t < steps; ++t)
      for (int64_t j = 0; j < 2 * h; ++j) {
        const int32_t got = together[static_cast<size_t>((t * batch + n) * 2 * h + j)];
        const bool inside = t < lengths[static_cast<size_t>(n)];
        EXPECT_EQ(got, inside ? alone[static_cast<size_t>(t * 2 * h + j)] : zero) << n << " " << t << " " << j;
      }
  }
}

TEST(GruProperties, BatchFirstIsTheSameNumbers) {
  Rng rng(4);
  const int64_t steps = 4, batch = 3, c = 5, h = 6;
  const GruNetwork net = random_network(rng, 1, true, c, h);
  const auto x = normals(rng, steps * batch * c, 1);
  const GruModel model = quantized(net, x, steps, batch, *gru_preset("w8a16"));
  std::vector<float> turned(x.size());
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t j = 0; j < c; ++j)
        turned[static_cast<size_t>((n * steps + t) * c + j)] = x[static_cast<size_t>((t * batch + n) * c + j)];
  GruInput in = input_of(turned, steps, batch);
  in.batch_first = true;
  const auto a = codes_of(model, input_of(x, steps, batch)), b = codes_of(model, in);
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t j = 0; j < 2 * h; ++j)
        EXPECT_EQ(a[static_cast<size_t>((t * batch + n) * 2 * h + j)],
                  b[static_cast<size_t>((n * steps + t) * 2 * h + j)]);
}

TEST(GruProperties, TheReverseDirectionIsTheForwardOneOnReversedTime) {
  Rng rng(5);
  const int64_t steps = 7, c = 4, h = 5;
  GruNetwork net = random_network(rng, 1, true, c, h);
  const auto x = normals(rng, steps * c, 1);
  const GruModel both = quantized(net, x, steps, 1, *gru_preset("seed8"));
  const GruModel alone = model_of({both.impl().cells[1]->cell()}, both.config());
  std::vector<float> reversed;
  for (int64_t t = steps; t-- > 0;) reversed.insert(reversed.end(), x.begin() + t * c, x.begin() + (t + 1) * c);
  const auto y = codes_of(both, input_of(x, steps, 1)), z = codes_of(alone, input_of(reversed, steps, 1));
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t j = 0; j < h; ++j)
      EXPECT_EQ(y[static_cast<size_t>(t * 2 * h + h + j)], z[static_cast<size_t>((steps - 1 - t) * h + j)]);
}

TEST(GruProperties, MovingAZeroPointWithItsCodesChangesNothing) {  // zero point not compensated, or twice
  Rng rng(6);
  int compared = 0;
  for (int i = 0; i < 200; ++i) {
    GruCell cell = random_cell(rng, between(rng, 1, 9), between(rng, 1, 9));
    GruParam& x = cell[GruTensor::kX];
    if (x.format.symmetric) continue;
    GruCell moved = cell;
    GruParam& other = moved[GruTensor::kX];
    other.format.bits = 16;  // room for codes that move
    other.format.is_unsigned = false;
    const int by = between(rng, -100, 100);
    other.scale.zp = x.scale.zp + by;
    if (other.scale.zp > other.hi() || other.scale.zp < other.lo() || x.lo() + by < other.lo() ||
        x.hi() + by > other.hi())
      continue;
    const auto a = GruPlan::make(cell), b = GruPlan::make(moved);
    if (!a || !b) continue;
    const int64_t rows = 3;
    std::vector<uint16_t> xa(static_cast<size_t>(rows * cell.input)), xb(xa.size());
    for (size_t j = 0; j < xa.size(); ++j) {
      const int q = between(rng, x.lo(), x.hi());
      xa[j] = static_cast<uint16_t>(q - x.lo());
      xb[j] = static_cast<uint16_t>(q + by - other.lo());
    }
    std::vector<int32_t> ia(static_cast<size_t>(rows * 3 * cell.hidden)), ib(ia.size());
    kRefGru.input((*a)->spec(), nullptr, xa.data(), rows, ia.data(), nullptr);
    kRefGru.input((*b)->spec(), nullptr, xb.data(), rows, ib.data(), nullptr);
    ASSERT_EQ(ia, ib);
    ++compared;
  }
  EXPECT_GT(compared, 50);
}

/// A cell whose update gate is a constant code, by tables of one value.
GruCell constant_update(Rng& rng, int32_t u_code, const GruParam& u) {
  GruCell cell = random_cell(rng, 3, 8);
  cell[GruTensor::kU] = u;
  GruTable t;
  t.mode = GruTableMode::kDirect;
  t.direct.assign(size_t{1} << cell[GruTensor::kUi].format.bits, u_code);
  cell.tables[0] = t;
  return cell;
}

TEST(GruProperties, AnUpdateGateOfOneHoldsTheState) {  // swapped u and r, (1 - u) off by the zero point
  Rng rng(7);
  int held = 0;
  for (int i = 0; i < 100; ++i) {
    const GruParam u{{10, true, false, 0}, {between(rng, 0, 8), between(rng, 0, 700)}};
    const int32_t one = (1 << u.scale.shift) + u.scale.zp;
    if (one > u.hi()) continue;
    const auto plan = GruPlan::make(constant_update(rng, one, u));
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    std::vector<uint16_t> h(static_cast<size_t>(s.h));
    for (auto& q : h) q = static_cast<uint16_t>(between(rng, 0, s.grid[kSlotH].hi - s.grid[kSlotH].lo));
    const auto before = h;
    std::vector<int32_t> ih(static_cast<size_t>(3 * s.h));
    for (auto& v : ih) v = between(rng, s.grid[kSlotIh].lo, s.grid[kSlotIh].hi) - s.grid[kSlotIh].zp;
    std::vector<uint8_t> scratch(static_cast<size_t>(kRefGru.scratch_bytes(s, 1)));
    kRefGru.step(s, nullptr, ih.data(), 1, h.data(), nullptr, scratch.data());
    ASSERT_EQ(h, before);
    ++held;
  }
  EXPECT_GT(held, 30);
}

TEST(GruProperties, AnUpdateGateOfZeroTakesTheCandidate) {
  Rng rng(8);
  const GruParam u{{8, true, false, 1}, {8, 0}};
  int taken = 0;
  for (int i = 0; i < 100; ++i) {
    const GruCell cell = constant_update(rng, 0, u);
    const auto plan = GruPlan::make(cell);
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    std::vector<uint16_t> h(static_cast<size_t>(s.h), static_cast<uint16_t>(s.grid[kSlotH].zp - s.grid[kSlotH].lo));
    std::vector<int32_t> ih(static_cast<size_t>(3 * s.h)), n(static_cast<size_t>(s.h));
    for (auto& v : ih) v = between(rng, s.grid[kSlotIh].lo, s.grid[kSlotIh].hi) - s.grid[kSlotIh].zp;
    std::vector<uint8_t> scratch(static_cast<size_t>(kRefGru.scratch_bytes(s, 1)));
    GruTrace trace;
    trace.n = n.data();
    kRefGru.step(s, nullptr, ih.data(), 1, h.data(), &trace, scratch.data());
    for (size_t j = 0; j < h.size(); ++j) {
      const int64_t aligned = rounding_shift(n[j] - s.grid[kSlotN].zp, s.grid[kSlotN].shift - s.grid[kSlotH].shift);
      const int64_t wanted = std::clamp<int64_t>(aligned + s.grid[kSlotH].zp, s.grid[kSlotH].lo, s.grid[kSlotH].hi);
      ASSERT_EQ(h[j] + s.grid[kSlotH].lo, wanted);
    }
    ++taken;
  }
  EXPECT_GT(taken, 50);
}

TEST(GruProperties, ASymmetricFormatIsAnAsymmetricOneWithZeroPointZero) {
  Rng rng(9);
  const GruNetwork net = random_network(rng, 1, false, 6, 9);
  const auto x = normals(rng, 5 * 6, 1);
  GruConfig config = *gru_preset("seed8");
  for (GruFormat& f : config.tensors) f.symmetric = true;
  const GruModel symmetric = quantized(net, x, 5, 1, config);
  std::vector<GruCell> cells = {symmetric.impl().cells[0]->cell()};
  for (GruParam& p : cells[0].tensors) p.format.symmetric = false;
  EXPECT_EQ(codes_of(symmetric, input_of(x, 5, 1)), codes_of(model_of(cells, config), input_of(x, 5, 1)));
}

TEST(GruProperties, TheSeedsUpdateGateDriftsAndTheAccurateOneHolds) {  // gru.md 4, row 13
  GruNetwork net;
  net.cells.push_back({1, 1, {0, 0, 0}, {0, 0, 0}, {20, 0, -0.549306f}, {0, 0, 0}});  // u = 1, n = -0.5
  const std::vector<float> x(2000, 0.0f), h0 = {0.9f};
  for (const auto& [preset, holds] : {std::pair{"w8a16", false}, std::pair{"accurate", true}}) {
    GruInput in = input_of(x, 2000, 1);
    in.h0 = h0;
    auto ranges = GruRanges::measure(net, std::span(&in, 1));
    ASSERT_TRUE(ranges);
    ranges->set_range(0, GruTensor::kH, -1, 1);
    GruConfig config = *gru_preset(preset);
    if (!holds) config[GruTensor::kU].bits = 8;
    const auto model = GruModel::quantize(net, *ranges, config);
    ASSERT_TRUE(model) << model.error().message();
    const auto out = model->run(in);
    ASSERT_TRUE(out);
    if (holds)
      EXPECT_NEAR(out->y.back(), 0.9f, 1e-4f);
    else
      EXPECT_LT(out->y.back(), -0.45f);
  }
}

// ---- Against floats -------------------------------------------------------------------------------------------------

TEST(GruProperties, WideFormatsApproachTheFloatNetwork) {
  Rng rng(10);
  for (const bool bidirectional : {false, true}) {
    const GruNetwork net = random_network(rng, 2, bidirectional, 13, 17, 0.3);
    const auto x = normals(rng, 30 * 4 * 13, 1);
    const GruInput in = input_of(x, 30, 4);
    const auto wanted = run_gru(net, in);
    ASSERT_TRUE(wanted);
    GruConfig wide = *gru_preset("accurate");
    wide.w.bits = wide.r.bits = 16;
    const double at16 = sqnr(wanted->y, quantized(net, x, 30, 4, wide).run(in)->y);
    const double at8 = sqnr(wanted->y, quantized(net, x, 30, 4, *gru_preset("seed8")).run(in)->y);
    EXPECT_GT(at16, 65) << bidirectional;
    EXPECT_GT(at8, 20) << bidirectional;
    EXPECT_LT(at8, 45) << "better than 8 bits can be";
  }
}

TEST(GruProperties, StrictCoverLosesPrecision) {  // e = 1 is what makes [-1, 1] shift 7
  const Range one{-1, 1};
  EXPECT_EQ(pow2_params(one, {8, false, true}, 1).shift, 7);
  EXPECT_EQ(pow2_params(one, {8, false, true}, 0).shift, 6);
  EXPECT_EQ(pow2_params({0, 1}, {8, true, false}, 1).shift, 8);
  const GruConfig config = *gru_preset("seed8");
  for (const GruFormat& f : config.tensors) EXPECT_EQ(f.saturate, 1);
}

TEST(GruCalibration, EmaKeepsNineTenthsPerTimeStep) {
  GruNetwork net;
  net.cells.push_back({1, 1, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}});
  const std::vector<float> x = {1, -1, 2, 0};  // two steps of two sequences
  const GruInput in = input_of(x, 2, 2);
  const auto ema = GruRanges::measure(net, std::span(&in, 1), {GruMethod::kEma, 0});
  ASSERT_TRUE(ema);
  const auto r = ema->range(0, GruTensor::kX);
  EXPECT_FLOAT_EQ(r[1], 0.9f * 1 + 0.1f * 2);
  EXPECT_FLOAT_EQ(r[0], 0.9f * -1 + 0.1f * 0);
  const auto minmax = GruRanges::measure(net, std::span(&in, 1), {});
  EXPECT_FLOAT_EQ(minmax->range(0, GruTensor::kX)[1], 2);
  // The state carries over to the next input.
  const std::vector<GruInput> twice = {in, in};
  const auto longer = GruRanges::measure(net, twice, {GruMethod::kEma, 0});
  EXPECT_FLOAT_EQ(longer->range(0, GruTensor::kX)[1], 0.9f * (0.9f * 1.1f + 0.1f * 1) + 0.1f * 2);
}

TEST(GruCalibration, BothDirectionsShareXAndH) {
  Rng rng(11);
  const GruNetwork net = random_network(rng, 2, true, 3, 4);
  const auto x = normals(rng, 6 * 2 * 3, 1);
  const GruInput in = input_of(x, 6, 2);
  for (const auto method :
       {GruMethod::kMinMax, GruMethod::kEma, GruMethod::kPercentile, GruMethod::kMse, GruMethod::kSqnr}) {
    const auto ranges = GruRanges::measure(net, std::span(&in, 1), {method, 0.99});
    ASSERT_TRUE(ranges);
    for (const GruTensor t : {GruTensor::kX, GruTensor::kH}) EXPECT_EQ(ranges->range(0, t), ranges->range(1, t));
    EXPECT_NE(ranges->range(0, GruTensor::kIh), ranges->range(1, GruTensor::kIh));
    const auto model = GruModel::quantize(net, *ranges, *gru_preset("seed8"));
    ASSERT_TRUE(model) << gru_method_name(method) << model.error().message();
    const auto report = model->report();
    EXPECT_EQ(report[2].scales[0], report[0].scales[1]) << "layer 1 reads layer 0's h as it is";
  }
}

}  // namespace
}  // namespace lowbit
