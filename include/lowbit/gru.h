#pragma once
// Gated recurrent networks that run on integers only: load, calibrate, quantize, run; the same bits on every machine.
//
// Cell (reset-after, as PyTorch, cuDNN and ONNX with linear_before_reset=1; gate order u (update), r (reset), n):
//   ih = W x + bw    hh = R h + br    u = sigmoid(ih_u + hh_u)    r = sigmoid(ih_r + hh_r)
//   n = tanh(ih_n + r * hh_n)         h' = u * h + (1 - u) * n
// Integers: real = (q - zp) * 2^-shift for every tensor. The exact arithmetic is docs/gru.md.
// Shapes: T steps, N sequences, C inputs, H hidden; a cell is one direction of one layer.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lowbit/compute.h"
#include "lowbit/error.h"

namespace lowbit {

// ---- Float networks -------------------------------------------------------------------------------------------------

/// One direction of one layer. Rows in gate order u, r, n.
struct GruWeights {
  int64_t input = 0, hidden = 0;  // C, H
  std::vector<float> w, r;        // [3H, C], [3H, H]
  std::vector<float> bw, br;      // [3H]
};

struct GruNetwork {
  std::vector<GruWeights> cells;  // layer 0 forward, [layer 0 reverse,] layer 1 forward, ...
  bool bidirectional = false;
  bool batch_first = false;           // the file says that its sequences are [N, T, C] (ONNX: layout=1)
  std::vector<std::string> left_out;  // what the file computes before, behind or beside the GRU: "Gemm 'fc'"

  int directions() const { return bidirectional ? 2 : 1; }
  int layers() const { return static_cast<int>(cells.size()) / directions(); }
  int64_t input() const { return cells.empty() ? 0 : cells.front().input; }
  int64_t output() const { return cells.empty() ? 0 : directions() * cells.back().hidden; }  // columns of y
  int64_t state_size() const;                                                                // sum of H over the cells
  int64_t parameters() const;
};

/// Shapes agree from layer to layer and every weight is finite. Errors: kShapeMismatch, kInvalidArgument.
Status check_gru(const GruNetwork& network);

struct GruLoadOptions {
  std::string select;  // prefix of the array names, or name of an ONNX node; "" takes all
};

/// A network from .npz, a directory of .npy, .onnx (GRU nodes) or .safetensors. Names understood: PyTorch's
/// weight_ih_l0[_reverse], w_ih/w_hh/b_ih/b_hh, Keras' kernel/recurrent_kernel/bias, haste's with recurrent_bias, and
/// unnamed ONNX triples W [D,3H,C], R [D,3H,H], B [D,6H]. Gates are put in the order u, r, n.
/// GRU nodes of ONNX must read each other's outputs, with nothing between but nodes that change shapes; other nodes
/// around them are left out and named. Errors: as the readers; kUnsupported (reset-before networks, other activations,
/// a node between, states or lengths stored in the model), kNotFound (no GRU), kShapeMismatch.
Result<GruNetwork> load_gru(const std::string& path, const GruLoadOptions& options = {});

struct GruInput {
  int64_t steps = 0, batch = 0;      // T, N
  bool batch_first = false;          // x and y are [N, T, .] instead of [T, N, .]
  std::span<const float> x;          // [T, N, C]
  std::span<const float> h0;         // per cell [N, H], one after another; empty: zeros
  std::span<const int64_t> lengths;  // [N], 0..T; empty: all T. The reverse direction starts at a sequence's own end
};

struct GruOutput {
  std::vector<float> y;            // [T, N, D*H]; 0 behind a sequence's end
  std::vector<float> final_state;  // per cell [N, H]: the state after each sequence's last step
  std::vector<int32_t> codes;      // y as integers, integer networks only
  std::vector<float> trace;        // per cell [T*N, 4H] of u, r, n, hh_n when asked for
};

/// Errors: kShapeMismatch, kInvalidArgument (NaN or infinity in x or h0, lengths outside 0..T).
Result<GruOutput> run_gru(const GruNetwork& network, const GruInput& input, bool trace = false);

// ---- Calibration ----------------------------------------------------------------------------------------------------

/// The tensors of a cell that have one format, shift and zero point each.
enum class GruTensor : uint8_t { kX, kH, kIh, kHh, kUi, kU, kRi, kR, kNi, kN };
inline constexpr int kGruTensors = 10;
const char* gru_tensor_name(GruTensor tensor);  // "input.x", "output.h", "linear.weight_ih", "gate.update_input", ...

/// minmax: running minimum and maximum. ema: x and h by 0.9 old + 0.1 new per time step, the others running.
/// percentile: all tensors. mse, sqnr: the shift of least squared error, clipped errors counting once or three times.
enum class GruMethod : uint8_t { kMinMax, kEma, kPercentile, kMse, kSqnr };
const char* gru_method_name(GruMethod method);
Result<GruMethod> parse_gru_method(const std::string& name);

struct GruCalibrateOptions {
  GruMethod method = GruMethod::kMinMax;
  double percentile = 0.9999;  // in (0.5, 1]
};

/// Ranges of every tensor of every cell, and for mse and sqnr the histograms behind them.
class GruRanges {
 public:
  /// Runs the float network over `inputs`. State of ema carries over from one to the next.
  /// Errors: as run_gru; kInvalidArgument (no inputs, a percentile outside its range).
  static Result<GruRanges> measure(const GruNetwork& network, std::span<const GruInput> inputs,
                                   const GruCalibrateOptions& options = {});
  /// The JSON file of `lowbit gru calibrate`. Errors: as read_text_file; kCorrupt, kUnsupported (a newer version).
  static Result<GruRanges> open(const std::string& path);
  Status save(const std::string& path) const;

  GruMethod method() const;
  int cells() const;
  std::array<float, 2> range(int cell, GruTensor tensor) const;  // min <= 0 <= max
  void set_range(int cell, GruTensor tensor, float min, float max);
  int64_t steps_seen() const;

  struct Impl;
  explicit GruRanges(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

// ---- Formats --------------------------------------------------------------------------------------------------------

struct GruFormat {
  int bits = 8;
  bool is_unsigned = false;
  bool symmetric = false;  // zero point 0
  int saturate = 1;        // 1: the largest value may miss by one step ([-1, 1] in 8 bits has shift 7); 0: strict cover
  bool operator==(const GruFormat&) const = default;
  int64_t q_min() const { return is_unsigned ? 0 : -(int64_t{1} << (bits - 1)); }
  int64_t q_max() const { return is_unsigned ? (int64_t{1} << bits) - 1 : (int64_t{1} << (bits - 1)) - 1; }
};

enum class GruGranularity : uint8_t { kTensor, kGate, kRow };
/// fused: y = clamp(rs(b (q - zp) + c', k) + zp_y), one rounding. seed: y = clamp(rs(b (q - zp), k) + c).
/// direct: a correctly rounded output for each input.
enum class GruTableMode : uint8_t { kFused, kSeed, kDirect };
/// nearest: each weight on its own. feedback: column by column, each one's rounding error is made up for by the columns
/// not yet rounded, as the inputs seen in calibration correlate them; needs calibration inputs.
enum class GruRounding : uint8_t { kNearest, kFeedback };

struct GruConfig {
  std::array<GruFormat, kGruTensors> tensors;  // by GruTensor
  GruFormat w{8, false, true, 1}, r{8, false, true, 1};
  GruFormat bw{32, false, true, 1}, br{32, false, true, 1};  // 2..32 bits
  GruGranularity granularity = GruGranularity::kRow;         // of w, r, bw and br
  bool bias_at_product_scale = true;  // shift of bw is that of w plus that of x; else from its own range
  GruTableMode table = GruTableMode::kFused;
  int segments = 0;               // 16, 64, 256, ... up to 1024; 0: 16 for outputs up to 8 bits, 64 up to 12, else 256
  bool fixed_gate_ranges = true;  // u, r: [0, 1], n: [-1, 1] whatever was seen
  GruRounding rounding = GruRounding::kNearest;

  GruFormat& operator[](GruTensor t) { return tensors[static_cast<size_t>(t)]; }
  const GruFormat& operator[](GruTensor t) const { return tensors[static_cast<size_t>(t)]; }
};

/// "seed8": everything 8 bits, as seed 001 (ARCHITECTURE.md) has it. "w8a16": 8-bit weights, 16-bit activations.
/// "accurate": w8a16 with an update gate that can hold 1.0. "accurate8": seed8 with such gates. "gates12": seed8 with
/// 12-bit sums and gates.
Result<GruConfig> gru_preset(const std::string& name);
std::vector<std::string> gru_presets();

/// {"preset": "seed8", "output.h": {"bits": 16}, "weight.W": {"bits": 4}, "granularity": "row", "bias": "product" |
/// "own",
///  "table": {"mode": "fused", "segments": 64}, "gate_ranges": "fixed" | "observed", "rounding": "nearest"}; absent
///    members
/// keep what `base` has. Errors: as read_text_file; kCorrupt, kInvalidArgument (an unknown name, bits out of range).
Result<GruConfig> read_gru_config(const std::string& path, const GruConfig& base);
std::string gru_config_json(const GruConfig& config);

// ---- Integer networks -----------------------------------------------------------------------------------------------

/// Shift and zero point of one tensor.
struct GruScale {
  int shift = 0;
  int32_t zp = 0;
  bool operator==(const GruScale&) const = default;
};

struct GruTableError {
  double max = 0, mean = 0;  // in steps of the output, against the correctly rounded function
};

/// How wide each stage's largest possible intermediate is, in bits with sign: what the plan builder proved.
struct GruWidths {
  int input_product = 0, state_product = 0;  // W x + bw, R h + br
  int gate_sum = 0, candidate = 0, state = 0, table = 0;
};

struct GruCellReport {
  std::array<GruScale, kGruTensors> scales;
  std::vector<int> w_shift, r_shift;    // [3H]
  std::array<GruTableError, 3> tables;  // u, r, n
  GruWidths widths;
  int64_t weight_bytes = 0, bytes = 0;  // packed weights; everything inference reads
};

struct GruQuantizeOptions {
  std::span<const GruInput> inputs;  // for GruRounding::kFeedback
};

class GruStream;

/// An integer network. Copies share it; immutable and thread safe.
class GruModel {
 public:
  /// Errors: kInvalidArgument (bits out of range, observed ranges that are not finite), kShapeMismatch (ranges of
  /// another network), kUnsupported (a stage that could overflow 64 bits).
  static Result<GruModel> quantize(const GruNetwork& network, const GruRanges& ranges, const GruConfig& config,
                                   const GruQuantizeOptions& options = {});
  /// A .lbgru file. All derived numbers are computed again and compared. Errors: as SafetensorsFile::open; kCorrupt.
  static Result<GruModel> open(const std::string& path);
  Status save(const std::string& path) const;
  /// AIMET encodings (JSON) of every tensor, named cell.<i>.<tensor>: real = (code + offset) * scale, code from 0 on.
  /// `lists`: version 1.0.0, else 0.6.1. Errors: kIo.
  Status save_encodings(const std::string& path, bool lists = true) const;

  int layers() const;
  int directions() const;
  bool batch_first() const;  // as GruNetwork::batch_first: what files are read as where nobody says otherwise
  int64_t input() const;
  int64_t output() const;
  int64_t state_size() const;
  int64_t parameters() const;
  const GruConfig& config() const;
  std::vector<GruCellReport> report() const;  // per cell
  int64_t bytes() const;                      // of all that inference reads
  /// The scales of x and y: the first layer's x, the last layer's h.
  GruScale input_scale() const;
  GruScale output_scale() const;

  struct RunOptions {
    std::string isa;  // as Compute::isa
    bool trace = false;
    bool codes = false;  // fill GruOutput::codes
    /// "cuda" or "cuda:<i>": on that GPU, with the same bits. Otherwise on the CPU, also for "auto": a network this
    /// small is as a rule sooner done there than its inputs have been copied.
    std::string device;
  };
  /// Errors: kShapeMismatch, kInvalidArgument; kUnsupported (an isa or a device that the machine lacks, a trace on a
  /// GPU). NaN becomes the zero point, infinities the limits.
  Result<GruOutput> run(const GruInput& input, const RunOptions& options) const;
  Result<GruOutput> run(const GruInput& input) const { return run(input, RunOptions{}); }

  /// The network with its weights as the integers have them, in floats.
  GruNetwork dequantized() const;

  /// Step by step, state kept. Errors: kUnsupported (bidirectional networks).
  Result<GruStream> stream(int64_t batch = 1, const std::string& isa = "") const;

  struct Impl;
  explicit GruModel(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Not thread safe; owns its state. Gives the same bits as GruModel::run over the whole sequence.
class GruStream {
 public:
  ~GruStream();
  GruStream(GruStream&&) noexcept;
  GruStream& operator=(GruStream&&) noexcept;

  /// One time step of x [N, C] into y [N, H]. Errors: kShapeMismatch.
  Status step(std::span<const float> x, std::span<float> y);
  /// run() on integers: x already on input_scale(), y on output_scale(). Errors: kShapeMismatch, kInvalidArgument (a
  /// code outside the format).
  Status step_codes(std::span<const int32_t> x, std::span<int32_t> y);
  void reset();                      // all states to 0
  std::vector<float> state() const;  // per cell [N, H]
  /// Errors of both: kShapeMismatch, kInvalidArgument (a code outside the format); the state stays as it was.
  Status set_state(std::span<const float> state);
  std::vector<int32_t> state_codes() const;  // the same on integers
  Status set_state_codes(std::span<const int32_t> state);

  struct Impl;
  explicit GruStream(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// ---- Comparing, arrays -------------------------------------------------------------------------------

struct GruTensorError {
  int cell = 0;
  GruTensor tensor = GruTensor::kX;
  double sqnr_db = 0;  // 10 log10(sum float^2 / sum difference^2), at most 200
  double max_abs = 0;
  std::vector<double> by_step;  // sqnr_db of each step; of reverse directions from the sequence's end on
};

/// Formats and ranges out of AIMET encodings of either version, named as save_encodings names them. Ranges give the
/// nearest power-of-two scale that covers them: the same one where the file has powers of two. Scales of weights follow
/// from the weights. Errors: as read_text_file; kCorrupt (no encoding of a tensor, a range without 0), kUnsupported
/// (other formats from cell to cell, floating-point encodings).
struct GruEncodings {
  GruRanges ranges;
  GruConfig config;  // gate ranges observed: the file's
};
Result<GruEncodings> read_gru_encodings(const std::string& path, const GruNetwork& network, const GruConfig& base);

struct GruSearchOptions {
  GruConfig start;                                        // must meet the floor; formats are only ever narrowed
  std::span<const GruInput> inputs;                       // for the default metric, and for feedback rounding
  double floor = 30;                                      // of the metric
  std::function<Result<double>(const GruModel&)> metric;  // larger is better; empty: SQNR of y over `inputs` in dB
};
struct GruSearchReport {
  struct Trial {
    std::string change;  // "weight.R 4"
    double value = 0;
    int64_t bytes = 0;
    bool meets = false;
  };
  GruConfig config;
  double value = 0;
  int64_t bytes = 0;
  std::vector<Trial> tried;
};
/// Narrows one group of formats after the other (weights to 8, 4, 3, 2 bits, activations from 16 to 4), always the one
/// that leaves the fewest bytes, until none can be narrowed above the floor. Errors: as quantize and run;
/// kInvalidArgument (a start below the floor, no inputs).
Result<GruSearchReport> search_gru_bits(const GruNetwork& network, const GruRanges& ranges,
                                        const GruSearchOptions& options);

struct GruTuneOptions {
  GruConfig config;                                       // the formats whose scales are sought
  std::span<const GruInput> inputs;                       // for the default metric, and for feedback rounding
  std::function<Result<double>(const GruModel&)> metric;  // larger is better, in dB; empty: SQNR of y over `inputs`
  std::vector<GruTensor> tensors;  // only these, in this order; empty: all that have a scale of their own
  int passes = 3;                  // over all tensors, at most
  double gain = 0.01;              // dB that a change must bring
};
struct GruTuneReport {
  struct Change {
    int cell = 0;
    GruTensor tensor = GruTensor::kX;
    GruScale before, after;
    double value = 0;  // with it
  };
  GruRanges ranges;  // what GruModel::quantize turns into the scales that were found
  double start = 0, value = 0;
  int tried = 0;
  std::vector<Change> changes;
};
/// Shifts and zero points by what they do to the outputs: one tensor after the other, finer and coarser steps and zero
/// points moved by a quarter of the codes down to a 64th are tried, and what raises the metric stays. The inputs of
/// gates begin where their function still tells codes apart. Deterministic. Errors: as quantize and run;
/// kInvalidArgument (no inputs).
Result<GruTuneReport> tune_gru_ranges(const GruNetwork& network, const GruRanges& ranges,
                                      const GruTuneOptions& options);

struct GruVerifyReport {
  struct Target {
    std::string name;  // "avx2", "avx512", "cuda", "stream"
    int64_t compared = 0, different = 0;
  };
  std::vector<Target> targets;          // each against the scalar reference
  std::vector<GruTensorError> tensors;  // scalar integers against floats
  std::vector<double> sqnr_by_step;     // of y, per time step
  bool ok = true;                       // no bit differs
};
/// Every instruction set of this machine, its GPU, and streaming, against the scalar reference bit for bit; and all
/// tensors against `network` in floats. Errors: as run.
Result<GruVerifyReport> verify_gru(const GruModel& model, const GruNetwork& network, const GruInput& input);

/// Arrays as floats: of an .npy, an .npz, or all .npy of a directory. `read_float_array` wants exactly one.
/// Errors: as the readers; kInvalidArgument (several arrays).
struct GruArray {
  std::string name;  // without ".npy"
  std::vector<int64_t> shape;
  std::vector<float> data;
};
Result<GruArray> read_float_array(const std::string& path);
Result<std::vector<GruArray>> read_float_arrays(const std::string& path);
Status write_float_array(const std::string& path, std::span<const float> data, std::span<const int64_t> shape);

}  // namespace lowbit
