#include "arch/spec.h"

#include <algorithm>

namespace lowbit {

const char* glu_name(Glu glu) {
  return glu == Glu::kSilu ? "SiLU" : glu == Glu::kGeluTanh ? "GELU (tanh)" : "squared ReLU";
}

std::vector<const InputSpec*> inputs_of(const BlockSpec& block) {
  return {&block.attention.qkv, &block.attention.output, &block.mlp.gate_up, &block.mlp.down};
}

std::vector<const LinearSpec*> linears_of(const BlockSpec& block) {
  std::vector<const LinearSpec*> linears;
  for (const InputSpec* input : inputs_of(block))
    for (const LinearSpec& linear : input->readers) linears.push_back(&linear);
  return linears;
}

std::vector<const NormSpec*> norms_of(const BlockSpec& block) {
  std::vector<const NormSpec*> norms;
  for (const auto* norm :
       {&block.attention.qkv.norm, &block.attention.q_norm, &block.attention.k_norm, &block.attention.output.norm,
        &block.post_attention, &block.mlp.gate_up.norm, &block.mlp.down.norm, &block.post_mlp})
    if (*norm) norms.push_back(&**norm);
  for (const LinearSpec* linear : linears_of(block))
    if (linear->norm) norms.push_back(&*linear->norm);
  return norms;
}

int64_t ModelSpec::shortest_window() const {
  int64_t shortest = 0;
  for (const BlockSpec& block : blocks) {
    const int64_t window = block.attention.window;
    if (window > 0) shortest = shortest == 0 ? window : std::min(shortest, window);
  }
  return shortest;
}

int64_t ModelSpec::longest_context() const {
  const int64_t window = shortest_window();
  return window > 0 ? std::min(window, max_positions) : max_positions;
}

}  // namespace lowbit
