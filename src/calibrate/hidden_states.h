#pragma once
// Activations of a text's sequences between two steps of a model, in a backend's memory.

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "calibrate/batch_room.h"
#include "calibrate/block_program.h"

namespace lowbit {

/// Called before each batch with the share of the call that is done; an error stops the call.
using BeforeBatch = std::function<Status(double share)>;

/// Rows of an input of a block, in the backend's memory: x [m, k], dense, those of a batch.
using RowUse = std::function<Status(InputRole role, const float* x, int64_t m, int64_t k)>;

/// Hidden states [sequences, context, hidden] on their way through a model, block by block and, in a block, from input
/// to input. Between two of its steps a block needs what is live there: the states, and what attention or the gated
/// product gave. Of the latter the first sequences are kept, as many as there is room for; those of the others are
/// computed again.
class HiddenStates {
 public:
  HiddenStates() = default;
  static constexpr int64_t kAnyBytes = std::numeric_limits<int64_t>::max();
  /// Zeros, before the first block. `most_between`: bytes of rows that are kept inside a block beside the states.
  /// `format`: of the states wherever nothing else is live, behind attention and behind the block. Error: kOutOfMemory.
  static Result<HiddenStates> make(Backend& backend, int64_t sequences, int64_t context, int64_t hidden,
                                   int64_t most_between = kAnyBytes, RowFormat format = RowFormat::kF32);

  bool empty() const { return sequences_ == 0; }
  int64_t sequences() const { return sequences_; }
  int64_t rows() const { return sequences_ * context_; }
  /// The step of the block that runs next; 0 between blocks.
  int step() const { return step_; }
  /// Rows from `first` on: [n, hidden].
  Status write(int64_t first, std::span<const float> from);
  Status read(int64_t first, std::span<float> to) const;
  /// Copies the states of another object of the same size, and its position in the block.
  Status copy_from(const HiddenStates& other);

  /// Runs the block from where these are up to step `last`, or through it (kBlockSteps). `use` sees the inputs of the
  /// steps that run, those that are computed again among them.
  Status run(BlockProgram& program, BatchRoom& room, int last, const BeforeBatch& before = {}, const RowUse& use = {});
  /// Shows every input of the block to `use`; these stay before it.
  Status show_inputs(BlockProgram& program, BatchRoom& room, const BeforeBatch& before, const RowUse& use) const;

  /// States, the program of their block, and room that the other side has not.
  struct Side {
    HiddenStates& states;
    BlockProgram& program;
    BatchRoom& room;
  };
  /// Brings both to an input of the block and adds its rows to `sum`: x the quantized side's, y the source's, z = x. Of
  /// a layer that adds to the stream y is the source's stream behind it, and z the quantized side's stream behind it,
  /// with the weights that its program has for it now. Then the source goes on to where its states alone are live, and
  /// the quantized side waits for weights.
  static Status compare_inputs(const Side& source, const Side& quantized, InputRole role, const BeforeBatch& before,
                               HessianSum& sum);
  /// Whether the only reader of this input adds to the stream.
  static bool adds_to_stream(InputRole role) { return role == InputRole::kOutput || role == InputRole::kDown; }

 private:
  /// Steps [first, last) of a batch, and what happens before step `at`, where the workspace has the rows of its input.
  struct Range {
    RowRange rows;
    int first = 0, at = 0, last = 0;
  };
  using AtStep = std::function<Status(const Program& program, const Batch& batch)>;
  Status run_batch(BlockProgram& program, BatchRoom& room, const Range& range, const AtStep& at_step) const;
  /// The slots that the range writes and later steps read; where it is not among the first `kept` sequences the stream
  /// alone.
  Status keep(const BlockProgram& program, BatchRoom& room, const Range& range, int64_t kept);
  /// How many sequences have room for what is live before a step beside the stream; all, where nothing is.
  int64_t sequences_kept(const BlockProgram& program, const BatchRoom& room, int step) const;
  bool are_kept(const RowRange& rows, int64_t kept) const { return rows.first + rows.rows <= kept * context_; }
  /// Where these rows go on: at the stop, or at the last one before it that needs their stream alone.
  int begin_of(const RowRange& rows) const { return are_kept(rows, kept_) ? step_ : stream_step_; }
  void stopped_at(const BlockProgram& program, int step, int64_t kept);
  const RowBuffer& rows_of(Slot slot) const { return slot == kStream ? stream_ : between_; }

  Backend* backend_ = nullptr;
  int64_t sequences_ = 0, context_ = 0, hidden_ = 0;
  int64_t most_between_ = kAnyBytes;
  int step_ = 0, stream_step_ = 0;
  int64_t kept_ = 0;   // sequences in between_
  RowBuffer stream_;   // [sequences, context, hidden]
  RowBuffer between_;  // the other live rows of a stop inside a block, in f32; empty before the first
};

}  // namespace lowbit
