#pragma once
// Where a calibration runs a model's blocks: on the CPU or on a GPU. Both give the same bits.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arch/spec.h"
#include "model/source.h"
#include "pipeline/engine.h"
#include "quantize/feedback.h"
#include "runtime/linear_observer.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Called before each window; an error stops the call.
using BeforeWindow = std::function<Status(int64_t window)>;

/// The first reader of each input of a block, in the order of inputs_of(), by weight name: observers wait for these, the other readers see the
/// same rows. "model.layers.3.mlp.gate_proj.weight"
std::vector<std::string> measured_layers(const ModelSpec& spec, int64_t block);

/// Hidden states lie in buffers where the blocks run: whole windows of `context` positions, [windows, context, hidden], f32.
class BlockRunner {
 public:
  /// On engine.gpu, else on the CPU. `most_windows`: of any buffer of states. Errors: kInvalidArgument (the context), kUnsupported
  /// (no such GPU), kOutOfMemory.
  static Result<std::unique_ptr<BlockRunner>> make(const ModelSpec& spec, int64_t context, int64_t most_windows,
                                                   const Engine& engine);
  virtual ~BlockRunner() = default;
  BlockRunner() = default;
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  virtual Result<Buffer> allocate(int64_t windows) = 0;
  /// `floats` counts from the buffer's begin. These wait.
  virtual Status write(Buffer& states, int64_t floats, std::span<const float> from) = 0;
  virtual Status read(const Buffer& states, int64_t floats, std::span<float> to) = 0;

  /// The block of the calls below. Errors: those of Transformer::load.
  virtual Status load(const WeightSource& source, int64_t block) = 0;
  /// Runs it without keeping what comes out; moments in the order of measured_layers().
  /// Errors: kInvalidArgument when an activation is NaN or infinite, with the layer's name; kOutOfMemory.
  virtual Result<std::vector<SecondMoments>> measure(const Buffer& states, const BeforeWindow& before) = 0;
  /// Runs the source's own stream in place and keeps what the measured layers see, for measure_followed().
  virtual Status follow(Buffer& source, const BeforeWindow& before) = 0;
  /// The moments of input `which` of measured_layers() on as many states, the deviation of what follow() kept among them. The loaded block's layers
  /// before that input may be others than follow() had. Each input once. Errors: as measure().
  virtual Result<SecondMoments> measure_followed(const Buffer& states, size_t which, const BeforeWindow& before) = 0;
  /// Runs it in place. `observer` sees the inputs of its layers, in host memory.
  virtual Status advance(Buffer& states, const BeforeWindow& before = {}, const LinearObserver& observer = {}) = 0;
};

/// The two kinds of runner; make() chooses.
Result<std::unique_ptr<BlockRunner>> make_host_runner(const ModelSpec& spec, int64_t context, const Engine& engine);
Result<std::unique_ptr<BlockRunner>> make_device_runner(const ModelSpec& spec, int64_t context, int64_t most_windows,
                                                        const Engine& engine);

}  // namespace lowbit
