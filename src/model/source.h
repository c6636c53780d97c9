#pragma once
// Where a model's weights come from: a Hugging Face directory, a GGUF file or a lowbit checkpoint,
// all seen the same way: Hugging Face tensor names, Hugging Face row order, a Hugging Face
// config.json.

#include <memory>
#include <string>
#include <vector>

#include "format/qtensor.h"
#include "lowbit/error.h"
#include "lowbit/tensor.h"

namespace lowbit {

struct SourceTensor {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight"
  Shape shape;            // [n, k] for matrices
  std::string stored_as;  // the file's own word: "Q4_1", "BF16", "int4 g64"
  int64_t stored_bytes = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const std::string& path() const = 0;
  virtual const char* kind() const = 0;                   // "gguf", "huggingface", "lowbit"
  virtual const std::string& config_json() const = 0;     // Hugging Face config.json
  virtual const std::string& tokenizer_json() const = 0;  // "" when there is none; made from GGUF metadata otherwise
  /// kUnsupported when the file has a tokenizer that lowbit does not know; its weights can be read anyway.
  virtual Status tokenizer_status() const { return {}; }
  virtual const std::string& tokenizer_config_json() const = 0;   // "" when there is none (chat_template lives here)
  virtual const std::string& generation_config_json() const = 0;  // "" when there is none

  virtual const std::vector<SourceTensor>& tensors() const = 0;
  virtual bool has(const std::string& name) const = 0;

  /// The tensor in the format it is stored in where lowbit has that grid (dense floats, its own
  /// formats, GGUF's Q4_0, Q4_1, Q8_0, TQ2_0, ... : exact), else dequantized to f32. 1-d tensors
  /// come as n = 1 row. The bytes may borrow from a mapped file and stay valid as long as the
  /// QTensor lives. Its parts fit its format and shape: whoever reads a file has checked that (check_qtensor), and
  /// nobody behind asks again. Whether it is the tensor that a model wants, and finite, is for fetch_tensor(). Errors:
  /// kNotFound, kCorrupt, kUnsupported.
  virtual Result<QTensor> load(const std::string& name) const = 0;

  /// True when load() gives exactly the stored grid; false when it has to dequantize.
  virtual bool lossless(const std::string& name) const = 0;

  /// Tells the system that the pages of this tensor will not be needed again soon, so that they do
  /// not count as memory in use.
  virtual void release(const std::string& name) const = 0;
};

/// Opens a checkpoint directory, a Hugging Face directory or a GGUF file; tells them apart by
/// content.
/// `i2s_layout`: how a GGUF file's I2_S tensors are ordered ("x86", "arm", "rows4"); "": as the file says, and without
/// its word it is an error to load one.
Result<std::unique_ptr<WeightSource>> open_source(const std::string& path, const std::string& i2s_layout = "");

struct TokenizerTexts {
  std::string tokenizer, config;  // tokenizer.json and tokenizer_config.json; "" when there is none
};

/// The tokenizer of anything open_source takes, of a tokenizer.json, of a directory that holds one, or of a GGUF file
/// with a vocabulary and nothing else. Neither weights nor architecture matter. Errors: kNotFound (nothing there),
/// kCorrupt, kUnsupported.
Result<TokenizerTexts> read_tokenizer_texts(const std::string& path);

}  // namespace lowbit
