#include <gtest/gtest.h>

#include "lowbit/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/test_data.h"

namespace lowbit {
namespace {

// A vocabulary of single bytes: the hardest case for a stream, every character comes in parts.
Tokenizer bytes_only() {
  GgufTokenizerFields f;
  f.model = "gpt2";
  f.pre = "gpt-2";
  for (int b = 0; b < 256; ++b) f.tokens.push_back(text::byte_to_alphabet(static_cast<unsigned char>(b)));
  return test::must(Tokenizer::build(test::must(spec_from_gguf_fields(f))));
}

std::vector<std::string> stream(const Tokenizer& t, std::string_view bytes) {
  StreamDecoder decoder(t);
  std::vector<std::string> parts;
  for (const TokenId id : test::must(t.encode(bytes))) parts.push_back(test::must(decoder.push(id)));
  parts.push_back(decoder.flush());
  return parts;
}

using Parts = std::vector<std::string>;
const std::string kBad = "\xEF\xBF\xBD";

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const Tokenizer t = bytes_only();
  EXPECT_EQ(stream(t, "aé"), (Parts{"a", "", "é", ""}));
  EXPECT_EQ(stream(t, "🦙"), (Parts{"", "", "", "🦙", ""}));
}

TEST(StreamDecoder, GivesBrokenBytesAsReplacements) {
  const Tokenizer t = bytes_only();
  EXPECT_EQ(stream(t, "\xFFz"), (Parts{kBad, "z", ""}));
  EXPECT_EQ(stream(t, "\xE2\x96"), (Parts{"", "", kBad}));
  EXPECT_EQ(stream(t, "\xE2\x96z"), (Parts{"", "", kBad + kBad + "z", ""}));
  EXPECT_EQ(stream(t, "\xF0\x9F\xF0\x9F\xA6\x99"), (Parts{"", "", kBad + kBad, "", "", "🦙", ""}));
  EXPECT_EQ(stream(t, "\xED\xA0\x80"), (Parts{"", kBad + kBad, kBad, ""}));  // a surrogate
}

TEST(StreamDecoder, FlushStartsAnew) {
  const Tokenizer t = bytes_only();
  StreamDecoder decoder(t);
  EXPECT_EQ(test::must(decoder.push(0xE2)), "");
  EXPECT_EQ(decoder.flush(), kBad);
  EXPECT_EQ(decoder.flush(), "");
  EXPECT_EQ(test::must(decoder.push('a')), "a");
  EXPECT_FALSE(decoder.push(256));
  EXPECT_FALSE(decoder.push(-1));
}

}  // namespace
}  // namespace lowbit
