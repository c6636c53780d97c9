#pragma once
// Rows of one batch in device memory, on a stream of their own.

#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/batch.h"
#include "backend/cuda/recordings.h"
#include "backend/cuda/weight.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_codes_api.h"

namespace lowbit {

/// Allocated once: steps allocate nothing and wait for nothing.
class CudaWorkspace final : public Workspace {
 public:
  static Result<std::unique_ptr<CudaWorkspace>> make(int gpu, std::span<const Step> steps, const Limits& limits,
                                                     ThreadPool& pool);

  int64_t rows() const override { return rows_; }
  int64_t bytes() const override;
  bool chooses_tokens() const override { return !chosen_.empty(); }
  Result<std::unique_ptr<TokenLimits>> place_limits(std::span<const std::pair<int32_t, float>> bias,
                                                    std::span<const uint32_t> mask) const override;
  int64_t passes_at_once() const override { return CudaBatch::kPasses; }
  Status read(Slot slot, int64_t first, int64_t rows, float* to) const override;
  Status write(Slot slot, int64_t first, int64_t rows, const float* from) override;
  Status load(Slot slot, int64_t row, int64_t rows, const RowBuffer& from, int64_t at) override;
  Status save(Slot slot, int64_t row, int64_t rows, RowBuffer& to, int64_t at) const override;
  void set_observer(TapObserver observer) override { observer_ = std::move(observer); }
  void set_profile(Profile* profile) override { profile_ = profile; }

 private:
  friend class CudaProgram;
  /// cos and sin of all positions, for one kind of rotation.
  struct Rotation {
    RopeSpec spec;
    Buffer cos, sin;  // [context, dims / 2]
  };
  /// Identifies the part of a step's input that the codes hold.
  struct CodesOf {
    const float* x = nullptr;
    int64_t group = 0;
    ActivationRounding rounding;
    bool fp8 = false;
    bool operator==(const CodesOf&) const = default;
  };
  /// The rows that normed_ was made of, where a norm is all that was done to them.
  struct BeforeNorm {
    const float *x = nullptr, *norm = nullptr;
    float eps = 0;
  };
  /// An operation on a slot that is still to be done: by its next reader on the way to codes, or by finish_rows(). The
  /// other operand is in sum_ or up_.
  struct Deferred {
    cuda::RowStart start = cuda::RowStart::kX;  // nothing
    Slot slot = 0;
    int64_t count = 0;  // floats
  };
  /// Sizes of the buffers that steps need besides their slots.
  struct Needs {
    int64_t normed = 0, sum = 0, up = 0, clipped = 0, own = 0;  // columns
    int64_t codes = 0, code_scales = 0, scratch = 0;            // bytes of a row, scales of a row, bytes
    int64_t vocab = 0, results = 0, arrivals = 0;               // columns, floats, tiles of a row
    std::vector<int64_t> shares;                                // of CudaBatch::reserve()
  };
  CudaWorkspace(int gpu, cuda::Stream stream, ThreadPool& pool) : gpu_(gpu), stream_(std::move(stream)), pool_(&pool) {}
  Status allocate(std::span<const Step> steps, const Limits& limits, ThreadPool& pool);
  Status allocate_choices(int64_t vocab);
  void add_needs(const CudaWeight& weight, Needs& needs) const;
  Status add_needs(const AttentionSpec& spec, const Limits& limits, ThreadPool& pool, Needs& needs);
  const Rotation* rotation_of(const AttentionSpec& spec) const;
  /// The batch as its pass `pass` has it.
  Batch later(const Batch& batch, int64_t pass);
  /// Enqueues the operation that was deferred.
  Status finish_rows();
  Status wait() const { return cuda::synchronize(stream_.handle()); }
  void* stream() const { return stream_.handle(); }
  /// Rows whose logits may stay here until all steps are done.
  int64_t rows_at_once() const { return batch_.wants_logits() ? few_logits_ : logits_rows_; }
  float* slot(Slot s) { return slots_[s].as<float>(); }

  int gpu_;
  cuda::Stream stream_;
  ThreadPool* pool_;
  int multiprocessors_ = 0;
  int64_t rows_ = 0;
  std::vector<int64_t> widths_;
  std::vector<Buffer> slots_;  // [rows, widths_[s]]
  Buffer normed_;              // [rows, widest]: normed rows
  Buffer sum_, up_, results_;  // the same memory: none lives while another is written. [rows, widest]: products before
                               // they are added; the factor of a gated product; spans that are computed apart
  Buffer clipped_;             // [rows, widest]: rows before they are rounded
  Buffer own_;                 // [rows, widest]: rows normed for one product alone
  Buffer codes_, code_scales_;
  Buffer scratch_;  // of products
  Buffer logits_;   // [logits_rows_, vocab]
  int64_t logits_rows_ = 0;
  Buffer pinned_logits_;           // [few_logits_, vocab], in the host's memory
  int64_t few_logits_ = 0;         // rows whose logits come at once, behind all steps
  Buffer chosen_, pinned_chosen_;  // [rows]: cuda::ChosenToken; [passes, rows]: where they come in the host's memory
  Buffer chosen_before_;           // [passes, rows]: chosen_ as the passes of this call have left it
  Buffer logprobs_, pinned_logprobs_, logprob_scratch_;  // likewise cuda::RowLogprobs; of logits_rows_
  Buffer choose_scratch_;                                // of logits_rows_
  std::vector<float> host_logits_;                       // of several sequences, or for sinks
  int64_t most_spans_ = 1;                               // of a sequence
  Buffer arrived_;                                       // AttendStep::arrived
  std::vector<Rotation> rotations_;
  CudaBatch batch_;
  std::vector<SequenceRows> sequences_;  // of a pass behind the first
  std::vector<WantedRows> wanted_;
  Recordings recordings_;
  CodesOf codes_of_;
  BeforeNorm before_norm_;
  Deferred deferred_;
  TapObserver observer_;
  Profile* profile_ = nullptr;
};

}  // namespace lowbit
