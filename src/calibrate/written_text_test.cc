#include "calibrate/written_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "calibrate/talking_source.h"

namespace lowbit {
namespace {

constexpr int64_t kTextContext = 24;

Tokenizer tokenizer_with(const std::string& chat_template) {
  auto tokenizer = Tokenizer::build(characters(chat_template));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message();
  return *tokenizer;
}

constexpr char kTemplate[] = "{{ bos_token }}{% for m in messages %}<user>{{ m.content }}{% endfor %}";

Beginnings beginnings(const std::string& chat_template) {
  const auto made = beginnings_of(tokenizer_with(chat_template), 96);
  EXPECT_TRUE(made) << made.error().message();
  return *made;
}

TEST(WrittenText, ATemplateMakesChatsOfRequests) {
  const Beginnings with = beginnings(kTemplate), without = beginnings("");
  EXPECT_EQ(with.chat, (std::vector<TokenId>{0, 1}));
  EXPECT_TRUE(without.chat.empty());
  EXPECT_EQ(with.first, std::vector<TokenId>{0});
  ASSERT_EQ(with.openings.size(), without.openings.size());
  EXPECT_GT(with.openings.size(), 150u);
  const auto requests = std::ranges::count_if(with.openings, [](const auto& o) { return o[1] == 1; });
  EXPECT_GT(requests, 30);
  EXPECT_LT(requests, static_cast<int64_t>(with.openings.size()) / 2);
  for (const Beginnings& b : {with, without})
    for (const auto& opening : b.openings) {
      EXPECT_EQ(opening[0], 0);              // BOS comes first, in the template as well
      EXPECT_NE(opening[1], 2 + '>' - '!');  // what marks a request is no part of it
      EXPECT_GT(opening.size(), 2u);
    }
}

TEST(WrittenText, ATemplateThatHidesTheUserMakesNone) {
  EXPECT_TRUE(beginnings("{{ bos_token }}no words of yours").chat.empty());
  EXPECT_TRUE(beginnings("{{ raise_exception('never') }}").chat.empty());
  EXPECT_TRUE(beginnings("{% for %}").chat.empty());
}

TEST(WrittenText, BeginningsComeInTheirShares) {
  const Beginnings from = beginnings(kTemplate);
  const auto drawn = draw_beginnings(from, 70, kTextContext, 5);
  ASSERT_EQ(drawn.size(), 70u);
  const auto count = [&](const auto& is) { return std::ranges::count_if(drawn, is); };
  EXPECT_EQ(count([&](const auto& t) { return t == from.first; }), 10);
  EXPECT_GE(count([&](const auto& t) { return t == from.chat; }), 20);  // any token may be that of a turn, too
  EXPECT_EQ(count([&](const auto& t) { return t.size() > 2; }), 30);
  for (const auto& tokens : drawn) EXPECT_LT(static_cast<int64_t>(tokens.size()), kTextContext);
  EXPECT_EQ(drawn, draw_beginnings(from, 70, kTextContext, 5));
  EXPECT_NE(drawn, draw_beginnings(from, 70, kTextContext, 6));
  const auto plain = draw_beginnings(beginnings(""), 50, kTextContext, 5);  // 1, 3 and 1 of what is left
  EXPECT_EQ(std::ranges::count_if(plain, [](const auto& t) { return t.size() > 2; }), 30);
}

Result<std::vector<TokenId>> written(int threads, WritingOptions options) {
  const TalkingSource source(make_random_model({}));
  Compute compute;
  compute.threads = threads;
  const auto engine = Engine::make(compute);
  EXPECT_TRUE(engine) << engine.error().message();
  options.context = kTextContext;
  return write_text(source, *engine, options);
}

TEST(WrittenText, TheSameForAnyThreadCount) {
  WritingOptions options;
  options.tokens = 70 * kTextContext + 7;  // more sequences than run together
  const auto one = written(1, options), three = written(3, options);
  ASSERT_TRUE(one) << one.error().message();
  EXPECT_EQ(*one, *three);
  EXPECT_EQ(one->size(), 70u * kTextContext);
  for (const TokenId id : *one) EXPECT_TRUE(id >= 0 && id < 97);
  EXPECT_GT(std::set<TokenId>(one->begin(), one->end()).size(), 30u);  // it is drawn, not the likeliest
  options.seed = 1;
  EXPECT_NE(*one, *written(1, options));
}

TEST(WrittenText, StopsWhenAskedTo) {
  WritingOptions options;
  options.tokens = 4 * kTextContext;
  int64_t calls = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_LE(done, total);
    return ++calls < 5;
  };
  const auto stopped = written(1, options);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 5);
  options.progress = nullptr;
  options.tokens = kTextContext - 1;
  EXPECT_EQ(written(1, options).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lowbit
