#pragma once
// GPT-2's alphabet: every byte as one printable character, so that vocabularies are readable text.

#include <optional>
#include <string>
#include <string_view>

namespace lowbit::text {

/// The character that stands for a byte, as UTF-8 ("!" for 0x21, "Ġ" for 0x20).
const std::string& byte_to_alphabet(unsigned char byte);

/// The bytes that a token of a byte-level vocabulary stands for; empty if it has a character outside the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view token);

/// "<0x0A>" -> 0x0A. Exactly this form, two hex digits; anything else ("<0x-1>", "<0xA>") is no byte token.
std::optional<unsigned char> parse_byte_token(std::string_view token);

/// 0x0A -> "<0x0A>".
std::string byte_token(unsigned char byte);

}  // namespace lowbit::text
