#pragma once
// Steps compiled for a GPU: every step is some launches on the workspace's stream, one behind the other.

#include <memory>
#include <variant>
#include <vector>

#include "backend/cuda/workspace.h"

namespace lowbit {

class CudaProgram final : public Program {
 public:
  static Result<std::unique_ptr<Program>> make(int gpu, std::span<const Step> steps, const CompileOptions& options);
  int steps() const override { return static_cast<int>(steps_.size()); }
  Status run(Workspace& workspace, const Batch& batch, int first, int last) const override;
  Status show(Workspace& workspace, const Batch& batch, int step) const override;

 private:
  /// A step, and its norms in device memory: of its input, or of the heads of q and k.
  struct Compiled {
    Step step;
    Buffer norm, q_norm, k_norm;
  };
  /// State of one run.
  struct Run {
    CudaWorkspace& work;
    const Batch& batch;
    int64_t m;  // rows
  };
  Status run_step(const Compiled& c, const EmbedStep& step, Run& run) const;
  Status run_step(const Compiled& c, const LinearStep& step, Run& run) const;
  Status run_step(const Compiled& c, const GluStep& step, Run& run) const;
  Status run_step(const Compiled& c, const AttentionStep& step, Run& run) const;
  Status run_step(const Compiled& c, const GatherStep& step, Run& run) const;
  /// Rows [row, row + m) of the step's input, normed, transformed and shown.
  Result<const float*> input(const Compiled& c, const StepInput& in, int64_t k, int64_t row, int64_t m,
                             CudaWorkspace& work) const;
  /// y [m, n] of rows x [m, k].
  Status multiply(const CudaWeight& w, const float* x, int64_t m, float* y, CudaWorkspace& work) const;
  Status quantize(const CudaWeight& w, const float* x, int64_t m, CudaWorkspace& work) const;
  Status attend(const AttentionStep& step, CudaWorkspace& work) const;
  Status run_head(const Compiled& c, const LinearStep& step, Run& run) const;

  std::vector<Compiled> steps_;
};

}  // namespace lowbit
