#include "calibrate/block_program.h"

#include <utility>

#include "base/try.h"
#include "io/lost_pages.h"
#include "model/fetch_tensor.h"
#include "runtime/tensor_loader.h"

namespace lowbit {
namespace {

constexpr XPolicy kExact = {.activation = Activation::kF32};

void replace_weight(Step& step, const Weight* old, const Weight* by) {
  const auto swap = [&](const Weight*& w) {
    if (w == old) w = by;
  };
  if (auto* linear = std::get_if<LinearStep>(&step))
    for (Product& p : linear->out) swap(p.weight);
  if (auto* glu = std::get_if<GluStep>(&step)) {
    swap(glu->gate);
    swap(glu->up);
  }
}

}  // namespace

Result<std::shared_ptr<SourceBlock>> SourceBlock::load(const WeightSource& source, const ModelSpec& spec, int64_t index,
                                                       Backend& backend, ThreadPool& pool) {
  ModelSpec one = spec;
  one.blocks = {spec.blocks[static_cast<size_t>(index)]};
  std::shared_ptr<SourceBlock> block(new SourceBlock(source, std::move(one), index));
  block->weights_.blocks.resize(1);
  const LostPages lost;
  TensorLoader tensors(source, backend, pool, [&](const std::string& name, QTensor w) -> Status {
    if (w.n > 1) {
      block->tensors_[name] = std::move(w);
      return {};
    }
    std::vector<float>& values = block->biases_[name];  // norms are among them
    values.resize(static_cast<size_t>(w.k));
    dequantize_rows(w, 0, 1, values.data());
    return {};
  });
  LOWBIT_TRY(tensors.load_block(index, block->block(), kExact, block->weights_.blocks.front()));
  LOWBIT_TRY(lost.status(source.path()));
  block->steps_ = block_steps(block->spec_, block->weights_);
  return block;
}

void SourceBlock::drop_tensors() {
  for (const auto& [name, w] : tensors_) source_->release(name);
  tensors_.clear();
}

const QTensor* SourceBlock::tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<float> SourceBlock::bias_of(const LinearSpec& linear) const {
  const auto it = linear.bias ? biases_.find(bias_name(index_, linear.name)) : biases_.end();
  return it == biases_.end() ? std::vector<float>() : it->second;
}

Status BlockProgram::replace(const LinearSpec& linear, const QTensor& w) {
  const std::string name = block_->name(linear);
  LOWBIT_TRY(check_tensor(w, name, linear.n, linear.k, *pool_));
  LOWBIT_TRY_ASSIGN(auto prepared,
                    prepare_weight(*backend_, name, w, block_->bias_of(linear), kExact, WeightUse::kProducts));
  std::unique_ptr<Weight>& now = replaced_[linear.role];
  for (Step& step : steps_)
    replace_weight(step, now != nullptr ? now.get() : block_->weight(linear.role), prepared.get());
  program_.reset();
  now = std::move(prepared);
  return {};
}

Result<const Program*> BlockProgram::compiled() {
  if (program_ == nullptr) {
    LOWBIT_TRY_ASSIGN(program_, backend_->compile(steps_, {.taps = true}));
  }
  return program_.get();
}

}  // namespace lowbit
