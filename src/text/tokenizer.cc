#include "lowbit/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "text/encoder.h"
#include "text/tokenizer_impl.h"

namespace lowbit {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;  // positions are 31 bits in the merge loop

}  // namespace

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > kMaxTextBytes)
    return fail(ErrorCode::kInvalidArgument, "tokenizer encode", fmt::format("a text of {} bytes", text.size()),
                fmt::format("at most {}", kMaxTextBytes), "encode it in parts");
  const TokenizerSpec& s = impl_->spec;
  std::vector<TokenId> out;
  if (options.add_special && s.add_bos && s.bos_id) out.push_back(*s.bos_id);
  text::Encoder encoder(*impl_, text.size());
  LOWBIT_TRY(encoder.encode(text, options.parse_special, out));
  if (options.add_special && s.add_eos && s.eos_id) out.push_back(*s.eos_id);
  return out;
}

Result<std::size_t> Tokenizer::token_count(std::string_view text, EncodeOptions options) const {
  LOWBIT_TRY_ASSIGN(const std::vector<TokenId> ids, encode(text, options));
  return ids.size();
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::size_t bytes = 0;
  const auto is_left_out = [&](TokenId id) { return options.skip_special && impl_->special[id]; };
  for (const TokenId id : ids) {
    if (!impl_->valid_id(id))
      return fail(ErrorCode::kInvalidArgument, "tokenizer decode", fmt::format("token id {}", id),
                  fmt::format("0 to {}", static_cast<std::int64_t>(vocab_size()) - 1),
                  "were the ids made with another model's tokenizer?");
    bytes += is_left_out(id) ? 0 : impl_->pieces[id].size();
    if (bytes > kMaxTextBytes)
      return fail(ErrorCode::kInvalidArgument, "tokenizer decode", "ids for a longer text",
                  fmt::format("at most {} bytes", kMaxTextBytes), "decode them in parts");
  }
  std::string out;
  out.reserve(bytes);
  for (const TokenId id : ids)
    if (!is_left_out(id)) out += impl_->pieces[id];
  std::size_t left = 0;
  while (left < out.size() && left < static_cast<std::size_t>(impl_->strip_left) && out[left] == ' ') ++left;
  out.erase(0, left);
  for (int i = 0; i < impl_->strip_right && out.ends_with(' '); ++i) out.pop_back();
  return out;
}

std::string_view Tokenizer::piece(TokenId id) const {
  return impl_->valid_id(id) ? std::string_view(impl_->pieces[id]) : std::string_view();
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto it = impl_->ids.find(token);
  return it == impl_->ids.end() ? std::nullopt : std::optional<TokenId>(it->second);
}

bool Tokenizer::is_special(TokenId id) const { return impl_->valid_id(id) && impl_->special[id]; }

const std::vector<TokenId>& Tokenizer::eos_ids() const { return impl_->eos_ids; }

bool Tokenizer::is_eos(TokenId id) const {
  for (const TokenId eos : impl_->eos_ids)
    if (eos == id) return true;
  return false;
}

std::size_t Tokenizer::vocab_size() const { return impl_->pieces.size(); }

bool Tokenizer::covers_all_bytes() const {
  return std::find(impl_->byte_ids.begin(), impl_->byte_ids.end(), -1) == impl_->byte_ids.end();
}

const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }

}  // namespace lowbit
