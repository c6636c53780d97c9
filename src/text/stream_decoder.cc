#include <fmt/format.h>

#include <utility>

#include "lowbit/tokenizer.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace lowbit {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

StreamDecoder::StreamDecoder(Tokenizer tokenizer, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options), strip_left_(tokenizer_.impl_->strip_left) {}

Result<std::string> StreamDecoder::push(TokenId id) {
  const Tokenizer::Impl& t = *tokenizer_.impl_;
  if (!t.valid_id(id))
    return fail(ErrorCode::kInvalidArgument, "stream decoder", fmt::format("token id {}", id),
                fmt::format("0 to {}", static_cast<std::int64_t>(t.pieces.size()) - 1));
  if (options_.skip_special && t.special[id]) return std::string();
  std::string_view piece = t.pieces[id];
  while (strip_left_ > 0 && piece.starts_with(' ')) {
    piece.remove_prefix(1);
    --strip_left_;
  }
  if (!piece.empty()) strip_left_ = 0;
  pending_ += piece;

  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (const std::size_t n = text::valid_prefix(rest); n > 0) {
      out += rest.substr(0, n);
      at += n;
    } else if (text::is_unfinished(rest)) {
      break;
    } else {
      out += kReplacement;
      ++at;
    }
  }
  pending_.erase(0, at);
  return out;
}

std::string StreamDecoder::flush() {
  const bool unfinished = !std::exchange(pending_, {}).empty();
  strip_left_ = tokenizer_.impl_->strip_left;
  return unfinished ? kReplacement : std::string();
}

}  // namespace lowbit
