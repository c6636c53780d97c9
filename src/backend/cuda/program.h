#pragma once
// Steps compiled for a GPU: every step is some launches on the workspace's stream, one behind the other.

#include <memory>
#include <variant>
#include <vector>

#include "backend/cuda/workspace.h"
#include "kernels/cuda_product_api.h"

namespace lowbit {

class CudaProgram final : public Program {
 public:
  static Result<std::unique_ptr<Program>> make(int gpu, std::span<const Step> steps, const CompileOptions& options);
  int steps() const override { return static_cast<int>(steps_.size()); }
  Status run(Workspace& workspace, const Batch& batch, int first, int last) const override;
  Status show(Workspace& workspace, const Batch& batch, int step) const override;

 private:
  /// A step, and its norms in device memory: of its input, of the heads of q and k, of products by themselves.
  struct Compiled {
    Step step;
    Buffer norm, q_norm, k_norm;
    std::vector<Buffer> own_norms;
  };
  /// State of one run.
  struct Run {
    CudaWorkspace& work;
    const Batch& batch;
    int64_t m;  // rows
  };
  /// Enqueues pass `pass` of a batch, which is as that pass has it.
  Status run_pass(CudaWorkspace& work, const Batch& batch, int64_t pass, int first, int last) const;
  Status run_step(const Compiled& c, const EmbedStep& step, Run& run) const;
  Status run_step(const Compiled& c, const LinearStep& step, Run& run) const;
  Status run_step(const Compiled& c, const GluStep& step, Run& run) const;
  Status run_step(const Compiled& c, const AttentionStep& step, Run& run) const;
  Status run_step(const Compiled& c, const GatherStep& step, Run& run) const;
  /// Rows [row, row + m) of the step's input, normed, transformed and shown.
  Result<const float*> input(const Compiled& c, const StepInput& in, int64_t k, int64_t row, int64_t m,
                             CudaWorkspace& work) const;
  /// input() in the form that products with `reader` take. `alike`: all readers take the same codes; if nobody else
  /// sees the rows, only codes are made.
  Result<const float*> operand(const Compiled& c, const StepInput& in, const CudaWeight& reader, bool alike,
                               int64_t row, int64_t m, CudaWorkspace& work) const;
  /// operand() of many rows that become codes, with what was deferred, in one launch; null, with nothing enqueued,
  /// where it takes several.
  Result<const float*> coded(const Compiled& c, const StepInput& in, const CudaWeight& reader, int64_t m,
                             CudaWorkspace& work) const;
  /// y [m, n] of rows x [m, k].
  Status multiply_fp8(const CudaWeight& w, const float* x, int64_t m, float* y, CudaWorkspace& work) const;
  Status multiply(const CudaWeight& w, const float* x, int64_t m, float* y, CudaWorkspace& work) const;
  /// A weight, and where its product goes.
  struct StepPart {
    const CudaWeight* weight = nullptr;
    float* to = nullptr;
  };
  /// Products of the step's input and what comes behind them, in one launch; false, with nothing enqueued, where the
  /// rows or the weights are such that it takes several.
  Result<bool> multiply_together(const Compiled& c, const StepInput& in, std::span<const StepPart> parts,
                                 cuda::ProductEnd end, int64_t m, CudaWorkspace& work) const;
  /// multiply_together() of weights whose sums have the order of the CPU.
  Result<bool> multiply_exact_products(const Compiled& c, const StepInput& in, std::span<const StepPart> parts,
                                       cuda::ProductEnd end, int64_t m, CudaWorkspace& work) const;
  /// Products of rows x, in one launch; false, with nothing enqueued, where it takes several.
  Result<bool> multiply_side_by_side(std::span<const StepPart> parts, const float* x, int64_t m,
                                     CudaWorkspace& work) const;
  /// The product of rows x that are normed for it alone, by `norm` whose weight is on the device.
  Status multiply_normed(const StepPart& part, const Buffer& weight, const Norm* norm, const float* x, int64_t m,
                         CudaWorkspace& work) const;
  Status run_normed(const Compiled& c, const LinearStep& step, Run& run) const;
  Status quantize(const CudaWeight& w, const float* x, int64_t m, CudaWorkspace& work) const;
  Status halve(const CudaWeight& w, const float* x, int64_t m, CudaWorkspace& work) const;
  /// Where quantize() and halve() have left the rows.
  static DeviceRows rounded_rows(const CudaWeight& w, int64_t m, CudaWorkspace& work);
  static bool takes_step(const cuda::AttendPages& call, const CudaWorkspace& work);
  /// Attention of sequences with few rows, and of those with many (CudaBatch::prompt_tiles()).
  cuda::AttendPages attention_of(const AttentionStep& step, CudaWorkspace& work) const;
  cuda::AttendPages prompt_attention_of(const AttentionStep& step, CudaWorkspace& work) const;
  /// `blocks`: spans of fewer tiles and kv heads are worked out apart.
  cuda::AttendPages attention_on(const CudaBatch::Tiles& tiles, int64_t blocks, const AttentionStep& step,
                                 CudaWorkspace& work) const;
  /// Attention where old pages are packed.
  Status run_packed(const AttentionStep& step, Run& run) const;
  Status run_head(const Compiled& c, const LinearStep& step, Run& run) const;
  bool repeats(const CudaWorkspace& work, const Batch& batch) const;
  LaunchShape shape_of(CudaWorkspace& work, const Batch& batch, int first, int last) const;
  static Status choose(int64_t vocab, int64_t first, int64_t rows, CudaWorkspace& work);
  /// Tokens that were chosen, and logits of a few rows, which the head has left in the workspace, to where the batch
  /// wants them.
  Status fetch(CudaWorkspace& work, const Batch& batch) const;
  static Status feed_tokens(CudaWorkspace& work, int64_t rows);
  Status download_choices(CudaWorkspace& work, int64_t pass, int64_t passes) const;
  Status fetch_choices(CudaWorkspace& work, const Batch& batch, int64_t vocab) const;

  int64_t id_ = 0;  // of all programs
  bool exact_ = true;
  std::vector<Compiled> steps_;
};

}  // namespace lowbit
