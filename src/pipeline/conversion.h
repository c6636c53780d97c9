#pragma once
// Copying a source's tensors to a checkpoint, each changed on the way.

#include "base/try.h"
#include "io/checkpoint.h"
#include "io/lost_pages.h"
#include "lowbit/compute.h"
#include "model/source.h"

namespace lowbit {

/// A kept tensor goes into the checkpoint as it is when its grid is lowbit's, else as bf16.
Result<QTensor> to_bf16(const QTensor& w);

/// Tokenizer and generation settings.
Status copy_side_files(const WeightSource& source, CheckpointWriter& writer);

/// Copies a source's tensors to a checkpoint, each changed on the way; counts the bytes for the progress display.
class Conversion {
 public:
  Conversion(const WeightSource& source, CheckpointWriter& writer, const Progress& progress, const char* stage)
      : source_(source), writer_(writer), progress_(progress), stage_(stage) {
    for (const SourceTensor& t : source.tensors()) total_ += t.stored_bytes;
  }

  /// Calls each(tensor, loaded), adds what it returns to the writer.
  template <class Each>
  Status convert(const SourceTensor& t, const Each& each) {
    LOWBIT_TRY(check_progress());
    LOWBIT_TRY_ASSIGN(const QTensor loaded, source_.load(t.name));
    LOWBIT_TRY_ASSIGN(const QTensor out, each(t, loaded));
    return add(t, out);
  }
  /// For a tensor that is added in another way.
  Status add(const SourceTensor& t, const QTensor& w) {
    LOWBIT_TRY(writer_.add(t.name, w, t.shape));
    source_.release(t.name);
    LOWBIT_TRY(lost_.status(source_.path()));
    done_ += t.stored_bytes;
    return {};
  }
  Status check_progress() const {
    if (progress_ && !progress_(stage_, done_, total_)) return fail(ErrorCode::kCancelled, stage_, "a request to stop");
    return {};
  }

 private:
  const WeightSource& source_;
  CheckpointWriter& writer_;
  const Progress& progress_;
  const char* stage_;
  const LostPages lost_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace lowbit
