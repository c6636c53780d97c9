#include "pipeline/block_runner.h"

namespace lowbit {

std::vector<std::string> measured_layers(const ModelSpec& spec, int64_t block) {
  std::vector<std::string> names;
  for (const InputSpec* input : inputs_of(spec.blocks[static_cast<size_t>(block)]))
    names.push_back(weight_name(block, input->readers.front().name));
  return names;
}

Result<std::unique_ptr<BlockRunner>> BlockRunner::make(const ModelSpec& spec, int64_t context, int64_t most_windows,
                                                       const Engine& engine) {
  return engine.gpu >= 0 ? make_device_runner(spec, context, most_windows, engine)
                         : make_host_runner(spec, context, engine);
}

}  // namespace lowbit
