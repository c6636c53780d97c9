#include "text/utf8.h"

#include <gtest/gtest.h>

#include "text/byte_alphabet.h"

namespace lowbit::text {
namespace {

TEST(Utf8, EveryCodePointRoundTripsAndNothingElseDecodes) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string s;
    append_utf8(s, c);
    const CodePoint back = decode_utf8(s, 0);
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.length, static_cast<int>(s.size()));
    s.pop_back();
    if (!s.empty()) {
      ASSERT_TRUE(is_unfinished(s)) << static_cast<unsigned>(c);
    }
  }
  for (const char* bad : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFE", "\xFF"}) {
    EXPECT_EQ(decode_utf8(bad, 0).length, 0) << bad;
    EXPECT_FALSE(is_unfinished(bad));
  }
}

TEST(Utf8, LastCharacterIsAWholeOneOrOneByte) {
  for (const auto& [text, at] :
       {std::pair{"a", 0u}, std::pair{"ab", 1u}, std::pair{"a\u00e9", 1u}, std::pair{"\u6771", 0u},
        std::pair{"a\U0001f999", 1u}, std::pair{"a\x80", 1u}, std::pair{"\u00e9\x80", 2u},
        std::pair{"a\xf0\x9f\xa6", 3u}, std::pair{"\x80\x80\x80\x80\x80", 4u}})
    EXPECT_EQ(last_character(text), at) << text;
}

TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(byte_to_alphabet(' '), "Ġ");
  EXPECT_EQ(byte_to_alphabet('\n'), "Ċ");
  EXPECT_EQ(byte_to_alphabet('!'), "!");
  EXPECT_EQ(byte_to_alphabet(0xAD), "Ń");
  EXPECT_EQ(alphabet_to_bytes("Ġthe"), " the");
  EXPECT_FALSE(alphabet_to_bytes("a b"));
  EXPECT_FALSE(alphabet_to_bytes("▁"));
}

TEST(ByteAlphabet, ByteTokensHaveOneFormOnly) {
  EXPECT_EQ(parse_byte_token("<0x0A>"), 0x0A);
  EXPECT_EQ(parse_byte_token("<0xff>"), 0xFF);
  for (const char* bad : {"<0x-1>", "<0xA>", "<0x100>", "<0x+1>", "<0x G>", "0x0A", "<0x0A", "<0X0A>", ""})
    EXPECT_FALSE(parse_byte_token(bad)) << bad;
}

}  // namespace
}  // namespace lowbit::text
