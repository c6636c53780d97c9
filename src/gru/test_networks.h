#pragma once
// Helpers of this folder's tests: networks with random weights, integer cells with random numbers, the test data.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/rng.h"
#include "gru/cell.h"
#include "gru/model.h"
#include "gru/table.h"
#include "lowbit/gru.h"

namespace lowbit::testing_gru {

inline std::string data_dir() {
  const char* given = std::getenv("LOWBIT_DATA");
  return given != nullptr ? given : std::string(LOWBIT_SOURCE_DIR) + "/../shared/data";
}
inline bool has_data() { return std::filesystem::exists(data_dir() + "/rnn/g2p/checkpoint20.npz"); }

inline std::vector<float> normals(Rng& rng, int64_t n, double scale, double mean = 0) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = static_cast<float>(mean + scale * rng.normal());
  return v;
}

inline GruNetwork random_network(Rng& rng, int layers, bool bidirectional, int64_t c, int64_t h, double spread = 0.4) {
  GruNetwork net;
  net.bidirectional = bidirectional;
  for (int l = 0; l < layers; ++l)
    for (int d = 0; d < net.directions(); ++d) {
      const int64_t in = l == 0 ? c : net.directions() * h;
      net.cells.push_back({in, h, normals(rng, 3 * h * in, spread), normals(rng, 3 * h * h, spread),
                           normals(rng, 3 * h, 0.3), normals(rng, 3 * h, 0.3)});
    }
  return net;
}

inline int between(Rng& rng, int low, int high) {
  return low + static_cast<int>(rng.below(static_cast<uint64_t>(high - low + 1)));
}

inline GruConfig random_config(Rng& rng) {
  GruConfig c;
  for (int t = 0; t < kGruTensors; ++t) {
    GruFormat& f = c.tensors[static_cast<size_t>(t)];
    f.bits = rng.below(3) == 0 ? between(rng, 1, 16) : between(rng, 6, 16);
    f.is_unsigned = rng.below(4) == 0;
    f.symmetric = rng.below(4) == 0;
    f.saturate = static_cast<int>(rng.below(2));
  }
  for (const GruTensor t : {GruTensor::kU, GruTensor::kR}) c[t].is_unsigned = rng.below(4) != 0;
  c.w.bits = between(rng, 1, 16);
  c.r.bits = between(rng, 1, 16);
  for (GruFormat* f : {&c.w, &c.r}) {
    f->is_unsigned = rng.below(4) == 0;
    f->symmetric = rng.below(3) != 0;
  }
  c.granularity = static_cast<GruGranularity>(rng.below(3));
  c.bias_at_product_scale = rng.below(2) == 0;
  if (!c.bias_at_product_scale) c.bw.bits = c.br.bits = between(rng, 2, 16);
  c.table = static_cast<GruTableMode>(rng.below(3));
  c.segments = std::array{16, 32, 64}[rng.below(3)];
  return c;
}

/// A cell of extreme numbers: any zero points, any shifts near each other, codes at their limits. Plans may refuse it.
inline GruCell random_cell(Rng& rng, int64_t c, int64_t h) {
  GruCell cell;
  const GruConfig config = random_config(rng);
  cell.input = c;
  cell.hidden = h;
  cell.w_format = config.w;
  cell.r_format = config.r;
  cell.bw_format = config.bw;
  cell.br_format = config.br;
  const int base = between(rng, -2, 8);
  for (int t = 0; t < kGruTensors; ++t) {
    GruParam& p = cell.tensors[static_cast<size_t>(t)];
    p.format = config.tensors[static_cast<size_t>(t)];
    p.scale.shift = base + between(rng, -3, 10);
    const int kind = between(rng, 0, 3);
    p.scale.zp = p.format.symmetric ? 0 : kind == 0 ? p.lo() : kind == 1 ? p.hi() : between(rng, p.lo(), p.hi());
  }
  GruScale& u = cell[GruTensor::kU].scale;
  u.shift = between(rng, 0, 16);
  const bool saturating = rng.below(4) == 0;
  const auto codes = [&](int64_t n, const GruFormat& f, auto& out) {
    out.resize(static_cast<size_t>(n));
    for (auto& q : out)
      q = static_cast<std::remove_reference_t<decltype(q)>>(
          saturating ? (rng.below(2) ? f.q_min() : f.q_max())
                     : f.q_min() + static_cast<int64_t>(rng.below(static_cast<uint64_t>(f.q_max() - f.q_min()) + 1)));
  };
  codes(3 * h * c, cell.w_format, cell.w);
  codes(3 * h * h, cell.r_format, cell.r);
  if (!cell.w_format.symmetric) codes(3 * h, cell.w_format, cell.w_zp);
  if (!cell.r_format.symmetric) codes(3 * h, cell.r_format, cell.r_zp);
  GruFormat bias = cell.bw_format;
  bias.bits = std::min(bias.bits, 20);
  codes(3 * h, bias, cell.bw);
  codes(3 * h, bias, cell.br);
  for (auto* shifts : {&cell.w_shift, &cell.r_shift, &cell.bw_shift, &cell.br_shift})
    for (int64_t i = 0; i < 3 * h; ++i) shifts->push_back(between(rng, 4, 14));
  for (size_t i = 0; i < 3; ++i)
    cell.tables[i] =
        make_table(i == 2 ? GruFunction::kTanh : GruFunction::kSigmoid, cell[kGateInputs[i]], cell[kGateOutputs[i]],
                   cell[kGateInputs[i]].format.bits > 12 ? GruTableMode::kFused : config.table, config.segments);
  return cell;
}

inline GruInput input_of(const std::vector<float>& x, int64_t steps, int64_t batch) {
  GruInput in;
  in.steps = steps;
  in.batch = batch;
  in.x = x;
  return in;
}

struct CellRun {
  std::vector<int32_t> ih, trace[7];
  std::vector<uint16_t> h;
  bool operator==(const CellRun&) const = default;
};

/// `steps` steps of `batch` sequences.
inline CellRun run_cell(const GruKernel& kernel, const GruSpec& s, const std::vector<uint16_t>& x,
                        std::vector<uint16_t> h, int64_t steps, int64_t batch) {
  CellRun run;
  Buffer packed = *Buffer::allocate(kernel.packed_bytes(s), "test");
  kernel.pack(s, packed.as<uint8_t>());
  Buffer scratch = *Buffer::allocate(kernel.scratch_bytes(s, steps * batch), "test");
  run.ih.resize(static_cast<size_t>(steps * batch * 3 * s.h));
  kernel.input(s, packed.as<uint8_t>(), x.data(), steps * batch, run.ih.data(), scratch.as<uint8_t>());
  run.trace[0].resize(static_cast<size_t>(batch * 3 * s.h));
  for (int i = 1; i < 7; ++i) run.trace[i].resize(static_cast<size_t>(batch * s.h));
  const GruTrace trace = {run.trace[0].data(), run.trace[1].data(), run.trace[2].data(), run.trace[3].data(),
                          run.trace[4].data(), run.trace[5].data(), run.trace[6].data()};
  for (int64_t t = 0; t < steps; ++t) {
    kernel.step(s, packed.as<uint8_t>(), run.ih.data() + t * batch * 3 * s.h, batch, h.data(), t % 2 ? nullptr : &trace,
                scratch.as<uint8_t>());
    run.h.insert(run.h.end(), h.begin(), h.end());
  }
  return run;
}

inline std::vector<uint16_t> random_codes(Rng& rng, int64_t n, const GruGrid& g) {
  std::vector<uint16_t> out(static_cast<size_t>(n));
  const bool extreme = rng.below(4) == 0;
  for (auto& q : out) {
    const auto span = static_cast<uint64_t>(g.hi - g.lo);
    q = static_cast<uint16_t>(extreme ? (rng.below(2) ? 0 : span) : rng.below(span + 1));
  }
  return out;
}

/// Weights of `bits` bits.
inline void make_few_bits(Rng& rng, GruCell& cell, int bits) {
  cell.w_format = cell.r_format = {bits, false, true, 1};
  cell.w_zp.clear();
  cell.r_zp.clear();
  for (auto* w : {&cell.w, &cell.r})
    for (auto& q : *w)
      q = static_cast<std::remove_reference_t<decltype(q)>>(
          between(rng, static_cast<int>(cell.w_format.q_min()), static_cast<int>(cell.w_format.q_max())));
}

/// A network of 9 inputs and 14 units, an input of 25 steps of 3 sequences, and the ranges measured on it.
struct MeasuredNetwork {
  GruNetwork net;
  std::vector<float> x;
  GruInput in;
  GruRanges ranges;
};

inline MeasuredNetwork measured_network(uint64_t seed, int layers, bool bidirectional, double spread) {
  Rng rng(seed);
  GruNetwork net = random_network(rng, layers, bidirectional, 9, 14, spread);
  std::vector<float> x = normals(rng, int64_t{25} * 3 * 9, 1);
  const GruInput in = input_of(x, 25, 3);
  GruRanges ranges = *GruRanges::measure(net, std::span(&in, 1));
  MeasuredNetwork m{std::move(net), std::move(x), {}, std::move(ranges)};
  m.in = input_of(m.x, 25, 3);
  return m;
}

/// Signal-to-quantization-noise ratio of the outputs on the network's own input, in dB.
inline double sqnr(const MeasuredNetwork& f, const GruModel& model) {
  const auto wanted = run_gru(f.net, f.in)->y, got = model.run(f.in)->y;
  double signal = 0, error = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    signal += double(wanted[i]) * double(wanted[i]);
    error += (double(got[i]) - double(wanted[i])) * (double(got[i]) - double(wanted[i]));
  }
  return 10 * std::log10(signal / error);
}

inline GruModel quantized(const GruNetwork& net, const std::vector<float>& x, int64_t steps, int64_t batch,
                          const GruConfig& config, GruMethod method = GruMethod::kMinMax) {
  const GruInput in = input_of(x, steps, batch);
  const auto ranges = GruRanges::measure(net, std::span(&in, 1), {method, 0.999});
  EXPECT_TRUE(ranges) << ranges.error().message();
  auto model = GruModel::quantize(net, *ranges, config);
  EXPECT_TRUE(model) << model.error().message();
  return *model;
}

}  // namespace lowbit::testing_gru
