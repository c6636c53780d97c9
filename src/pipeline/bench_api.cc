#include "lowbit/bench.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/clock.h"
#include "base/rng.h"
#include "base/try.h"
#include "format/qtensor.h"
#include "kernels/cuda_api.h"
#include "lowbit/model.h"
#include "ops/time_matmul.h"
#include "runtime/engine.h"

namespace lowbit {
namespace {

struct Rate {
  double median = 0, spread = 0;  // spread: (max - min) / median
};

/// `work` handles `tokens` tokens; run once to warm up, then `repetitions` times.
Result<Rate> tokens_per_second(int64_t tokens, int repetitions, const std::function<Status()>& work) {
  std::vector<double> rates;
  LOWBIT_TRY(work());
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    LOWBIT_TRY(work());
    rates.push_back(static_cast<double>(tokens) / seconds_since(start));
  }
  std::sort(rates.begin(), rates.end());
  const double median = rates[rates.size() / 2];
  return Rate{median, (rates.back() - rates.front()) / median};
}

std::vector<TokenId> random_tokens(int64_t n, int64_t vocab_size) {
  Rng rng(1);
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (TokenId& t : tokens) t = static_cast<TokenId>(rng.below(static_cast<uint64_t>(vocab_size)));
  return tokens;
}

/// Sessions that run together, each on its own pages.
using Sessions = std::vector<Session>;

Sessions forks_of(const Sessions& sessions) {
  Sessions forks;
  for (const Session& session : sessions) forks.push_back(session.fork());
  return forks;
}

Status append_to_all(Sessions& sessions, std::span<const TokenId> tokens) {
  std::vector<SessionTokens> parts;
  for (Session& session : sessions) parts.push_back({&session, tokens});
  return Session::prefill_together(parts);
}

/// Each session goes on with the likeliest tokens, `steps` of them behind `first`: on a GPU, logits stay there.
Status generate_in_all(Sessions& sessions, TokenId first, int64_t steps) {
  constexpr int64_t kAtOnce = 8;  // about as many as a session that streams its text
  std::vector<TokenId> last(sessions.size(), first), next(sessions.size() * kAtOnce);
  for (int64_t done = 0; done < steps; done += kAtOnce) {
    const auto count = static_cast<size_t>(std::min(kAtOnce, steps - done));
    std::vector<SessionTokens> parts;
    for (size_t i = 0; i < sessions.size(); ++i)
      parts.push_back({&sessions[i], {&last[i], 1}, std::span(next).subspan(i * kAtOnce, count)});
    LOWBIT_TRY(Session::prefill_together(parts));
    for (size_t i = 0; i < sessions.size(); ++i) last[i] = parts[i].next.back();
  }
  return {};
}

/// How far logits may differ between batches, a part of the largest; 0: nowhere. Tensor cores sum products of 16-bit x
/// in the order of the kernel that the number of rows gets. With x in E4M3 a sum that differs in a late bit moves codes
/// of the next layer, so that two batches are as far apart as two independent roundings of x:
/// docs/adr/0191-fp8-batches-are-as-near-as-two-roundings.md.
double bound_of(const ModelInfo& info) {
  if (info.isa != "cuda") return 0;
  if (info.activation == "fp8") return 0.25;
  return info.activation == "f16" || info.activation == "bf16" ? 0.02 : 0;
}
/// The largest difference by the largest of a; infinite where not all are numbers.
double distance(std::span<const float> a, std::span<const float> b) {
  double largest = 0, difference = 0;
  bool finite = a.size() == b.size();
  for (size_t i = 0; finite && i < a.size(); ++i) {
    finite = std::isfinite(a[i]) && std::isfinite(b[i]);
    largest = std::max(largest, std::abs(double(a[i])));
    difference = std::max(difference, std::abs(double(a[i]) - double(b[i])));
  }
  if (!finite) return std::numeric_limits<double>::infinity();
  return difference > 0 ? difference / largest : 0;
}

/// The tokens that are generated are those with the largest logits, and the same for all: their sequences are.
Result<bool> generates_the_likeliest(const Sessions& before, TokenId first, int64_t steps, double bound) {
  Sessions together = forks_of(before);
  LOWBIT_TRY(generate_in_all(together, first, steps));
  Session alone = before.front().fork();
  const auto tokens = together.front().tokens().subspan(static_cast<size_t>(alone.length()));
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    LOWBIT_TRY_ASSIGN(const auto logits, alone.decode(tokens[t]));
    const auto largest = std::max_element(logits.begin(), logits.end());
    const float chosen = logits[static_cast<size_t>(tokens[t + 1])];
    if (bound == 0 ? largest - logits.begin() != tokens[t + 1]
                   : !(double(*largest) - chosen <= bound * std::abs(*largest)))
      return false;
  }
  return bound > 0 || std::all_of(together.begin(), together.end(), [&](const Session& session) {
           return std::ranges::equal(session.tokens().last(tokens.size()), tokens);
         });
}

/// One call for all tokens, one call per token, and one per token for all sessions: how far their logits are apart.
Result<double> distance_of_ways(const Sessions& before, std::span<const TokenId> tokens) {
  Session at_once = before.back().fork(), apart = before.back().fork();
  Sessions together = forks_of(before);
  LOWBIT_TRY_ASSIGN(const auto batched, at_once.prefill(tokens));
  std::span<const float> single;
  for (const TokenId t : tokens) {
    LOWBIT_TRY_ASSIGN(single, apart.decode(t));
    if (before.size() > 1) LOWBIT_TRY(append_to_all(together, {&t, 1}));
  }
  const double batch = distance(single, batched);
  return before.size() == 1 ? batch : std::max(batch, distance(single, together.back().logits()));
}

/// Times `passes` passes of work step by step; appends to steps and returns passes per second.
Result<double> profile_passes(Model& model, const char* phase, int64_t passes, const std::function<Status()>& work,
                              std::vector<StepReport>& steps) {
  model.set_profiling(true);
  const auto start = Clock::now();
  const Status status = work();
  const double total = seconds_since(start);
  model.set_profiling(false);
  LOWBIT_TRY(status);
  const double each = 1.0 / static_cast<double>(passes);
  for (const StepProfile& p : model.profile())
    steps.push_back({phase, p.step, each * static_cast<double>(p.calls), each * p.seconds, p.seconds / total,
                     p.seconds > 0 ? 1e-9 * p.bytes / p.seconds : 0,
                     p.seconds > 0 ? 1e-9 * p.operations / p.seconds : 0});
  return static_cast<double>(passes) / total;
}

Result<Model> open_for_bench(const std::string& path, const ModelBenchOptions& options) {
  ModelOptions open;
  open.activation = options.activation;
  open.context = options.depth + options.prompt + options.generate;
  open.kv = options.kv;
  open.kv_residual = options.kv_residual;
  open.kv_keep = options.kv_keep;
  open.kv_refresh = options.kv_refresh;
  open.kv_demote = options.kv_demote;
  open.exact = options.exact;
  open.tune = options.tune;
  open.compute = options.compute;
  open.progress = options.progress;
  return Model::open(path, open);
}

ModelBenchReport report_on(const std::string& path, const ModelInfo& info) {
  ModelBenchReport r;
  r.model = path;
  r.activation = info.activation;
  r.kv = info.kv;
  r.isa = info.isa;
  r.threads = info.threads;
  r.weight_bytes = info.weight_bytes;
  r.load_s = info.load_s;
  return r;
}

}  // namespace

Result<MatmulBenchReport> bench_matmul(const MatmulBenchOptions& options) {
  LOWBIT_TRY_ASSIGN(const Engine engine, Engine::make(options.compute));
  TimedMatmul timed;
  timed.format = options.format;
  timed.group = options.group;
  timed.m = options.m;
  timed.n = options.n;
  timed.k = options.k;
  LOWBIT_TRY_ASSIGN(const ActivationChoice activation, parse_activation(options.activation));
  timed.activation = activation.x.activation;
  timed.activation_group = activation.x.group;
  timed.halves = activation.x.rounding.halves;
  timed.cold = options.cold;
  timed.isa = engine.isa;
  timed.seconds = options.min_seconds;
  LOWBIT_TRY_ASSIGN(const MatmulTiming timing,
                    engine.gpu >= 0 ? time_device_matmul(timed, *engine.pool) : time_matmul(timed, *engine.pool));

  MatmulBenchReport r;
  r.kernel = timing.kernel;
  r.isa = engine.gpu >= 0 ? "cuda" : isa_name(engine.isa);
  r.format = format_info(options.format).name;
  r.scaling = scaling_name({1, options.group, ScaleKind::kF16, ZeroKind::kNone});
  r.m = options.m;
  r.n = options.n;
  r.k = options.k;
  r.threads = engine.threads;
  r.cold = timing.cold;
  r.checked = timing.checked;
  r.seconds = timing.seconds;
  r.spread = timing.seconds > 0 ? (timing.seconds_p90 - timing.seconds_p10) / timing.seconds : 0;
  r.gops = timing.gops;
  r.gb_s = timing.gb_s;
  r.bits_per_weight = 8.0 * static_cast<double>(timing.weight_bytes) /
                      (static_cast<double>(options.n) * static_cast<double>(options.k));
  if (options.cold && engine.gpu < 0) {
    LOWBIT_TRY_ASSIGN(const ReadBandwidth rate, measure_read_bandwidth(*engine.pool));
    r.bandwidth_gb_s = rate.median;
    r.percent_of_peak = 100 * r.gb_s / r.bandwidth_gb_s;
  }
  return r;
}

Result<ModelBenchReport> bench_model(const std::string& path, const ModelBenchOptions& options) {
  if (options.depth < 0 || options.prompt < 2 || options.generate < 1 || options.repetitions < 1 || options.batch < 1)
    return fail(ErrorCode::kInvalidArgument, "bench model",
                "-p " + std::to_string(options.prompt) + " -n " + std::to_string(options.generate) + " --batch " +
                    std::to_string(options.batch),
                "at least 2 prompt tokens, 1 generated token, 1 session and 1 repetition");
  LOWBIT_TRY_ASSIGN(Model model, open_for_bench(path, options));
  const int64_t loaded_bytes = model.device_bytes();
  const auto tokens = random_tokens(options.depth + options.prompt + options.generate, model.info().vocab_size);
  const std::span all(tokens);
  const auto before = all.first(static_cast<size_t>(options.depth));
  const auto prompt = all.subspan(before.size(), static_cast<size_t>(options.prompt));
  Sessions starts;  // their forks share what lies before, they do not
  for (int64_t i = 0; i < options.batch; ++i) {
    starts.push_back(model.session());
    if (!before.empty()) LOWBIT_TRY(starts.back().prefill(before));
  }

  ModelBenchReport r = report_on(path, model.info());
  r.logits_bound = bound_of(model.info());
  LOWBIT_TRY_ASSIGN(r.logits_apart, distance_of_ways(starts, prompt.first(std::min<size_t>(prompt.size(), 16))));
  LOWBIT_TRY_ASSIGN(
      const bool likeliest,
      generates_the_likeliest(starts, tokens.back(), std::min<int64_t>(options.generate, 8), r.logits_bound));
  r.checked = likeliest && r.logits_apart <= r.logits_bound;
  const auto read_prompt = [&]() -> Status {
    Sessions sessions = forks_of(starts);
    return append_to_all(sessions, prompt);
  };
  const auto generate = [&]() -> Status {
    Sessions sessions = forks_of(starts);
    return generate_in_all(sessions, tokens.back(), options.generate);
  };
  for (int i = 0; options.tune && i < 20; ++i)
    LOWBIT_TRY(read_prompt());  // the prompt's shapes need calls to be tuned; single tokens have enough of them
  LOWBIT_TRY_ASSIGN(const Rate prefill,
                    tokens_per_second(options.batch * options.prompt, options.repetitions, read_prompt));
  LOWBIT_TRY_ASSIGN(const Rate decode,
                    tokens_per_second(options.batch * options.generate, options.repetitions, generate));
  if (options.profile) {
    LOWBIT_TRY_ASSIGN(const double prompts, profile_passes(model, "prompt", 1, read_prompt, r.steps));
    LOWBIT_TRY_ASSIGN(r.decode_profiled_tok_s,
                      profile_passes(model, "generation", options.generate, generate, r.steps));
    r.prefill_profiled_tok_s = prompts * static_cast<double>(options.batch * options.prompt);
    r.decode_profiled_tok_s *= static_cast<double>(options.batch);
  }
  r.loaded_bytes = loaded_bytes;
  r.device_bytes = model.device_bytes();
  r.prefill_tok_s = prefill.median;
  r.prefill_spread = prefill.spread;
  r.decode_tok_s = decode.median;
  r.decode_spread = decode.spread;
  r.decode_gb_s = decode.median / static_cast<double>(options.batch) * static_cast<double>(r.weight_bytes) / 1e9;
  LOWBIT_TRY_ASSIGN(const Engine engine, Engine::make(options.compute));
  if (engine.gpu >= 0) return r;
  LOWBIT_TRY_ASSIGN(const ReadBandwidth rate, measure_read_bandwidth(*engine.pool));
  r.bandwidth_gb_s = rate.median;
  return r;
}

}  // namespace lowbit
