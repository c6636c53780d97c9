#include "calibrate/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/try.h"
#include "kernels/registry.h"
#include "model/model_spec.h"
#include "ops/log_softmax.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace lowbit {
namespace {

constexpr int64_t kRowsOfLogits = 64;  // logits in memory at once
constexpr float kSure = 0.5f;          // of the probability
/// A model that says something else at most positions where the source is sure is of no use either, given enough of
/// them to say so.
constexpr double kLeastSame = 0.5;
constexpr int64_t kLeastSure = 64;

}  // namespace

HeldOut::HeldOut(std::vector<TokenId> tokens, int64_t context, HiddenStates source, HiddenStates quantized,
                 bool was_seen)
    : tokens_(std::move(tokens)),
      context_(context),
      was_seen_(was_seen),
      source_(std::move(source)),
      quantized_(std::move(quantized)) {}

Status HeldOut::start_quantized(const QTensor& embedding) {
  started_ = true;
  std::vector<float> rows(tokens_.size() * static_cast<size_t>(embedding.k));
  for (size_t i = 0; i < tokens_.size(); ++i)
    dequantize_rows(embedding, tokens_[i], 1, rows.data() + static_cast<int64_t>(i) * embedding.k);
  return quantized_.write(0, rows);
}

Status HeldOut::advance(BlockProgram& source, BlockProgram& quantized, BatchRoom& room) {
  if (!started_) return {};
  LOWBIT_TRY(source_.run(source, room, kBlockSteps));
  return quantized_.run(quantized, room, kBlockSteps);
}

void compare_next_tokens(const NextTokens& source, const NextTokens& quantized, int64_t context,
                         HeldOutReport& report) {
  std::vector<int64_t> lengths;
  int64_t same = 0, same_where_sure = 0, length = 0;
  report.sure_tokens = 0;
  for (size_t i = source.likeliest.size(); i-- > 0;) {
    if (static_cast<int64_t>(i + 1) % context == 0) {
      length = 0;
      continue;
    }
    const bool agrees = source.likeliest[i] == quantized.likeliest[i];
    length = agrees ? length + 1 : 0;
    lengths.push_back(length);
    same += agrees;
    report.sure_tokens += source.sure[i];
    same_where_sure += agrees && source.sure[i];
  }
  const auto share = [](int64_t n, int64_t of) {
    return of > 0 ? static_cast<double>(n) / static_cast<double>(of) : 0.0;
  };
  report.same_token = share(same, static_cast<int64_t>(lengths.size()));
  report.same_where_sure = share(same_where_sure, report.sure_tokens);
  if (lengths.empty()) return;
  std::ranges::sort(lengths);
  report.continued = static_cast<double>(lengths[(lengths.size() - 1) / 2] + lengths[lengths.size() / 2]) / 2;
}

Verdict judge(const HeldOutReport& held) {
  const char* const where = held.was_seen ? "of the text" : "held out from the text";
  if (!(held.ratio() <= kBrokenRatio))
    return {fmt::format("perplexity {:.4g} on {} tokens {}, {:.3g} times the source's {:.4g}", held.ppl, held.tokens,
                        where, held.ratio(), held.source_ppl),
            fmt::format("at most {:g} times", kBrokenRatio)};
  if (held.sure_tokens >= kLeastSure && held.same_where_sure < kLeastSame)
    return {fmt::format("the source's next token in {:.0f} % of {} positions {} where the source is sure of it",
                        100 * held.same_where_sure, held.sure_tokens, where),
            fmt::format("at least {:.0f} %", 100 * kLeastSame)};
  return {};
}

Result<NextTokens> HeldOut::next_tokens(const HiddenStates& states, const std::vector<float>& norm, float eps,
                                        const QTensor& head, Isa isa, ThreadPool& pool) const {
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.isa = isa;
  LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(head, options, pool));
  const auto count = static_cast<int64_t>(tokens_.size()), vocab = head.n, width = head.k;
  std::vector<float> rows(static_cast<size_t>(kRowsOfLogits * width)),
      logits(static_cast<size_t>(kRowsOfLogits * vocab));
  std::vector<double> nll(tokens_.size());
  NextTokens out;
  out.likeliest.resize(tokens_.size());
  out.sure.resize(tokens_.size());
  for (int64_t first = 0; first < count; first += kRowsOfLogits) {
    const int64_t m = std::min(kRowsOfLogits, count - first);
    LOWBIT_TRY(states.read(first, std::span(rows).first(static_cast<size_t>(m * width))));
    rms_norm_rows(vector_ops(isa), rows.data(), width, norm.data(), m, width, eps, rows.data(), width, pool);
    ActivationRows x;
    LOWBIT_TRY(x.prepare(Activation::kF32, rows.data(), m, width, width, isa, pool));
    LOWBIT_TRY(plan.run(x, nullptr, logits.data(), vocab, pool));
    pool.parallel_for(m, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = first + i;
        if ((at + 1) % context_ == 0) continue;  // a sequence's last token has no successor
        const std::span<const float> row(logits.data() + i * vocab, static_cast<size_t>(vocab));
        const auto truth = static_cast<size_t>(tokens_[static_cast<size_t>(at + 1)]);
        const auto best = std::ranges::max_element(row);
        const auto log_probability = log_softmax(row);
        nll[static_cast<size_t>(at)] = -log_probability.of(row[truth]);
        out.likeliest[static_cast<size_t>(at)] = static_cast<TokenId>(best - row.begin());
        out.sure[static_cast<size_t>(at)] = log_probability.of(*best) >= std::log(kSure);
      }
    });
  }
  double sum = 0;
  for (const double v : nll) sum += v;
  out.ppl = std::exp(sum / static_cast<double>(count - count / context_));
  return out;
}

Result<HeldOutReport> HeldOut::finish(const WeightSource& source, const QTensor& head, const QTensor& quantized_head,
                                      Isa isa, ThreadPool& pool) const {
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(source));
  LOWBIT_TRY_ASSIGN(const QTensor weight, source.load(weight_name(spec.final_norm.name)));
  std::vector<float> norm(static_cast<size_t>(weight.k));
  dequantize_rows(weight, 0, 1, norm.data());
  HeldOutReport report;
  report.tokens = static_cast<int64_t>(tokens_.size());
  report.was_seen = was_seen_;
  LOWBIT_TRY_ASSIGN(const NextTokens own, next_tokens(source_, norm, spec.final_norm.eps, head, isa, pool));
  LOWBIT_TRY_ASSIGN(const NextTokens now,
                    next_tokens(quantized_, norm, spec.final_norm.eps, quantized_head, isa, pool));
  report.source_ppl = own.ppl;
  report.ppl = now.ppl;
  compare_next_tokens(own, now, context_, report);
  return report;
}

}  // namespace lowbit
