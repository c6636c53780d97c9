#pragma once
// Fitting against the layer's output instead of its weights: rounding with error feedback (GPTQ), then refitted scales
// and coordinate descent on the codes. What it minimizes is sum over rows of (w - q) H (w - q)^T, the squared error of
// the outputs over the inputs that H was measured on.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "quantize/fit.h"

namespace lowbit {

/// Hessian of a layer's inputs: h[i, j] = mean over tokens of x_i x_j.
struct InputHessian {
  int64_t k = 0;
  std::vector<float> h;  // [k, k], symmetric
  /// d[i, j] = mean over tokens of (y_i - x_i) x_j, y being what the source's layer sees in place of x; or empty.
  std::vector<float> mismatch;
  /// Of a layer that is the only one to read x, in place of the mismatch: e[i, j], [n, k] = mean over tokens of
  /// (y_i - z_i) x_j, y being what its outputs should come to and z what its unquantized weights bring them to.
  std::vector<float> missing;

  bool has_target() const { return !mismatch.empty() || !missing.empty(); }
  std::vector<float> diagonal() const;
};

/// The sum of x H x^T over rows x [rows, k]: the mean squares of their outputs. Rows share each pass over H.
double quadratic_form(const InputHessian& hessian, const float* x, int64_t rows);

struct FeedbackOptions {
  /// Added to H's diagonal, as a fraction of its mean; raised tenfold until H can be factored.
  double damping = 0.01;
  bool act_order =
      true;  // columns of large inputs first; scales stay with their groups, so nothing changes at run time
  int refine_rounds = 2;  // of refitted scales and coordinate descent; 0: plain GPTQ
  /// How far targets go from the weights towards what gives the source's outputs: 0 to 1, needs
  /// InputHessian::has_target().
  float shift = 0;
};

/// Inputs of more columns are factored one after the other by all threads: one of 6,912 takes a thread longer than all
/// fits of its layers.
inline constexpr int64_t kMostColumnsOfAThread = 2048;

/// An input of one or more layers, factored once for all of their fits. Immutable; copies share it.
class FeedbackInput {
 public:
  /// `options`: damping and act_order are used. `pool`: null: the caller's thread alone does it. Errors:
  /// kInvalidArgument (NaN, infinity or a negative diagonal in H), kOutOfMemory.
  static Result<FeedbackInput> make(std::shared_ptr<const InputHessian> hessian, const FeedbackOptions& options,
                                    ThreadPool* pool = nullptr);

  struct Parts;
  const Parts& parts() const { return *parts_; }

 private:
  explicit FeedbackInput(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

struct FeedbackReport {
  FitReport weights;        // as fit() reports
  double output_error = 0;  // tr(E H E^T) / tr(W H W^T)
  double damping = 0;       // what was needed
  bool fell_back = false;   // H could not be factored: scales and codes weighted by its diagonal, no feedback
};

/// Quantizes w [n, k], or with a shift w + shift * w D H^-1 (D: the mismatch; at 1 the least squares of (w y - q x)),
/// or w + shift * E H^-1 (E: what is missing; at 1 the least squares of (y - z + w x - q x)), for inputs of the Hessian
/// `hessian`; errors are those to the target. Scales are those of fit() with importance diag(H) (static groups); codes
/// are then chosen column by column, each carrying the errors of the columns before it (the recurrence of GPTQ in its
/// factored form: H = R R^T with R upper triangular, target_c = w_c + sum over d < c of (w_d - q_d) R_dc / R_cc). On a
/// trellis 64 columns are searched together, and refined as such blocks. Same bits for any thread count. Errors: as
/// fit(); kShapeMismatch (hessian of another k, E of other outputs); kInvalidArgument (NaN, infinity or a negative
/// diagonal in H).
Result<ValueTensor> fit_with_feedback(const float* w, int64_t n, int64_t k, const FitOptions& options,
                                      const FeedbackInput& input, const FeedbackOptions& feedback, ThreadPool& pool,
                                      FeedbackReport* report = nullptr);
/// Factors the hessian for this fit alone; on a trellis columns keep their order, whatever act_order says.
Result<ValueTensor> fit_with_feedback(const float* w, int64_t n, int64_t k, const FitOptions& options,
                                      const InputHessian& hessian, const FeedbackOptions& feedback, ThreadPool& pool,
                                      FeedbackReport* report = nullptr);

}  // namespace lowbit
