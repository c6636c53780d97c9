#pragma once
// A language model ready to run.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/chat_template.h"
#include "lowbit/compute.h"
#include "lowbit/error.h"
#include "lowbit/sampling.h"
#include "lowbit/tokenizer.h"

namespace lowbit {

struct SharedModel;  // the library's own
class SessionsTogether;

struct ModelOptions {
  /// int8: integer products, a scale of x per 32 columns. int8-row: one scale per token; int8-clip: that at the token's
  /// 99.9 % quantile. int4: -7..7 with a scale per 32 columns (the head's input keeps int8). fp8: E4M3 with a scale per
  /// 128 columns, for fp8 weights alone; all others take f32. f16, bf16: x rounded to 16 bits, then the exact products;
  /// on a GPU within a bound of them (docs/numerics.md#activations-in-16-bits). f32: exact. auto: int8, but as
  /// int8-row for ternary and binary layers with one scale per row, which are trained so, and with a scale of x per
  /// 128 columns for layers of up to four bits in groups of 128 (docs/numerics.md#exact-scales). Layers whose weights
  /// are no small integers (dense, fp8, codebooks of other values) take f32 but for fp8 by fp8.
  std::string activation = "auto";
  /// Tries several ways to cut products in the first calls of each shape and keeps the fastest; results are the same.
  bool tune = false;
  int64_t context = 0;  // positions of a session; 0 = what the model was trained for, at most 4096
  /// Positions that all sessions have together, in pages of 64; forks share theirs. 0: as many as there is memory for.
  /// Memory is taken as positions are written.
  int64_t kv_positions = 0;
  /// How keys and values are kept: "f16", or quantized as "fp8", "int8", "int4", "int3", "int2" or "kXvY" with X and Y
  /// of 2, 3, 4 and 8 (docs/kv-cache.md). A GPU has neither fp8 nor 3 bits.
  std::string kv = "f16";
  /// The newest positions, which stay f16 beside quantized ones; rounded up to a multiple of 64.
  int64_t kv_residual = 128;
  /// Layers whose keys and values stay f16: "first", "last" and numbers from 0 on, with commas between them. Not on a
  /// GPU.
  std::string kv_keep = "";
  /// Quantized keys and values of the newest so many positions are computed once more each time that there are as many
  /// again, and read each other as f16 then, so that their errors do not add up. In whole pages, two or more above
  /// kv_residual; 0: never. Twice the time, and so many positions more in f16. Not on a GPU.
  int64_t kv_refresh = 0;
  /// "LENGTH:FORMAT": what lies LENGTH positions or more behind is kept with fewer bits, as "4096:int2". Not on a GPU.
  std::string kv_demote = "";
  /// A GPU's attention and its products of f16 and bf16 x have the CPU's bits; else tensor cores, within bounds of them
  /// (docs/numerics.md#attention-on-tensor-cores, #activations-in-16-bits). As with activation f32.
  bool exact = false;
  Compute compute;  // a GPU that it names runs the model; several (cuda:0,cuda:1) share its layers
  /// The last so many layers run on the GPU, the first one that there is if none is named, the rest on the CPU.
  /// Negative: all or none.
  int64_t gpu_layers = -1;
  Progress progress;
};

struct ModelInfo {
  std::string path, kind, architecture;
  int64_t parameters = 0, vocab_size = 0, layers = 0, hidden_size = 0;
  int64_t context = 0, max_context = 0;
  int64_t weight_bytes = 0, kv_bytes = 0;  // kv_bytes: of one session that is full
  std::string kv, kv_keep, kv_demote;      // as ModelOptions
  int64_t kv_refresh = 0;
  std::string activation;  // the option that gives these bits: "auto" where layers have a scale of x per 128 columns
  std::string isa;         // "cuda" on a GPU
  int threads = 0;
  double load_s = 0;
};

/// Where the time of passes through the model went: one step of it ("norm", "qkv", "attention", "head", ...).
struct StepProfile {
  std::string step;
  int64_t calls = 0;
  double seconds = 0;     // of all calls
  double bytes = 0;       // of weights, or of keys and values, that were read
  double operations = 0;  // 2 per multiplication with one of them
};

/// How likely the model held a token for, and others in its place. Natural logarithms, of the logits as the model gives
/// them: before bias, penalties and temperature. docs/numerics.md#log-probabilities.
struct TokenLogprobs {
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // the likeliest first, the lower id among equals
};

struct GenerateOptions {
  int64_t max_tokens = 128;  // 0: none, the prompt is only read
  bool stop_at_eos = true;
  /// The first of these texts that is complete ends the generation, whatever tokens spell it. Neither it nor what comes
  /// behind it in its last token is part of the text; its tokens are in the sequence. At most 64, in UTF-8.
  std::vector<std::string> stop = {};
  SamplerOptions sampler = {};
  int64_t top_logprobs = 0;                                    // entries of TokenLogprobs::top
  std::function<void(const TokenLogprobs&)> on_logprobs = {};  // for each token, before on_text; empty: no
};

struct Generation {
  std::vector<TokenId> tokens;  // generated ones only
  std::string text;
  int64_t prompt_tokens = 0;
  double prefill_s = 0, decode_s = 0;
  std::string stop_reason;  // "eos", "length", "context", "stop", "callback"
  std::string stop_text;    // which of GenerateOptions::stop it was

  double prefill_tok_s() const { return prefill_s > 0 ? static_cast<double>(prompt_tokens) / prefill_s : 0; }
  double decode_tok_s() const { return decode_s > 0 ? static_cast<double>(tokens.size()) / decode_s : 0; }
};

class Session;
/// One session's tokens in Session::prefill_together().
struct SessionTokens {
  Session* session = nullptr;
  std::span<const TokenId> tokens;
  /// Gets the likeliest tokens behind them, one after the other, the lowest id among equals; all but the last are read,
  /// too. The session gets no logits() then: on a GPU they stay there. As many for all sessions of a call.
  std::span<TokenId> next = {};
};

/// One sequence of tokens of a model. Cheap. One call at a time; sessions of one model may run on different threads:
/// they are computed together, each with the bits that it would have alone. Keeps what it needs of its model alive.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// A copy of the sequence; its memory is shared until one of the two goes on otherwise.
  Session fork() const;
  /// How long calls wait for pages that other sessions hold, before they say kOutOfMemory. 0, as it begins: not at all.
  void wait_for_pages(std::chrono::milliseconds most);

  /// From now on writes what this session computes to a file, for lowbit/trace.h: rows at every tap, and logits. The
  /// file appears with finish_trace(), or not at all; the calls that failed are not in it. Results have the same bits;
  /// forks do not trace. Errors: those of a file that cannot be written (kIo, kInvalidArgument); later ones are errors
  /// of the call whose rows they are.
  Status start_trace(const std::string& path);
  /// Errors: kInvalidArgument (there is no trace), kIo.
  Status finish_trace();

  /// Appends tokens to the sequence; the logits [vocab_size] after the last one, valid until the next call. Errors:
  /// kInvalidArgument (an id outside the vocabulary, no tokens, more than the context), kOutOfMemory (no page is left).
  Result<std::span<const float>> prefill(std::span<const TokenId> tokens);
  Result<std::span<const float>> decode(TokenId token) { return prefill({&token, 1}); }
  /// prefill() of several sessions of one model in one call, which read its weights together: tokens of generation,
  /// prompts, both. Each has the bits that it would have alone, and its logits(). Errors: those of prefill(), and
  /// kInvalidArgument (a session twice, of another model, or one that is traced); then all sessions are as they were,
  /// without logits. But for a `next` behind logits with a NaN (kInvalidArgument): all sessions have gone on.
  static Status prefill_together(std::span<const SessionTokens> parts);
  /// Logits of the last prefill() or decode(), also of the session that this one was forked from; empty before it, and
  /// after truncate() and generate(). Valid until the next call.
  std::span<const float> logits() const;

  /// Logits of every position: row i at out[i * vocab_size]. For evaluation. `first`: rows before
  /// it are not computed.
  Status logits_of_all(std::span<const TokenId> tokens, int64_t first, std::vector<float>& out);

  /// Writes the sequence to a file, safetensors: its tokens, logits, keys and values, and what they are of: the model,
  /// its activations, the KV format. `note`: text that load() gives back. The file appears whole or not at all. Errors:
  /// kIo, what a device says.
  Status save(const std::string& path, const std::string& note = {}) const;
  /// In place of this sequence the one that was saved: it goes on with the bits of one that never was. Returns the
  /// note. Errors: kNotFound, kIo, kCorrupt (no session, or not all of one), kUnsupported (of another version),
  /// kInvalidArgument (of another model, activation or KV format; longer than the context; while it is traced),
  /// kOutOfMemory. After an error this sequence is as it was.
  Result<std::string> load(const std::string& path);

  int64_t length() const;                   // tokens in the sequence
  std::span<const TokenId> tokens() const;  // those tokens; valid until the next call
  int64_t kv_bytes() const;                 // what its keys and values take, shared ones included
  int64_t context() const;                  // the most it may have
  /// Forgets tokens [length, ...): as if they had never been. Quantized keys and values keep what this needs for the
  /// last 256 tokens; beyond them the tokens before are computed again, and an error of that leaves the session empty.
  Status truncate(int64_t length);
  void clear() { (void)truncate(0); }

  /// Appends `prompt` and samples until a stop. `on_text` is called for each token, gets whole UTF-8 characters, none
  /// while a token completes none or what it completes may begin a stop text, and returns false to stop. It is called
  /// once more at the end where text was held out.
  Result<Generation> generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                              const std::function<bool(std::string_view)>& on_text = {});

 private:
  friend class Model;
  friend class SessionsTogether;
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A model, and a session of its own for those who need just one: prefill() to generate() are that session's, one call
/// at a time. All else may be called from several threads.
class Model {
 public:
  /// Errors: what the file's reader says; kUnsupported for an architecture lowbit lacks;
  /// kOutOfMemory.
  static Result<Model> open(const std::string& path, const ModelOptions& options);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  /// An empty sequence.
  Session session() const;

  const ModelInfo& info() const;
  const Tokenizer& tokenizer() const;
  /// The model's own template; null when it has none.
  const ChatTemplate* chat_template() const;
  /// A conversation as that template writes it, with its special tokens: encode it with {.add_special = false,
  /// .parse_special = true}. bos_token and eos_token need not be given. Errors: kUnsupported (no template), those of
  /// ChatTemplate::render.
  Result<std::string> chat_text(ChatInput input) const;

  /// Memory of GPUs that has been taken since the model was opened, by the driver's count and by whatever program:
  /// weights, pages, room for a batch, kernels. 0 without a GPU.
  int64_t device_bytes() const;

  /// Clears the profile and times every step from now on (true), or stops (false). Off by default. Not while a session
  /// runs.
  void set_profiling(bool on);
  /// Steps that were called while profiling, in the order of a pass.
  std::vector<StepProfile> profile() const;

  // Calls on the model's own session: see Session.
  Result<std::span<const float>> prefill(std::span<const TokenId> tokens);
  Result<std::span<const float>> decode(TokenId token) { return prefill({&token, 1}); }
  Status logits_of_all(std::span<const TokenId> tokens, int64_t first, std::vector<float>& out);
  int64_t length() const;
  int64_t kv_bytes() const;
  Status truncate(int64_t length);
  void clear() { (void)truncate(0); }
  Status start_trace(const std::string& path);
  Status finish_trace();
  Result<Generation> generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                              const std::function<bool(std::string_view)>& on_text = {});

 private:
  friend SharedModel& shared_model_of(Model& model);
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Tokenizer alone; weights and architecture do not matter. `path`: anything Model::open takes, a tokenizer.json, a
/// directory that holds one, or a GGUF file with a vocabulary alone.
Result<Tokenizer> open_tokenizer(const std::string& path);

}  // namespace lowbit
