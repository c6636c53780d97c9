#include "text/tokenizer_json_parts.h"

#include <fmt/format.h>

#include "base/try.h"

namespace lowbit::text {
namespace {

constexpr std::size_t kEntryBytes = 64, kMergeEntryBytes = 96;  // of a list that grows
constexpr std::size_t kInlineText = 15;                         // what a std::string holds without memory of its own

std::size_t heap_bytes(std::size_t text) { return text > kInlineText ? text + 16 : 0; }

class PartsReader final : public JsonTree {
 public:
  PartsReader(std::string_view where, int max_depth, Budget& budget) : JsonTree(where, max_depth, budget) {}

  TokenizerParts parts;

  bool null() override { return scalar("null") && (in_ != In::kTree || JsonTree::null()); }
  bool boolean(bool b) override { return scalar("boolean") && (in_ != In::kTree || JsonTree::boolean(b)); }
  bool number_integer(number_integer_t i) override {
    return scalar("negative number") && (in_ != In::kTree || JsonTree::number_integer(i));
  }
  bool number_float(number_float_t d, const string_t& s) override {
    return scalar("fraction") && (in_ != In::kTree || JsonTree::number_float(d, s));
  }
  bool number_unsigned(number_unsigned_t u) override {
    if (in_ != In::kVocab) return scalar("number") && JsonTree::number_unsigned(u);
    if (!spend(kEntryBytes + heap_bytes(token_.size()))) return false;
    parts.vocab.emplace_back(std::move(token_), u);
    return true;
  }
  bool string(string_t& s) override {
    if (in_ == In::kMerges) return split_merge(s);
    if (in_ == In::kPair) return put_half(s);
    return scalar("string") && JsonTree::string(s);
  }
  bool start_object(std::size_t n) override {
    if (in_ != In::kTree) return wrong("object");
    if (part_ == Part::kVocab) return enter(In::kVocab, parts.has_vocab);
    part_ = Part::kNone;
    if (depth() == 1 && next_is_model_) in_model_ = true;
    return JsonTree::start_object(n);
  }
  bool key(string_t& k) override {
    if (in_ == In::kVocab) {
      token_ = std::move(k);
      return true;
    }
    if (depth() == 1) next_is_model_ = k == "model";
    part_ = Part::kNone;
    if (depth() == 2 && in_model_ && k == "vocab") part_ = Part::kVocab;
    if (depth() == 2 && in_model_ && k == "merges") part_ = Part::kMerges;
    return JsonTree::key(k);
  }
  bool end_object() override {
    if (in_ == In::kVocab) return leave();
    if (depth() == 2) in_model_ = false;
    return JsonTree::end_object();
  }
  bool start_array(std::size_t n) override {
    if (in_ == In::kMerges) {
      in_ = In::kPair;
      halves_ = 0;
      if (!spend(kMergeEntryBytes)) return false;
      parts.merges.emplace_back();
      return true;
    }
    if (in_ != In::kTree) return wrong("array");
    if (part_ == Part::kMerges) return enter(In::kMerges, parts.has_merges);
    part_ = Part::kNone;
    return JsonTree::start_array(n);
  }
  bool end_array() override {
    if (in_ == In::kMerges) return leave();
    if (in_ != In::kPair) return JsonTree::end_array();
    if (halves_ != 2) return wrong("array");
    in_ = In::kMerges;
    return true;
  }

 private:
  enum class In { kTree, kVocab, kMerges, kPair };
  enum class Part { kNone, kVocab, kMerges };

  bool wrong(const char* got) {
    const bool vocab = in_ == In::kVocab;
    return stop({ErrorCode::kCorrupt,
                 vocab ? fmt::format("{} id of {:.60}", where_, token_)
                       : fmt::format("{} merge {}", where_, parts.merges.size() - (in_ == In::kPair ? 1 : 0)),
                 got,
                 vocab ? "a number, 0 or more" : "a pair of strings: \"left right\" or [\"left\", \"right\"]",
                 {}});
  }
  bool scalar(const char* got) {
    if (in_ != In::kTree) return wrong(got);
    part_ = Part::kNone;
    return true;
  }
  bool enter(In in, bool& seen) {
    part_ = Part::kNone;
    if (seen)
      return stop({ErrorCode::kCorrupt,
                   std::string(where_),
                   in == In::kVocab ? "two vocabularies" : "two lists of merges",
                   "one",
                   {}});
    seen = true;
    in_ = in;
    return JsonTree::null();  // holds the place in the tree
  }
  bool leave() {
    in_ = In::kTree;
    return true;
  }
  // "left right" in older files, ["left", "right"] in newer ones.
  bool split_merge(const std::string& text) {
    const std::size_t space = text.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos)
      return wrong(fmt::format("{:.60}", text).c_str());
    if (!spend(kMergeEntryBytes + heap_bytes(space) + heap_bytes(text.size() - space))) return false;
    parts.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool put_half(std::string& text) {
    if (halves_ == 2) return wrong("three strings");
    if (!spend(heap_bytes(text.size()))) return false;
    auto& [left, right] = parts.merges.back();
    (halves_++ == 0 ? left : right) = text;
    return true;
  }

  In in_ = In::kTree;
  Part part_ = Part::kNone;  // what the last key announced
  bool next_is_model_ = false, in_model_ = false;
  int halves_ = 0;
  std::string token_;
};

}  // namespace

Result<TokenizerParts> parse_tokenizer_json(std::string_view text, std::string_view where, int max_depth,
                                            Budget& budget) {
  PartsReader reader(where, max_depth, budget);
  LOWBIT_TRY(reader.parse(text));
  reader.parts.rest = std::move(reader.root);
  return std::move(reader.parts);
}

}  // namespace lowbit::text
