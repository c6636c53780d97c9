#include "calibrate/held_back.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/try.h"
#include "kernels/registry.h"
#include "model/model_spec.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace lowbit {
namespace {

constexpr int64_t kRowsOfLogits = 64;  // logits in memory at once

double nll_of(std::span<const float> logits, TokenId truth) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - largest);
  return std::log(sum) - static_cast<double>(logits[static_cast<size_t>(truth)] - largest);
}

}  // namespace

HeldBack::HeldBack(std::vector<TokenId> tokens, int64_t context, HiddenStates source, HiddenStates quantized,
                   bool was_seen)
    : tokens_(std::move(tokens)),
      context_(context),
      was_seen_(was_seen),
      source_(std::move(source)),
      quantized_(std::move(quantized)) {}

Status HeldBack::start_quantized(const QTensor& embedding) {
  started_ = true;
  std::vector<float> rows(tokens_.size() * static_cast<size_t>(embedding.k));
  for (size_t i = 0; i < tokens_.size(); ++i)
    dequantize_rows(embedding, tokens_[i], 1, rows.data() + static_cast<int64_t>(i) * embedding.k);
  return quantized_.write(0, rows);
}

Status HeldBack::advance(BlockProgram& source, BlockProgram& quantized, BatchRoom& room) {
  if (!started_) return {};
  LOWBIT_TRY(source_.run(source, room, kBlockSteps));
  return quantized_.run(quantized, room, kBlockSteps);
}

Result<double> HeldBack::perplexity(const HiddenStates& states, const std::vector<float>& norm, float eps,
                                    const QTensor& head, Isa isa, ThreadPool& pool) const {
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.isa = isa;
  LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(head, options, pool));
  const auto count = static_cast<int64_t>(tokens_.size()), vocab = head.n, width = head.k;
  std::vector<float> rows(static_cast<size_t>(kRowsOfLogits * width)),
      logits(static_cast<size_t>(kRowsOfLogits * vocab));
  std::vector<double> nll(tokens_.size());
  for (int64_t first = 0; first < count; first += kRowsOfLogits) {
    const int64_t m = std::min(kRowsOfLogits, count - first);
    LOWBIT_TRY(states.read(first, std::span(rows).first(static_cast<size_t>(m * width))));
    rms_norm_rows(vector_ops(isa), rows.data(), width, norm.data(), m, width, eps, rows.data(), width, pool);
    ActivationRows x;
    LOWBIT_TRY(x.prepare(Activation::kF32, rows.data(), m, width, width, isa, pool));
    LOWBIT_TRY(plan.run(x, nullptr, logits.data(), vocab, pool));
    pool.parallel_for(m, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        if (const int64_t at = first + i; (at + 1) % context_ != 0)  // a window's last token has no successor
          nll[static_cast<size_t>(at)] =
              nll_of(std::span(logits).subspan(static_cast<size_t>(i * vocab), static_cast<size_t>(vocab)),
                     tokens_[static_cast<size_t>(at + 1)]);
    });
  }
  double sum = 0;
  for (const double v : nll) sum += v;
  return std::exp(sum / static_cast<double>(count - count / context_));
}

Result<HeldBackReport> HeldBack::finish(const WeightSource& source, const QTensor& head, const QTensor& quantized_head,
                                        Isa isa, ThreadPool& pool) const {
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(source));
  LOWBIT_TRY_ASSIGN(const QTensor weight, source.load(weight_name(spec.final_norm.name)));
  std::vector<float> norm(static_cast<size_t>(weight.k));
  dequantize_rows(weight, 0, 1, norm.data());
  HeldBackReport report;
  report.tokens = static_cast<int64_t>(tokens_.size());
  report.was_seen = was_seen_;
  LOWBIT_TRY_ASSIGN(report.source_ppl, perplexity(source_, norm, spec.final_norm.eps, head, isa, pool));
  LOWBIT_TRY_ASSIGN(report.ppl, perplexity(quantized_, norm, spec.final_norm.eps, quantized_head, isa, pool));
  return report;
}

}  // namespace lowbit
