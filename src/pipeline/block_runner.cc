#include "pipeline/block_runner.h"

#include <fmt/format.h>

namespace lowbit {

const std::vector<SharedInput>& shared_inputs() {
  static const std::vector<SharedInput> all = {
      {"self_attn.q_proj", {"self_attn.k_proj", "self_attn.v_proj"}},
      {"self_attn.o_proj", {}},
      {"mlp.gate_proj", {"mlp.up_proj"}},
      {"mlp.down_proj", {}},
  };
  return all;
}

std::string weight_name(int64_t block, const char* layer) {
  return fmt::format("model.layers.{}.{}.weight", block, layer);
}

Result<std::unique_ptr<BlockRunner>> BlockRunner::make(const ModelConfig& config, int64_t context, int64_t most_windows,
                                                       const Engine& engine) {
  return engine.gpu >= 0 ? make_device_runner(config, context, most_windows, engine)
                         : make_host_runner(config, context, engine);
}

}  // namespace lowbit
