#include "lowbit/bench.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "base/try.h"
#include "gru/random_network.h"

namespace lowbit {
namespace {

constexpr double kMostNumbers = 1 << 29;  // 2 GiB of floats

std::vector<float> normals(Rng& rng, int64_t count, double scale) {
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = static_cast<float>(scale * rng.normal());
  return v;
}

GruInput input_of(std::span<const float> x, int64_t steps, int64_t batch) {
  GruInput in;
  in.steps = steps;
  in.batch = batch;
  in.x = x;
  return in;
}

Result<GruBenchRow> time_isa(const GruBenchOptions& options, const RandomGru& gru, const std::vector<float>& wanted,
                             const std::string& asked) {
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(asked));
  GruBenchRow row;
  row.isa = isa_name(isa);
  GruModel::RunOptions run;
  run.isa = row.isa;
  const GruInput in = gru.input();
  LOWBIT_TRY_ASSIGN(const GruOutput got, gru.model().run(in, run));
  row.checked = got.y == wanted;
  LOWBIT_TRY_ASSIGN(GruStream stream, gru.model().stream(options.batch, row.isa));
  const double to_us = 1e6 / static_cast<double>(options.steps);
  row.us_per_step = to_us * best_seconds(options.seconds, [&] { (void)gru.model().run(in, run); });
  std::vector<float> y(static_cast<size_t>(options.batch * options.hidden));
  const auto columns = static_cast<size_t>(options.batch * options.input);
  row.stream_us_per_step = to_us * best_seconds(options.seconds, [&] {
                             for (size_t t = 0; t < static_cast<size_t>(options.steps); ++t)
                               (void)stream.step(in.x.subspan(t * columns, columns), y);
                           });
  return row;
}

}  // namespace

Result<RandomGru> RandomGru::make(int64_t steps, int64_t batch, int64_t c, int64_t h, const std::string& preset,
                                  int weight_bits) {
  Rng rng(1);
  const double spread = 0.5 / std::sqrt(static_cast<double>(h));
  GruNetwork network;
  network.cells.push_back({c, h, normals(rng, 3 * h * c, spread), normals(rng, 3 * h * h, spread),
                           normals(rng, 3 * h, 0.1), normals(rng, 3 * h, 0.1)});
  std::vector<float> x = normals(rng, steps * batch * c, 1);
  LOWBIT_TRY_ASSIGN(GruConfig config, gru_preset(preset));
  config.w.bits = config.r.bits = weight_bits;
  // A few steps of one sequence say what ranges there are.
  const int64_t seen = std::min<int64_t>(steps * batch, 20);
  const GruInput first = input_of(std::span(x).first(static_cast<size_t>(seen * c)), seen, 1);
  LOWBIT_TRY_ASSIGN(const GruRanges ranges, GruRanges::measure(network, std::span(&first, 1)));
  LOWBIT_TRY_ASSIGN(GruModel model, GruModel::quantize(network, ranges, config));
  return RandomGru(std::move(model), std::move(x), steps, batch);
}

GruInput RandomGru::input() const { return input_of(x_, steps_, batch_); }

Result<GruBenchReport> bench_gru(const GruBenchOptions& options) {
  const double weights = 3.0 * double(options.hidden) * double(options.input + options.hidden);
  const double columns = double(std::max(options.input, options.hidden));
  const double states = double(options.steps) * double(options.batch) * columns;
  if (weights > kMostNumbers || states > kMostNumbers)
    return fail(ErrorCode::kInvalidArgument, "gru bench",
                std::to_string(options.steps) + " steps of " + std::to_string(options.batch) + " sequences, " +
                    std::to_string(options.input) + " inputs, " + std::to_string(options.hidden) + " units",
                "at most 2^29 weights and numbers in x and y");
  LOWBIT_TRY_ASSIGN(const RandomGru gru, RandomGru::make(options.steps, options.batch, options.input, options.hidden,
                                                         options.preset, options.weight_bits));
  GruModel::RunOptions scalar;
  scalar.isa = "scalar";
  LOWBIT_TRY_ASSIGN(const GruOutput wanted, gru.model().run(gru.input(), scalar));
  GruBenchReport report;
  report.bytes = gru.model().bytes();
  for (const std::string& isa : options.isas) {
    LOWBIT_TRY_ASSIGN(GruBenchRow row, time_isa(options, gru, wanted.y, isa));
    report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace lowbit
