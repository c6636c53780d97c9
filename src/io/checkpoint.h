#pragma once
// lowbit's checkpoint directory: config.json with a quantization_config, safetensors, tokenizer files.
// docs/checkpoint.md.
//
// Layer P: a dense weight is the tensor "P.weight"; a quantized one is
//   P.weight.codes u8 [n, bytes of a row] · .scales [scale rows, scale columns] · .shape i64 [2] · and where the format
//     needs them
//   .zeros (as .scales) · .codebook f32 [entries] · .super_scales f16 [scale rows, ceil(columns / 16)] · .row_ends i64
//     [ranges]

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/qtensor.h"
#include "lowbit/error.h"
#include "lowbit/tensor.h"

namespace lowbit {

/// format_version: a reader refuses a higher one. A file gets the lowest that its content needs.
inline constexpr int64_t kCheckpointVersion = 2;
/// Transforms that a model computes at run time beside its weights, in quantization_config; needs format_version 2,
/// since an older reader would leave it out: {"online_hadamard": {"mlp.down_proj": 512}};
/// {"linear_norms": {"eps": 1e-6}}, norms of their own before the linear layers of the blocks.
inline constexpr const char* kOnlineHadamard = "online_hadamard";
inline constexpr const char* kLinearNorms = "linear_norms";
inline constexpr const char* kDownProjection = "mlp.down_proj";
inline constexpr int64_t kVersionOfTransforms = 2;

struct CheckpointOptions {
  bool overwrite = false;                  // replace a checkpoint that is already there
  int64_t shard_bytes = int64_t{4} << 30;  // a new file starts before this is exceeded
};

/// The entries of config.json besides the tensors.
struct CheckpointInfo {
  /// The model's own. A quantization_config in it is replaced, but what lowbit computes at run time stays
  /// (kOnlineHadamard, kLinearNorms).
  std::string config_json = "{}";
  std::string fit_json = "{}";                   // {"method": "lsq", "seed": 0, "source_sha256": "..."}
  std::map<std::string, double> rel_error = {};  // by layer name, without ".weight"
};

/// Writes a checkpoint tensor by tensor; holds none of them. Nothing is visible under the target's name before finish()
/// succeeds; destruction without it, or after an error, removes everything.
class CheckpointWriter {
 public:
  /// Errors: kInvalidArgument (target exists and is not an empty directory, or not a checkpoint, or overwrite is off),
  /// kIo.
  static Result<std::unique_ptr<CheckpointWriter>> create(const std::string& target,
                                                          const CheckpointOptions& options = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// `name` is the Hugging Face name ("model.layers.0.mlp.up_proj.weight"); names of quantized tensors end in
  /// ".weight". `shape` is the tensor's own: {w.k} for a vector, {w.n, w.k} for a matrix. Errors: kInvalidArgument,
  /// kShapeMismatch, kIo (disk full, ...).
  Status add(const std::string& name, const QTensor& w, const Shape& shape);

  /// A small file beside the weights ("tokenizer.json"). Errors: kInvalidArgument (not a plain name, or one of the
  /// writer's own), kIo.
  Status add_file(const std::string& name, const std::string& text);

  /// Everything on disk and under the target's name. Bytes of all files are returned.
  Result<int64_t> finish(const CheckpointInfo& info);

 private:
  struct Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CheckpointTensor {
  std::string name;  // as given to CheckpointWriter::add
  Shape shape;
  FormatId format = FormatId::kF32;
  Scaling scaling;           // packed formats
  int64_t stored_bytes = 0;  // codes, scales and all
};

/// Copies share the mapped files.
class Checkpoint {
 public:
  /// True when `path` is a directory whose config.json says quant_method "lowbit".
  static bool is_checkpoint(const std::string& path);

  /// Errors: kNotFound (file, shard or tensor, by name), kUnsupported (newer format_version, unknown format), kCorrupt
  /// (wrong sizes, by tensor).
  static Result<Checkpoint> open(const std::string& path);

  const std::string& path() const;
  const std::string& config_json() const;
  const std::vector<CheckpointTensor>& tensors() const;  // by name
  const CheckpointTensor* find(std::string_view name) const;

  /// The tensor as it lies in the file; no bytes are copied unless they are unaligned.
  Result<QTensor> load(std::string_view name) const;
  void release(std::string_view name) const;

 private:
  struct Impl;
  explicit Checkpoint(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

struct CheckpointReport {
  int64_t tensors = 0;  // of the files
  int64_t bytes = 0;
  std::vector<std::string> problems;  // one line each; empty = fine
};

/// Reads everything: structure, every tensor's checksum, and that every layer decodes. What is wrong with the content
/// is reported, not returned as an error. Errors: kNotFound when there is no such directory.
Result<CheckpointReport> verify_checkpoint(const std::string& path);

}  // namespace lowbit
