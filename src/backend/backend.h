#pragma once
// What a device does for a model: prepares weights, compiles programs, makes workspaces. backend/ref/ is the meaning of every step,
// backend/cpu/ has its bits at the machine's speed.

#include <functional>
#include <memory>

#include "backend/step.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/error.h"

namespace lowbit {

/// Sees the rows of a tap before they are multiplied: x [m, k], dense, in the backend's memory. An error ends the run.
using TapObserver = std::function<Status(int tap, const float* x, int64_t m, int64_t k)>;

/// Room for one batch at a time, and what its runs need besides.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  virtual ~Workspace() = default;
  virtual int64_t rows() const = 0;  // the most of a batch
  virtual int64_t bytes() const = 0;
  /// Rows of a slot, from and to the host's memory: [rows, width], from row `first`.
  virtual Status read(Slot slot, int64_t first, int64_t rows, float* to) const = 0;
  virtual Status write(Slot slot, int64_t first, int64_t rows, const float* from) = 0;
  /// Of programs compiled with taps. Null to stop.
  virtual void set_observer(TapObserver observer) = 0;
  /// Adds the times of all runs from now on; must outlive them. Null to stop.
  virtual void set_profile(Profile* profile) = 0;
};

/// Steps compiled for a device. Immutable: workspaces may run it at the same time.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;
  virtual int steps() const = 0;
  /// Runs steps [first, last) on a batch. Logits go where hand_out_logits() brings them. Slots keep their rows between ranges; a range begins at step 0, behind a whole block, or
  /// at a step whose input has a tap. Same bits for any batch, cut into ranges and number of threads. Errors: kOutOfMemory, what
  /// the observer or the device says.
  virtual Status run(Workspace& workspace, const Batch& batch, int first, int last) const = 0;
  /// Shows the observer the input of a step that has a tap, and no more: the step has not run.
  virtual Status show(Workspace& workspace, const Batch& batch, int step) const = 0;
};

enum class WeightUse : uint8_t { kProducts, kRows, kBoth };

struct CompileOptions {
  bool taps = false;  // observers see the inputs that have one: those are rows then, and nothing is fused across them
};

/// What a workspace has room for.
struct Limits {
  std::span<const int64_t> widths;  // columns of each slot
  int64_t rows = 0;                 // of a batch
  int64_t context = 0;              // positions of a sequence: up to so many, runs allocate nothing
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;
  virtual const char* name() const = 0;

  /// `bias` [n] or empty. For products the weight may go away afterwards; for rows it is kept, and borrows its bytes where it did.
  /// Errors: those of MatmulPlan::make, which names no tensor.
  virtual Result<std::unique_ptr<Weight>> prepare(const std::string& name, const QTensor& w, std::vector<float> bias,
                                                  const XSpec& x, WeightUse use) = 0;
  /// Weights are this backend's and outlive the program, norms and specs too. Copies no weights.
  /// Errors: kUnsupported (a step that the backend lacks, by name).
  virtual Result<std::unique_ptr<Program>> compile(std::span<const Step> steps, const CompileOptions& options) = 0;
  /// For programs of these steps, or of some of them. Errors: kOutOfMemory.
  virtual Result<std::unique_ptr<Workspace>> workspace(std::span<const Step> steps, const Limits& limits) = 0;
};

/// The pool must outlive the backend. `tune`: tries cuts of products in the first calls of each shape, and keeps the fastest.
std::unique_ptr<Backend> make_cpu_backend(Isa isa, ThreadPool& pool, bool tune);
/// Plain loops, one step after the other, on kernels/ref: what every other backend must give.
std::unique_ptr<Backend> make_ref_backend(ThreadPool& pool);

}  // namespace lowbit
