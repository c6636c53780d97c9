#pragma once
// Steps compiled for the CPU: norms straight to int8 codes, gate and up with their product and the codes of what reads
// them, and what threads that wait begin to read.

#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/linear_input.h"
#include "ops/attention.h"

namespace lowbit {

/// Rows of one batch; allocated once, so that decoding allocates nothing.
class CpuWorkspace final : public Workspace {
 public:
  static Result<std::unique_ptr<CpuWorkspace>> make(std::span<const Step> steps, const Limits& limits, Isa isa,
                                                    ThreadPool& pool, bool tune);

  int64_t rows() const override { return rows_; }
  int64_t bytes() const override;
  Status read(Slot slot, int64_t first, int64_t rows, float* to) const override;
  Status write(Slot slot, int64_t first, int64_t rows, const float* from) override;
  Status load(Slot slot, int64_t row, int64_t rows, const RowBuffer& from, int64_t at) override;
  Status save(Slot slot, int64_t row, int64_t rows, RowBuffer& to, int64_t at) const override;
  void set_observer(TapObserver observer) override { observer_ = std::move(observer); }
  void set_profile(Profile* profile) override { profile_ = profile; }

 private:
  friend class CpuProgram;
  /// cos and sin of the batch's positions, for one kind of rotation.
  struct Rotation {
    RopeSpec spec;
    std::vector<double> frequencies;
    Buffer cos, sin;  // [rows, dims / 2]
  };
  CpuWorkspace(Isa isa, ThreadPool& pool) : pool_(&pool), ops_(&vector_ops(isa)), input_(isa, pool) {}
  Status allocate(std::span<const Step> steps, const Limits& limits);
  /// Rotations of the batch's positions, where they are not those of the last batch.
  void rotate_to(std::span<const SequenceRows> sequences);
  const Rotation* rotation_of(const AttentionSpec& spec) const;
  Attention& attention_of(const AttentionSpec& spec);
  float* slot(Slot s) { return slots_[s].as<float>(); }

  ThreadPool* pool_;
  const VectorOps* ops_;
  LinearInput input_;
  int64_t rows_ = 0;
  std::vector<int64_t> widths_;
  std::vector<Buffer> slots_;  // [rows, widths_[s]]
  Buffer normed_, sum_,
      up_;      // [rows, widest slot]: normed rows; products before they are added; the factor of a gated product
  Buffer own_;  // [rows, widest]: rows normed for one product alone
  const float* rows_of_input_ = nullptr;  // [m, width] of the step that runs, where they are rows
  std::vector<Rotation> rotations_;
  std::vector<std::pair<AttentionShape, Attention>> attentions_;
  std::vector<SequenceRows> rotated_;  // positions that the rotations hold
  Buffer logits_;                      // of several sequences together, before each gets its own
  TapObserver observer_;
  Profile* profile_ = nullptr;
};

class CpuProgram final : public Program {
 public:
  static Result<std::unique_ptr<Program>> make(std::span<const Step> steps, const CompileOptions& options);
  int steps() const override { return static_cast<int>(steps_.size()); }
  Status run(Workspace& workspace, const Batch& batch, int first, int last) const override;
  Status show(Workspace& workspace, const Batch& batch, int step) const override;

 private:
  /// A step, and what was found out about it.
  struct Compiled {
    Step step;
    std::vector<const CpuWeight*> readers;  // of a step with an input
    std::vector<const CpuWeight*> next;     // what is multiplied behind it
    const CpuWeight* codes_for = nullptr;   // gated product: the one reader of its result, where that may be codes
    bool is_set = false;                    // the gated product before left the rows in the input
  };
  /// State of one run.
  struct Run {
    CpuWorkspace& work;
    const Batch& batch;
    int64_t m;  // rows
  };
  Status run_step(const Compiled& c, const EmbedStep& step, Run& run) const;
  Status run_step(const Compiled& c, const LinearStep& step, Run& run) const;
  Status run_step(const Compiled& c, const GluStep& step, Run& run) const;
  Status run_step(const Compiled& c, const AttentionStep& step, Run& run) const;
  Status run_step(const Compiled& c, const GatherStep& step, Run& run) const;
  /// Rows [row, row + m) of the step's input, ready to be multiplied.
  Status set_input(const Compiled& c, const StepInput& in, int64_t row, int64_t m, CpuWorkspace& work) const;
  /// A product of the input's rows, normed for it alone.
  Status run_normed(const LinearCall& call, const Norm* norm, Linears next, Run& run) const;
  Status run_head(const Compiled& c, const LinearStep& step, Run& run) const;
  void fuse();

  std::vector<Compiled> steps_;
};

}  // namespace lowbit
