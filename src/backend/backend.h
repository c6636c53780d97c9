#pragma once
// The interface of a device: it prepares weights, compiles programs, makes workspaces. backend/ref/ is the meaning of
// every step, backend/cpu/ has its bits at the machine's speed.

#include <functional>
#include <memory>

#include "backend/row_buffer.h"
#include "backend/step.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/error.h"
#include "quantize/feedback.h"
#include "tensor/buffer.h"

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
  /// Whether a batch may have rows with a choice.
  virtual bool chooses_tokens() const { return false; }
  /// Biases and mask of SamplerOptions for choices. May be called while another thread runs a batch. Errors:
  /// kUnsupported, kOutOfMemory, what the device says.
  virtual Result<std::unique_ptr<TokenLimits>> place_limits(std::span<const std::pair<int32_t, float>> bias,
                                                            std::span<const uint32_t> mask) const;
  /// The most passes of a batch: what a device chooses need not come to the host before it goes on.
  virtual int64_t passes_at_once() const { return 1; }
  /// Rows of a slot, from and to the host's memory: [rows, width], from row `first`.
  virtual Status read(Slot slot, int64_t first, int64_t rows, float* to) const = 0;
  virtual Status write(Slot slot, int64_t first, int64_t rows, const float* from) = 0;
  /// Rows of a slot, from and to a buffer of this backend (Backend::allocate_rows): slot rows [row, row + rows), the
  /// buffer from number `at` on.
  virtual Status load(Slot slot, int64_t row, int64_t rows, const RowBuffer& from, int64_t at) = 0;
  virtual Status save(Slot slot, int64_t row, int64_t rows, RowBuffer& to, int64_t at) const = 0;
  /// Observes programs that were compiled with taps. Null to stop.
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
  /// Runs steps [first, last) on a batch. Logits go where hand_out_logits() brings them. Slots keep their rows between
  /// ranges; a range begins at step 0, behind a whole block, or at a step whose input has a tap. Same bits for any
  /// batch, cut into ranges and number of threads. Errors: kOutOfMemory, what the observer or the device says.
  virtual Status run(Workspace& workspace, const Batch& batch, int first, int last) const = 0;
  /// Shows the observer the input of a step that has a tap, and no more: the step has not run.
  virtual Status show(Workspace& workspace, const Batch& batch, int step) const = 0;
};

enum class WeightUse : uint8_t { kProducts, kRows, kBoth };

struct CompileOptions {
  bool taps = false;  // observers see the inputs that have one: those are rows then, and nothing is fused across them
  /// Attention, and products of E4M3 codes with a scale per row, in the order of sums of the CPU, on every device
  /// (docs/numerics.md). Of x in 16 bits: make_cuda_backend().
  bool exact = true;
};

/// The size of a workspace.
struct Limits {
  std::span<const int64_t> widths;  // columns of each slot
  int64_t rows = 0;                 // of a batch
  int64_t context = 0;              // positions of a sequence: up to so many, runs allocate nothing
};

/// Rows of a batch that a backend works well on, and the most bytes of a workspace for them; those of sessions, which
/// leave room for their weights and pages.
struct BatchSize {
  int64_t rows = 512, bytes = int64_t{32} << 20;
  int64_t session_rows = rows, session_bytes = bytes;
};

/// Rows that HessianSum sums in f32, in the order in which they came, before they join the sum in f64.
inline constexpr int64_t kHessianChunk = 1024;

/// Sums of x x^T over rows x [k] in a backend's memory, and of (y - z) x^T where there are rows y and z [n]. Same bits
/// on every backend, ISA, number of threads and cut of the rows into calls.
class HessianSum {
 public:
  HessianSum() = default;
  HessianSum(const HessianSum&) = delete;
  HessianSum& operator=(const HessianSum&) = delete;
  virtual ~HessianSum() = default;
  /// x [m, k], and y and z [m, n] if the sum was made to compare, else null; z may be x. What an observer of a tap gets
  /// may be given. Errors: kOutOfMemory, what the device says.
  virtual Status add(const float* x, const float* y, const float* z, int64_t m) = 0;
  /// The means over all rows, that of (y - z) x^T as the mismatch; nothing is added after it. Errors: kInvalidArgument
  /// (no rows, or NaN or infinity among them), with `name`; kOutOfMemory.
  virtual Result<InputHessian> finish(const std::string& name) = 0;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;
  virtual const char* name() const = 0;

  /// `bias` [n] or empty. For products the weight may go away afterwards; for rows it is kept, and borrows its bytes
  /// where it did. Errors: those of MatmulPlan::make, which names no tensor.
  virtual Result<std::unique_ptr<Weight>> prepare(const std::string& name, const QTensor& w, std::vector<float> bias,
                                                  const XSpec& x, WeightUse use) = 0;
  /// Weights are this backend's and outlive the program, norms and specs too. Copies no weights.
  /// Errors: kUnsupported (a step that the backend lacks, by name).
  virtual Result<std::unique_ptr<Program>> compile(std::span<const Step> steps, const CompileOptions& options) = 0;
  /// For programs of these steps, or of some of them; of weights with f32 rows the shapes alone count. Errors:
  /// kOutOfMemory.
  virtual Result<std::unique_ptr<Workspace>> workspace(std::span<const Step> steps, const Limits& limits) = 0;
  /// How large a batch is worth its room where it can have any number of rows: so many, in a workspace of so many
  /// bytes.
  virtual BatchSize batch_size() const { return {}; }

  /// Room for so many numbers in this backend's memory. Error: kOutOfMemory.
  virtual Result<RowBuffer> allocate_rows(int64_t numbers, RowFormat format, const char* what) = 0;
  /// From and to the host; the buffer from number `at` on. They wait.
  virtual Status upload(std::span<const float> from, RowBuffer& to, int64_t at) = 0;
  virtual Status download(const RowBuffer& from, int64_t at, std::span<float> to) = 0;
  /// `n` > 0: every call of HessianSum::add() has rows y and z of so many columns. Error: kOutOfMemory.
  virtual Result<std::unique_ptr<HessianSum>> hessian_sum(int64_t k, int64_t n) = 0;
  /// Pages where this backend's programs read them. As KvPool::make.
  Result<std::shared_ptr<KvPool>> kv_pool(std::vector<KvGroup> groups, int64_t max_pages, int64_t slab_pages) const;
  /// Where those lie.
  virtual KvPageMemory kv_page_memory() const { return {}; }
  /// Whether observers see rows in the host's memory; else download() brings them there.
  virtual bool shows_rows_on_host() const { return false; }
  /// Free bytes of its device, by the driver's count; 0 where nobody counts.
  virtual Result<int64_t> free_memory() const { return 0; }
};

/// Shared by the backends whose memory is the host's.
class HostBackend : public Backend {
 public:
  Result<RowBuffer> allocate_rows(int64_t numbers, RowFormat format, const char* what) override;
  Status upload(std::span<const float> from, RowBuffer& to, int64_t at) override;
  Status download(const RowBuffer& from, int64_t at, std::span<float> to) override;
  bool shows_rows_on_host() const override { return true; }
};

/// The error of HessianSum::finish() for a number that is not finite, in column `column` of x, or of y or z.
tl::unexpected<Error> not_finite(const std::string& name, int64_t column, bool compared);
/// The error of HessianSum::finish() where no row was added.
tl::unexpected<Error> no_inputs(const std::string& name);

/// The pool must outlive the backend. `tune`: tries cuts of products in the first calls of each shape, and keeps the
/// fastest.
std::unique_ptr<Backend> make_cpu_backend(Isa isa, ThreadPool& pool, bool tune);
/// Plain loops, one step after the other, on kernels/ref: what every other backend must give.
std::unique_ptr<Backend> make_ref_backend(ThreadPool& pool);
/// The kernels that a weight's products use on a GPU, as text for people; works without a GPU.
struct CudaKernelChoice {
  std::string name, reason;
};
/// Errors: kUnsupported (no CUDA in this build, no kernel).
Result<CudaKernelChoice> choose_cuda_kernel(const QTensor& w, const XSpec& x);
/// Device `gpu` of cuda::devices(). `pool`: for what the host does at load. `exact`: products have the bits of the
/// others, x in 16 bits or not (docs/numerics.md#activations-in-16-bits). Errors: kUnsupported (no such GPU, no CUDA in
/// this build).
Result<std::unique_ptr<Backend>> make_cuda_backend(int gpu, ThreadPool& pool, bool exact = true);

}  // namespace lowbit
