#include "runtime/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/row_observer.h"

namespace lowbit {
namespace {

StepInput input_step(const InputSpec& input, const BlockWeights& weights, int block, Slot from) {
  return {from, weights.norm_of(input), input.hadamard, tap_of(block, input.role)};
}

/// Products of an input's readers, to `first` and the slots behind it, or added to it.
std::vector<Product> products(const InputSpec& input, const BlockWeights& w, Slot first, bool add) {
  std::vector<Product> all;
  for (const LinearSpec& reader : input.readers) {
    const auto to = static_cast<Slot>(first + all.size());
    all.push_back({w.of(reader.role), to, add, w.norm_of(reader)});
  }
  return all;
}

void append_block(const BlockSpec& spec, const BlockWeights& w, int block, std::vector<Step>& steps) {
  const AttentionSpec& a = spec.attention;
  const MlpSpec& mlp = spec.mlp;
  static_assert(kKey == kQuery + 1 && kValue == kKey + 1);  // as the readers are
  steps.emplace_back(
      LinearStep{input_step(a.qkv, w, block, kStream), products(a.qkv, w, kQuery, false), ModelStep::kQkv});
  steps.emplace_back(AttentionStep{block, &a, a.q_norm ? &w.q_norm : nullptr, a.k_norm ? &w.k_norm : nullptr, kQuery,
                                   kKey, kValue, kAttended});
  steps.emplace_back(
      LinearStep{input_step(a.output, w, block, kAttended), products(a.output, w, kStream, true), ModelStep::kOutput});
  const LinearSpec &gate = mlp.gate_up.readers[0], &up = mlp.gate_up.readers[1];
  steps.emplace_back(GluStep{input_step(mlp.gate_up, w, block, kStream), w.of(gate.role), w.of(up.role), mlp.glu,
                             kGated, w.norm_of(gate), w.norm_of(up)});
  steps.emplace_back(
      LinearStep{input_step(mlp.down, w, block, kGated), products(mlp.down, w, kStream, true), ModelStep::kDown});
}

std::string_view input_name(InputRole role) {
  constexpr std::array<std::string_view, kInputRoles> kNames = {"attn_norm", "attn_out", "ffn_norm", "ffn_act"};
  return kNames[static_cast<size_t>(role)];
}

}  // namespace

std::vector<TapName> tap_names(const ModelSpec& spec) {
  std::vector<TapName> names;
  for (size_t b = 0; b < spec.blocks.size(); ++b)
    for (const InputSpec* input : inputs_of(spec.blocks[b]))
      names.push_back({fmt::format("blocks.{}.{}", b, input_name(input->role)), input->readers.front().k});
  names.push_back({"final_norm", spec.hidden_size});
  return names;
}

std::array<int64_t, kModelSlots> slot_widths(const ModelSpec& spec) {
  std::array<int64_t, kModelSlots> widths{};
  widths[kStream] = spec.hidden_size;
  for (const BlockSpec& block : spec.blocks) {
    const AttentionSpec& a = block.attention;
    const auto grow = [&](ModelSlot slot, int64_t width) { widths[slot] = std::max(widths[slot], width); };
    grow(kQuery, a.q_size());
    grow(kKey, a.kv_size());
    grow(kValue, a.kv_size());
    grow(kAttended, a.q_size());
    grow(kGated, block.mlp.width);
  }
  return widths;
}

std::vector<Step> block_steps(const ModelSpec& spec, const ModelWeights& weights) {
  std::vector<Step> steps;
  for (size_t b = 0; b < spec.blocks.size(); ++b) append_block(spec.blocks[b], weights.blocks[b], int(b), steps);
  return steps;
}

std::vector<Step> model_steps(const ModelSpec& spec, const ModelWeights& weights) {
  std::vector<Step> steps = {EmbedStep{weights.embedding.get(), kStream}};
  for (size_t b = 0; b < spec.blocks.size(); ++b) append_block(spec.blocks[b], weights.blocks[b], int(b), steps);
  steps.emplace_back(GatherStep{kStream});
  const int tap = tap_of(int(spec.blocks.size()), InputRole::kAttention);  // the one behind the last block's
  steps.emplace_back(LinearStep{{kStream, &weights.final_norm, 0, tap}, {{weights.head(), kLogits}}, ModelStep::kHead});
  return steps;
}

}  // namespace lowbit
