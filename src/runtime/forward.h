#pragma once
// The forward pass of a model, as the one list of steps that every backend runs.

#include <array>
#include <memory>
#include <vector>

#include "arch/spec.h"
#include "backend/step.h"

namespace lowbit {

constexpr size_t kBlockLinears = static_cast<size_t>(LinearRole::kHead);

/// A block's weights, prepared; those that its description lacks are empty.
struct BlockWeights {
  std::array<std::unique_ptr<Weight>, kBlockLinears> linears;  // by LinearRole
  std::array<Norm, kInputRoles> norms;                         // of inputs, by InputRole
  std::array<Norm, kBlockLinears> linear_norms;                // of linear layers, by LinearRole
  Norm q_norm, k_norm;

  const Weight* of(LinearRole role) const { return linears[static_cast<size_t>(role)].get(); }
  const Norm* norm_of(const LinearSpec& linear) const {
    return linear.norm ? &linear_norms[static_cast<size_t>(linear.role)] : nullptr;
  }
  const Norm* norm_of(const InputSpec& input) const {
    return input.norm ? &norms[static_cast<size_t>(input.role)] : nullptr;
  }
};

struct ModelWeights {
  std::unique_ptr<Weight> embedding, own_head;  // no head of its own: the embedding is the head, too
  Norm final_norm;
  std::vector<BlockWeights> blocks;  // of the description, one by one
  const Weight* head() const { return own_head != nullptr ? own_head.get() : embedding.get(); }
};

/// The slots of a workspace.
enum ModelSlot : Slot { kStream, kQuery, kKey, kValue, kAttended, kGated, kModelSlots };

/// Columns of each slot.
std::array<int64_t, kModelSlots> slot_widths(const ModelSpec& spec);

/// Steps of a block, and where in it the readers of each input are.
constexpr int kBlockSteps = 5;
constexpr std::array<int, kInputRoles> kInputSteps = {
    0, 2, 3, 4};  // by InputRole: q, k and v; attention lies between; o; gate, up; down
constexpr int tap_of(int block, InputRole role) {
  return block * static_cast<int>(kInputRoles) + static_cast<int>(role);
}

/// Steps of blocks [0, spec.blocks.size()) alone: block b takes steps [b * kBlockSteps, (b + 1) * kBlockSteps). All
/// pointers are into the arguments, which outlive the steps.
std::vector<Step> block_steps(const ModelSpec& spec, const ModelWeights& weights);
/// Embedding, blocks, and the logits of the rows that are wanted.
std::vector<Step> model_steps(const ModelSpec& spec, const ModelWeights& weights);

}  // namespace lowbit
