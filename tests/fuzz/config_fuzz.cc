// config.json of a model. What is accepted has sizes that fit each other.

#include "arch/spec.h"
#include "fuzz_limits.h"

namespace {

using lowbit::fuzz::require;

void check(const lowbit::ModelSpec& spec) {
  require(spec.vocab_size > 0 && spec.hidden_size > 0 && spec.max_positions > 0 && spec.block_count() > 0, "no size");
  require(spec.head.n == spec.vocab_size && spec.head.k == spec.hidden_size, "a head of another size");
  require(spec.longest_context() > 0, "no context");
  for (const auto* ids : {&spec.bos_ids, &spec.eos_ids})
    for (const int32_t id : *ids) require(id >= 0 && id < spec.vocab_size, "a token outside the vocabulary");
  const lowbit::BlockSpec& block = spec.blocks.front();
  const lowbit::AttentionSpec& a = block.attention;
  require(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.head_dim > 0, "heads");
  require(!a.rope || (a.rope->dims > 0 && a.rope->dims % 2 == 0 && a.rope->dims <= a.head_dim), "rotated dimensions");
  for (const lowbit::InputSpec* input : inputs_of(block)) {
    const bool stream = reads_stream(input->role);
    const int64_t k = stream                                      ? spec.hidden_size
                      : input->role == lowbit::InputRole::kOutput ? a.q_size()
                                                                  : block.mlp.width;
    require(input->hadamard == 0 || k % input->hadamard == 0, "a transform that does not divide its input");
    require(!input->norm || input->norm->size == k, "a norm of another size");
    for (const lowbit::LinearSpec& linear : input->readers) {
      require(linear.n > 0 && linear.k == k, "a layer that does not fit its input");
      require(!adds_to_stream(linear.role) || linear.n == spec.hidden_size, "a layer that does not fit the stream");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  const auto spec = lowbit::parse_model_spec(lowbit::fuzz::text_of(data, size));
  if (spec) {
    check(*spec);
  } else {
    require(!spec.error().where.empty(), "an error without a place");
  }
  return 0;
}
