#include "calibrate/block_probe.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/try.h"
#include "kernels/registry.h"
#include "ops/log_softmax.h"
#include "ops/norm.h"

namespace lowbit {
namespace {

constexpr int64_t kProbeTokens = 256;
constexpr int64_t kLogitsAtOnce = 64;

/// `part` in place of the source's layers.
Status replace(BlockProgram& program, const BlockSpec& block, const ChangedLayers& part) {
  for (const LinearSpec* reader : linears_of(block))
    if (const auto it = part.find(reader->role); it != part.end()) LOWBIT_TRY(program.replace(*reader, it->second));
  return {};
}

/// The step of the block that reads the first of them.
int first_step(const BlockSpec& block, const ChangedLayers& part) {
  int step = kBlockSteps;
  for (const InputSpec* input : inputs_of(block))
    for (const LinearSpec& reader : input->readers)
      if (part.contains(reader.role)) step = std::min(step, kInputSteps[static_cast<size_t>(input->role)]);
  return step;
}

/// On exact activations.
Result<MatmulPlan> head_plan(const QTensor& head, const Engine& engine) {
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.isa = engine.isa;
  return MatmulPlan::make(head, options, *engine.pool);
}

}  // namespace

Result<BlockProbe> BlockProbe::make(const WeightSource& source, const Engine& engine, Calibration& text) {
  BlockProbe p(engine, text.backend(), text.spec());
  p.rows_ = std::min(kProbeTokens, text.context());
  LOWBIT_TRY_ASSIGN(const QTensor norm, source.load(weight_name(p.spec_.final_norm.name)));
  p.norm_.resize(static_cast<size_t>(norm.k));
  dequantize_rows(norm, 0, 1, p.norm_.data());
  LOWBIT_TRY_ASSIGN(const QTensor head, source.load(weight_name(p.spec_.head.name)));
  LOWBIT_TRY_ASSIGN(p.head_, head_plan(head, engine));
  source.release(weight_name(p.spec_.head.name));
  for (int64_t b = 0; b < p.spec_.block_count(); ++b) {
    LOWBIT_TRY_ASSIGN(auto block, SourceBlock::load(source, p.spec_, b, *p.backend_, *engine.pool));
    block->drop_tensors();  // all of them would take the model's room once more
    p.blocks_.push_back(block);
    p.programs_.emplace_back(std::move(block), *p.backend_, *engine.pool);
  }
  LOWBIT_TRY_ASSIGN(p.room_, BatchRoom::make(*p.backend_, p.blocks_, p.rows_, 1, p.backend_->batch_size()));
  LOWBIT_TRY_ASSIGN(p.states_, HiddenStates::make(*p.backend_, 1, p.rows_, p.spec_.hidden_size));
  LOWBIT_TRY_ASSIGN(p.part_, HiddenStates::make(*p.backend_, 1, p.rows_, p.spec_.hidden_size));
  LOWBIT_TRY_ASSIGN(p.together_, HiddenStates::make(*p.backend_, 1, p.rows_, p.spec_.hidden_size));
  p.tokens_.assign(text.first_tokens().begin(), text.first_tokens().begin() + p.rows_);
  LOWBIT_TRY_ASSIGN(p.first_, text.first_rows(p.rows_));
  LOWBIT_TRY(p.states_.write(0, p.first_));
  LOWBIT_TRY(p.part_.copy_from(p.states_));
  for (BlockProgram& block : p.programs_) LOWBIT_TRY(p.part_.run(block, *p.room_, kBlockSteps));
  std::vector<float> last(p.first_.size());
  LOWBIT_TRY(p.part_.read(0, last));
  p.base_.resize(static_cast<size_t>(p.rows_ * head.n));
  LOWBIT_TRY(p.each_logits(last, p.head_, [&p](int64_t row, std::span<float> logits) {
    std::copy(logits.begin(), logits.end(), p.base_.begin() + row * static_cast<int64_t>(logits.size()));
  }));
  return p;
}

Result<std::vector<double>> BlockProbe::divergences(int64_t index, const std::vector<ChangedLayers>& parts) {
  const auto at = static_cast<size_t>(index);
  BlockProgram all(blocks_[at], *backend_, *engine_->pool);
  for (const ChangedLayers& part : parts) LOWBIT_TRY(replace(all, blocks_[at]->block(), part));
  LOWBIT_TRY(together_.copy_from(states_));
  LOWBIT_TRY(together_.run(all, *room_, kBlockSteps));
  for (size_t b = at + 1; b < blocks_.size(); ++b) LOWBIT_TRY(together_.run(programs_[b], *room_, kBlockSteps));
  std::vector<std::vector<float>> ends;
  for (const ChangedLayers& part : parts) {
    BlockProgram program(blocks_[at], *backend_, *engine_->pool);
    LOWBIT_TRY(replace(program, blocks_[at]->block(), part));
    const int step = first_step(blocks_[at]->block(), part);
    if (step > states_.step()) LOWBIT_TRY(states_.run(programs_[at], *room_, step));
    LOWBIT_TRY(part_.copy_from(states_));
    LOWBIT_TRY(part_.run(program, *room_, kBlockSteps));
    LOWBIT_TRY(part_.read(0, ends.emplace_back(static_cast<size_t>(rows_ * spec_.hidden_size))));
  }
  LOWBIT_TRY(states_.run(programs_[at], *room_, kBlockSteps));
  std::vector<float> rows(static_cast<size_t>(rows_ * spec_.hidden_size));
  LOWBIT_TRY(states_.read(0, rows));
  std::vector<double> shares;
  for (const std::vector<float>& end : ends) shares.push_back(error_of(end, rows));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  LOWBIT_TRY(together_.read(0, rows));
  LOWBIT_TRY_ASSIGN(const double divergence, divergence_of(rows, head_));
  for (double& share : shares) share = sum > 0 ? divergence * share / sum : 0;
  return shares;
}

Result<double> BlockProbe::divergence_with(const QTensor* embedding, const QTensor* head) {
  std::vector<float> rows = first_;
  for (size_t i = 0; embedding != nullptr && i < tokens_.size(); ++i)
    dequantize_rows(*embedding, tokens_[i], 1, rows.data() + static_cast<int64_t>(i) * embedding->k);
  LOWBIT_TRY_ASSIGN(HiddenStates states, HiddenStates::make(*backend_, 1, rows_, spec_.hidden_size));
  LOWBIT_TRY(states.write(0, rows));
  for (BlockProgram& block : programs_) LOWBIT_TRY(states.run(block, *room_, kBlockSteps));
  LOWBIT_TRY(states.read(0, rows));
  if (head == nullptr) return divergence_of(rows, head_);
  LOWBIT_TRY_ASSIGN(const MatmulPlan plan, head_plan(*head, *engine_));
  return divergence_of(rows, plan);
}

/// Sum over rows of |x - y|^2 / |y|^2: what a norm behind them sees of it.
double BlockProbe::error_of(const std::vector<float>& x, const std::vector<float>& y) const {
  double sum = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    double error = 0, energy = 0;
    for (auto i = static_cast<size_t>(row * spec_.hidden_size); i < static_cast<size_t>((row + 1) * spec_.hidden_size);
         ++i) {
      const double d = double(x[i]) - y[i];
      error += d * d;
      energy += double(y[i]) * y[i];
    }
    if (energy > 0) sum += error / energy;
  }
  return sum;
}

Result<double> BlockProbe::divergence_of(const std::vector<float>& x, const MatmulPlan& head) const {
  std::vector<double> parts(static_cast<size_t>(rows_));
  LOWBIT_TRY(each_logits(x, head, [&](int64_t row, std::span<float> logits) {
    parts[static_cast<size_t>(row)] =
        kl_divergence(std::span(base_).subspan(static_cast<size_t>(row) * logits.size(), logits.size()), logits);
  }));
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum / static_cast<double>(rows_);
}

/// Calls use(row, log probabilities), from several threads.
Status BlockProbe::each_logits(const std::vector<float>& x, const MatmulPlan& head,
                               const std::function<void(int64_t row, std::span<float> log_probabilities)>& use) const {
  const int64_t width = spec_.hidden_size, vocab = head.n();
  std::vector<float> rows(static_cast<size_t>(kLogitsAtOnce * width)),
      logits(static_cast<size_t>(kLogitsAtOnce * vocab));
  for (int64_t first = 0; first < rows_; first += kLogitsAtOnce) {
    const int64_t m = std::min(kLogitsAtOnce, rows_ - first);
    rms_norm_rows(vector_ops(engine_->isa), x.data() + first * width, width, norm_.data(), m, width,
                  spec_.final_norm.eps, rows.data(), width, *engine_->pool);
    ActivationRows prepared;
    LOWBIT_TRY(prepared.prepare(Activation::kF32, rows.data(), m, width, width, engine_->isa, *engine_->pool));
    LOWBIT_TRY(head.run(prepared, nullptr, logits.data(), vocab, *engine_->pool));
    engine_->pool->parallel_for(m, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const auto row = std::span(logits).subspan(static_cast<size_t>(i * vocab), static_cast<size_t>(vocab));
        log_softmax(row).apply(row);
        use(first + i, row);
      }
    });
  }
  return {};
}

}  // namespace lowbit
