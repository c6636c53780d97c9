#pragma once
// A model's blocks on the devices that run them: each has a range of them and hands its rows on to the next.

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "runtime/forward.h"

namespace lowbit {

/// Blocks [first, last) on a device. The first stage has the embedding, too, the last one the head.
struct StagePlan {
  int gpu = -1;  // of cuda::devices(); -1: the CPU
  int64_t first = 0, last = 0;
  bool operator==(const StagePlan&) const = default;
};

/// The last `gpu_layers` of the blocks go to the GPUs, each with about as many, the rest stays on the CPU. Negative, or
/// as many as there are: all of them go. No stage is empty.
std::vector<StagePlan> plan_stages(int64_t blocks, std::span<const int> gpus, int64_t gpu_layers);

/// The pipeline of a Transformer: one program on one device, or several one behind the other. Rows between two stages
/// pass through the host's memory, as they are, so that the bits are those of one device.
class Stages {
 public:
  using MakeBackend = std::function<Result<std::unique_ptr<Backend>>(int gpu)>;
  /// Errors: those of `make`.
  static Result<Stages> make(const std::vector<StagePlan>& plans, const MakeBackend& make);

  size_t count() const { return stages_.size(); }
  const StagePlan& plan_of(int64_t block) const { return stages_[stage_of(block)].plan; }
  const StagePlan& last_plan() const { return stages_.back().plan; }
  Backend& first() { return *stages_.front().backend; }
  Backend& last() { return *stages_.back().backend; }
  Backend& of_block(int64_t block) { return *stages_[stage_of(block)].backend; }
  /// The least of all devices.
  BatchSize batch_size() const;

  /// Compiles the steps of model_steps(); pointers stay those of the steps. Errors: those of Backend::compile() and
  /// workspace(). `exact`: CompileOptions.
  Status compile(std::span<const Step> steps, const Limits& limits, bool exact);
  /// All steps on a batch. `taps`: observers see inputs. Errors: those of Program::run().
  Status run(const Batch& batch, bool taps);
  /// In the host's memory, wherever the rows are. Null to stop.
  void set_observer(const TapObserver& observer);
  void set_profile(Profile* profile);
  bool chooses_tokens() const { return stages_.back().work->chooses_tokens(); }
  /// Workspace::place_limits() of the device that chooses.
  Result<std::unique_ptr<TokenLimits>> place_limits(std::span<const std::pair<int32_t, float>> bias,
                                                    std::span<const uint32_t> mask) const {
    return stages_.back().work->place_limits(bias, mask);
  }
  int64_t passes_at_once() const { return stages_.size() > 1 ? 1 : stages_.front().work->passes_at_once(); }
  int64_t workspace_bytes() const;
  /// Memory of all GPUs that has been taken since make(), by the driver's count, by whomever.
  int64_t device_bytes() const;

  /// The groups, cut where stages meet.
  std::vector<KvGroup> split(std::vector<KvGroup> groups) const;
  /// Pages of such groups where the stages read them. As KvPool::make.
  Result<std::shared_ptr<KvPool>> make_pool(std::vector<KvGroup> groups, int64_t max_pages, int64_t slab_pages) const;

 private:
  struct Stage {
    StagePlan plan;
    std::unique_ptr<Backend> backend;
    std::vector<Step> steps;
    std::unique_ptr<Program> program, with_taps;  // the latter when it is first needed
    std::unique_ptr<Workspace> work;
  };
  size_t stage_of(int64_t block) const;
  int64_t free_memory() const;
  Result<const Program*> program(Stage& stage, bool taps);

  std::vector<Stage> stages_;
  int64_t free_at_first_ = 0;  // bytes of all GPUs
  int64_t width_ = 0;          // of the rows that are handed on
  bool exact_ = true;          // CompileOptions
  std::vector<float> rows_;    // between two stages
};

}  // namespace lowbit
