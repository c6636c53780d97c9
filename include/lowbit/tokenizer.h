#pragma once
// Text to token ids and back.
//
//   tokenizer.json | GGUF fields  ->  TokenizerSpec (plain data)  ->  Tokenizer (immutable)
//
// Policy for text that is not UTF-8: nothing is replaced and nothing is lost. Each maximal run of
// invalid bytes is a word of its own; where every byte has a token (Tokenizer::covers_all_bytes) and
// nothing is normalized, decode(encode(x)) == x.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

using TokenId = std::int32_t;

/// The kind of a vocabulary entry; the numbers are those of `tokenizer.ggml.token_type`.
enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// A token that is searched for in the text before anything else happens to it.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;      // found only with EncodeOptions::parse_special; left out by decode
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // swallows white space after it
  bool normalized = false;   // searched for in the normalized text, not in the raw text
  bool single_word = false;  // found only between non-word characters
  bool operator==(const AddedToken&) const = default;
};

struct NormalizerStep {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kPrepend, kReplace, kStrip };
  Kind kind = Kind::kNfc;
  std::string pattern;             // kReplace: what to look for
  bool is_regex = false;           // kReplace
  std::string content;             // kReplace: the new text; kPrepend: what to put in front of a non-empty text
  bool left = true, right = true;  // kStrip
  bool operator==(const NormalizerStep&) const = default;
};

/// How a Split step treats the matches of its pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct PreTokenizerStep {
  enum class Kind { kSplit, kDigits, kPunctuation, kWhitespaceSplit, kWhitespace, kMetaspace, kByteLevel };
  enum class Prepend { kAlways, kFirst, kNever };
  Kind kind = Kind::kSplit;
  std::string pattern;                                // kSplit
  bool is_regex = true;                               // kSplit
  SplitBehavior behavior = SplitBehavior::kIsolated;  // kSplit, kPunctuation
  bool invert = false;                                // kSplit: the pattern describes the pieces, not the separators
  bool individual_digits = false;                     // kDigits
  bool add_prefix_space = false;                      // kByteLevel
  bool use_regex = true;                              // kByteLevel: GPT-2's word pattern first
  std::string replacement;                            // kMetaspace
  Prepend prepend = Prepend::kAlways;                 // kMetaspace
  bool split = true;                                  // kMetaspace
  bool operator==(const PreTokenizerStep&) const = default;
};

struct DecoderStep {
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  Kind kind = Kind::kByteLevel;
  std::string pattern;      // kReplace; kMetaspace: the replacement character
  std::string content;      // kReplace; kStrip: one character
  int start = 0, stop = 0;  // kStrip: how many at either end
  PreTokenizerStep::Prepend prepend = PreTokenizerStep::Prepend::kAlways;  // kMetaspace
  bool operator==(const DecoderStep&) const = default;
};

/// Everything that defines a tokenizer, as plain data. Only BPE: by merge rank (Hugging Face) or by
/// the score of the merged token (SentencePiece as GGUF stores it).
struct TokenizerSpec {
  enum class MergeRule { kRanks, kScores };
  MergeRule merge_rule = MergeRule::kRanks;
  std::vector<std::string> tokens;                          // by id, in the file's alphabet; "" = id not used
  std::vector<TokenType> types;                             // by id
  std::vector<float> scores;                                // by id; kScores only
  std::vector<std::pair<std::string, std::string>> merges;  // by rank; kRanks only
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  bool byte_fallback = false;  // a character without a token becomes <0xNN> tokens
  bool ignore_merges = false;  // a word that is a token is that token
  bool fuse_unk = false;
  std::optional<TokenId> bos_id, eos_id, unk_id, pad_id;
  bool add_bos = false, add_eos = false;
  std::string chat_template;          // Jinja source, may be empty
  std::vector<std::string> warnings;  // what was assumed because the file does not say it
  bool operator==(const TokenizerSpec&) const = default;
};

/// The `tokenizer.*` metadata of a GGUF file, filled by whoever read it. Absent keys stay empty.
struct GgufTokenizerFields {
  std::string model;         // tokenizer.ggml.model: "gpt2" or "llama"
  std::string pre;           // tokenizer.ggml.pre
  std::string architecture;  // general.architecture: where `pre` is empty it may name the pre-tokenizer
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> token_type;
  std::vector<std::string> merges;  // "left right"
  std::optional<std::int64_t> bos_token_id, eos_token_id, unknown_token_id, padding_token_id;
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix;
  std::string chat_template;  // tokenizer.chat_template
};

/// Reads Hugging Face's tokenizer.json, and beside it tokenizer_config.json ("" when there is none).
/// Errors: kCorrupt (not JSON, wrong types, merges or ids that do not fit the vocabulary), kUnsupported (not BPE, or a
/// normalizer,
///         pre-tokenizer, post-processor or decoder that lowbit lacks; it is named).
Result<TokenizerSpec> spec_from_tokenizer_json(std::string_view tokenizer_json,
                                               std::string_view tokenizer_config_json = {});

/// Without `pre` the pre-tokenizer of the architecture's models is taken where there is one, else llama.cpp's
/// "default"; either is a warning. Errors: kCorrupt, kUnsupported (a `model` or `pre` that lowbit lacks; it is named).
Result<TokenizerSpec> spec_from_gguf_fields(const GgufTokenizerFields& fields);

/// tokenizer.json that Hugging Face's `tokenizers` loads. Scores become merges, as transformers
/// converts them.
Result<std::string> to_tokenizer_json(const TokenizerSpec& spec);

/// tokenizer_config.json: special tokens, add_bos/add_eos, chat template.
Result<std::string> to_tokenizer_config_json(const TokenizerSpec& spec);

struct EncodeOptions {
  bool add_special = true;     // put bos/eos as the model wants them
  bool parse_special = false;  // text such as "<|im_end|>" becomes the token; keep false for text from users
};

struct DecodeOptions {
  bool skip_special = true;
};

/// Immutable; copies share their tables; every member may be called from many threads at once.
class Tokenizer {
 public:
  /// Errors: kCorrupt (the parts of the spec contradict each other), kUnsupported (a bad pattern, a
  /// mix of steps).
  static Result<Tokenizer> build(TokenizerSpec spec);

  /// Time: O(n log n) in the length of the longest word. Memory: about 50 bytes per byte of that
  /// word. Errors: kInvalidArgument (over 1 GiB, or the pattern gives up on this text).
  Result<std::vector<TokenId>> encode(std::string_view text, EncodeOptions options = {}) const;

  /// Number of tokens of encode(text, options).
  Result<std::size_t> token_count(std::string_view text, EncodeOptions options = {}) const;

  /// The bytes that the ids stand for: not necessarily UTF-8 (see StreamDecoder).
  /// Errors: kInvalidArgument (an id outside the vocabulary).
  Result<std::string> decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  /// The bytes that one id adds to a text; "" for an id outside the vocabulary.
  std::string_view piece(TokenId id) const;
  /// The id of a vocabulary entry, written as in the file ("Ġthe", "<|im_end|>").
  std::optional<TokenId> find(std::string_view token) const;
  bool is_special(TokenId id) const;
  /// eos and every other token that ends an answer, such as <|im_end|> or <|eot_id|>; ascending.
  const std::vector<TokenId>& eos_ids() const;
  bool is_eos(TokenId id) const;
  std::size_t vocab_size() const;
  /// Whether every byte has a token of its own, so that no text is lost. Some published byte-level
  /// vocabularies lack a few (SmolLM2: 21, six control characters and bytes that UTF-8 hardly ever
  /// or never has); those bytes are dropped, as Hugging Face and llama.cpp do.
  bool covers_all_bytes() const;
  const TokenizerSpec& spec() const;

  struct Impl;  // src/text only

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// Turns ids into text as they come. What push returns is always whole UTF-8 characters; bytes that
/// can never become one are given as U+FFFD. One object per stream.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, DecodeOptions options = {});
  /// Errors: kInvalidArgument (an id outside the vocabulary).
  Result<std::string> push(TokenId id);
  /// The end: an unfinished character is given as U+FFFD, and the decoder starts anew.
  std::string flush();

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string pending_;
  int strip_left_ = 0;  // leading spaces still to be dropped
};

}  // namespace lowbit
