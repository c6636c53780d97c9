#include "model/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "kernels/api.h"

namespace lowbit {
namespace {

/// The features of a block that no backend computes. `first`: the model's first block; all others must have its shape.
std::vector<std::string> not_executed(const BlockSpec& block, const BlockSpec& first) {
  std::vector<std::string> missing;
  const AttentionSpec &a = block.attention, &f = first.attention;
  if (block.mlp.glu == Glu::kGeluTanh) missing.emplace_back(glu_name(block.mlp.glu));
  if (!a.qkv.norm || !block.mlp.gate_up.norm) missing.emplace_back("parts without a norm before them");
  if (block.post_attention || block.post_mlp) missing.emplace_back("norms behind attention or MLP");
  if (std::ranges::any_of(norms_of(block), [](const NormSpec* norm) { return norm->offset != 0; }))
    missing.emplace_back("norms with an offset");
  for (const InputSpec* input : inputs_of(block)) {
    if (input->hadamard > 0 && input->role != InputRole::kDown) missing.emplace_back("Hadamard transforms but of down");
    if (input->hadamard > kLargestHadamard)
      missing.push_back(
          fmt::format("Hadamard transforms of {} columns (at most {})", input->hadamard, kLargestHadamard));
  }
  if (!a.rope || a.rope->dims != a.head_dim) missing.emplace_back("heads that are not rotated whole");
  if (a.heads != f.heads || a.kv_heads != f.kv_heads || a.head_dim != f.head_dim || a.scale != f.scale ||
      a.rope != f.rope || block.mlp.width != first.mlp.width)
    missing.emplace_back("blocks of different shapes");
  return missing;
}

}  // namespace

Status check_executable(const ModelSpec& spec) {
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    const auto missing = not_executed(spec.blocks[i], spec.blocks.front());
    if (!missing.empty())
      return fail(ErrorCode::kUnsupported, fmt::format("{}: block {}", spec.family, i),
                  fmt::format("not executed yet: {}", fmt::join(missing, ", ")),
                  "RMS norms before each part, SiLU or squared ReLU, blocks of one shape");
  }
  if (spec.final_norm.offset != 0)
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", spec.family, spec.final_norm.name.hf),
                "not executed yet: a norm with an offset", "a plain RMS norm");
  return {};
}

Result<ModelSpec> model_spec_of(const WeightSource& source) {
  auto spec = parse_model_spec(source.config_json());
  if (!spec) spec.error().where = source.path() + ": " + spec.error().where;
  return spec;
}

Result<ModelSpec> executable_spec_of(const WeightSource& source) {
  LOWBIT_TRY_ASSIGN(ModelSpec spec, model_spec_of(source));
  auto status = check_executable(spec);
  if (!status) {
    status.error().where = source.path() + ": " + status.error().where;
    return tl::unexpected<Error>(std::move(status.error()));
  }
  return spec;
}

}  // namespace lowbit
