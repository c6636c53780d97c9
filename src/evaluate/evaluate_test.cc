// Sequences in a batch give the same bits as each sequence alone.
#include "evaluate/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "base/cpu.h"
#include "base/rng.h"
#include "model/random_model.h"
#include "ops/log_softmax.h"

namespace lowbit {
namespace {

constexpr int64_t kContext = 256;

/// A token for each character, and one that begins a text.
Tokenizer character_tokenizer(bool add_bos) {
  TokenizerSpec spec;
  spec.tokens.emplace_back("<s>");
  for (char c = ' '; c < 127; ++c) spec.tokens.emplace_back(1, c);
  spec.tokens.emplace_back("\n");
  spec.types.assign(spec.tokens.size(), TokenType::kNormal);
  spec.types[0] = TokenType::kControl;
  spec.bos_id = 0;
  spec.add_bos = add_bos;
  auto tokenizer = Tokenizer::build(std::move(spec));
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message());
  return *tokenizer;
}

struct TestModel {
  FormatId format = FormatId::kInt4;
  Activation activation = Activation::kInt8;
  int64_t batch = 512, pages = 1000;
  bool add_bos = true;
};

std::unique_ptr<SharedModel> open(const TestModel& m) {
  RandomModelSpec spec;
  spec.format = m.format;
  spec.max_positions = kContext;
  LoadOptions options;
  options.x.activation = m.activation;
  options.x.group = 32;
  options.isa = best_isa();
  options.threads = 3;
  options.batch = m.batch;
  auto transformer = Transformer::load(make_random_model(spec), options);
  EXPECT_TRUE(transformer.has_value());
  auto pages = KvPool::make((*transformer)->kv_groups(), m.pages);
  auto model = std::make_unique<SharedModel>(std::move(*transformer), *pages, character_tokenizer(m.add_bos));
  model->info.context = kContext;
  model->info.vocab_size = spec.vocab;
  model->info.weight_bytes = model->transformer->resident_bytes();
  return model;
}

std::string random_text(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::string text(static_cast<size_t>(n), ' ');
  for (char& c : text) c = static_cast<char>(' ' + rng.below(95));
  return text;
}

/// Logits [tokens, vocab] of one sequence that runs alone, from its beginning.
std::vector<float> alone(SharedModel& model, std::span<const TokenId> tokens) {
  std::vector<float> logits(tokens.size() * static_cast<size_t>(model.info.vocab_size));
  auto cache = model.transformer->make_cache();
  const auto n = static_cast<int64_t>(tokens.size());
  EXPECT_TRUE(model.transformer->forward(tokens, *cache, LogitsWanted::range(0, n), logits));
  return logits;
}
std::span<float> row_of(std::vector<float>& logits, int64_t row, int64_t vocab) {
  return {logits.data() + row * vocab, static_cast<size_t>(vocab)};
}

/// The sequences of a text, each begun as the model wants it.
std::vector<std::vector<TokenId>> sequences_of(const SharedModel& model, const std::string& text, int64_t context,
                                               bool add_bos) {
  const auto tokens = *model.tokenizer.encode(text, {.add_special = add_bos, .parse_special = false});
  std::vector<std::vector<TokenId>> sequences;
  for (size_t at = 0; at + static_cast<size_t>(context) <= tokens.size(); at += static_cast<size_t>(context)) {
    sequences.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                           tokens.begin() + static_cast<std::ptrdiff_t>(at) + context);
    if (add_bos) sequences.back()[0] = 0;
  }
  return sequences;
}

TEST(Perplexity, SequencesTogetherAreSequencesAlone) {
  const std::string text = random_text(700, 1);
  for (const bool add_bos : {true, false})
    for (const int64_t context : {7, 24, 100})
      for (const int64_t pages : {1000, 2}) {  // 2: there is room for one sequence
        const auto model = open({.pages = pages, .add_bos = add_bos});
        const int64_t vocab = model->info.vocab_size;
        double sum = 0;
        int64_t count = 0;
        std::vector<double> running;
        for (const auto& sequence : sequences_of(*model, text, context, add_bos)) {
          std::vector<float> logits = alone(*model, sequence);
          for (int64_t i = context / 2; i + 1 < context; ++i, ++count) {
            const auto row = row_of(logits, i, vocab);
            sum += -log_softmax(row).of(row[static_cast<size_t>(sequence[static_cast<size_t>(i + 1)])]);
          }
          running.push_back(std::exp(sum / static_cast<double>(count)));
        }
        std::vector<double> told;
        PerplexityOptions options;
        options.context = context;
        options.on_chunk = [&](int64_t chunk, double ppl) {
          told.push_back(ppl);
          EXPECT_EQ(chunk, static_cast<int64_t>(told.size()));
        };
        const auto report = perplexity(*model, text, options);
        ASSERT_TRUE(report.has_value()) << report.error().message();
        EXPECT_EQ(report->ppl, running.back()) << context;
        EXPECT_EQ(report->tokens, count);
        EXPECT_EQ(told, running);
        EXPECT_EQ(model->pages->pages_in_use(), 0);
      }
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Perplexity, SavedLogitsAndWhatIsComparedWithThemAreThoseOfSequencesAlone) {
  const std::string text = random_text(500, 2);
  const auto together = open({}), one = open({.batch = 16});
  PerplexityOptions options;
  options.context = 20;
  EXPECT_EQ(sequences_together(*together, options.context, together->transformer->batch()), 12);  // of 256 rows
  EXPECT_EQ(sequences_together(*one, options.context, one->transformer->batch()), 1);
  const std::string paths[] = {testing::TempDir() + "together.logits", testing::TempDir() + "one.logits"};
  options.save_logits = paths[0];
  ASSERT_TRUE(perplexity(*together, text, options));
  options.save_logits = paths[1];
  ASSERT_TRUE(perplexity(*one, text, options));
  EXPECT_EQ(file_text(paths[0]), file_text(paths[1]));
  options.save_logits.clear();
  options.against = paths[0];
  const auto other = open({.format = FormatId::kF32, .activation = Activation::kF32}),
             other_one = open({.format = FormatId::kF32, .activation = Activation::kF32, .batch = 16});
  const auto a = perplexity(*other, text, options), b = perplexity(*other_one, text, options);
  ASSERT_TRUE(a && b);
  EXPECT_GT(a->kld_mean, 0);
  EXPECT_EQ(a->kld_mean, b->kld_mean);
  EXPECT_EQ(a->kld_p90, b->kld_p90);
  EXPECT_EQ(a->delta_p_rms, b->delta_p_rms);
}

TEST(CompareModels, SequencesTogetherAreSequencesAlone) {
  const std::string text = random_text(900, 3);
  const auto model = open({}), base = open({.format = FormatId::kF32, .activation = Activation::kF32});
  const int64_t vocab = model->info.vocab_size;
  for (const int64_t context : {9, 30, 150}) {  // seven together, two, one in slices
    struct Found {
      double kld;
      int64_t position;
    };
    std::vector<Found> found;
    double kld = 0, nll = 0;
    int64_t positions = 0, scored = 0;
    for (const auto& sequence : sequences_of(*model, text, context, true)) {
      std::vector<float> own = alone(*model, sequence), other = alone(*base, sequence);
      for (int64_t i = 0; i < context; ++i, ++positions) {
        const auto p = row_of(other, i, vocab), q = row_of(own, i, vocab);
        log_softmax(p).apply(p);
        log_softmax(q).apply(q);
        const double d = kl_divergence(p, q);
        kld += d;
        if (i + 1 == context) continue;
        found.push_back({d, i});
        nll -= static_cast<double>(q[static_cast<size_t>(sequence[static_cast<size_t>(i + 1)])]);
        ++scored;
      }
    }
    CompareOptions options;
    options.context = context;
    options.sequences = 1000;
    const auto report = compare_models(*model, *base, text, options);
    ASSERT_TRUE(report.has_value()) << report.error().message();
    EXPECT_EQ(report->tokens, positions);
    EXPECT_EQ(report->kld_mean, kld / static_cast<double>(positions)) << context;
    EXPECT_EQ(report->ppl, std::exp(nll / static_cast<double>(scored)));
    std::ranges::stable_sort(found, [](const Found& a, const Found& b) { return a.kld > b.kld; });
    ASSERT_EQ(report->examples.size(), 8u);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(report->examples[i].kld, found[i].kld);
      EXPECT_EQ(report->examples[i].position, found[i].position);
      EXPECT_EQ(report->examples[i].base.size(), 3u);
    }
  }
}

/// One choice on its own, in one pass.
ChoiceScore scored_alone(SharedModel& model, const Choice& choice) {
  auto all = *model.tokenizer.encode(choice.context + choice.continuation, {});
  auto context = *model.tokenizer.encode(choice.context, {});
  if (context.empty()) {
    all.insert(all.begin(), 0);
    context = {0};
  }
  const int64_t given = std::min<int64_t>(std::ssize(context), std::ssize(all) - 1);
  std::vector<float> logits = alone(model, std::span(all).first(all.size() - 1));
  ChoiceScore score{0, true};
  for (int64_t i = given; i < std::ssize(all); ++i) {
    const auto row = row_of(logits, i - 1, model.info.vocab_size);
    const LogSoftmax soft = log_softmax(row);
    score.log_probability += soft.of(row[static_cast<size_t>(all[static_cast<size_t>(i)])]);
    score.likeliest &= soft.top == all[static_cast<size_t>(i)];
  }
  return score;
}

/// Choices of one context, contexts of one continuation, contexts that stay, whole texts, a last token alone.
std::vector<ChoiceQuestion> random_questions(int count, uint64_t seed) {
  Rng rng(seed);
  const auto some = [&](int64_t most) {
    return random_text(1 + static_cast<int64_t>(rng.below(uint64_t(most))), rng.next());
  };
  std::vector<ChoiceQuestion> questions;
  std::string examples = some(120), context = some(60);
  for (int i = 0; i < count; ++i) {
    ChoiceQuestion question;
    const auto kind = rng.below(6);
    if (rng.below(8) == 0) examples = some(120);
    if (rng.below(2) == 0) context = some(60);
    const std::string continuation = some(12);
    for (uint64_t c = 0, n = 1 + rng.below(5); c < n; ++c) {
      if (kind == 0) question.choices.push_back({"", some(30)});
      if (kind == 1) question.choices.push_back({context + some(3), continuation});
      if (kind == 2) question.choices.push_back({context, continuation.substr(0, c + 1)});
      if (kind == 3) question.choices.push_back({examples + context, some(12)});
      if (kind >= 4) question.choices.push_back({context, some(12)});
    }
    questions.push_back(std::move(question));
  }
  return questions;
}

TEST(MultipleChoice, ScoresTogetherAreScoresAlone) {
  for (const bool add_bos : {true, false})
    for (const int64_t pages : {1000, 12, 4})  // 4: a sequence at a time
      for (const int64_t batch : {512, 16}) {
        const auto model = open({.batch = batch, .pages = pages, .add_bos = add_bos});
        model->info.weight_bytes = 100 << 20;  // else its pages are large for it
        const auto questions = random_questions(60, uint64_t(pages + batch));
        const auto scores = score_choices(*model, questions, {});
        ASSERT_TRUE(scores.has_value()) << scores.error().message();
        size_t at = 0;
        for (const ChoiceQuestion& question : questions)
          for (const Choice& choice : question.choices) {
            const ChoiceScore want = scored_alone(*model, choice);
            ASSERT_LT(at, scores->size());
            EXPECT_EQ((*scores)[at].log_probability, want.log_probability) << choice.context << choice.continuation;
            EXPECT_EQ((*scores)[at].likeliest, want.likeliest);
            ++at;
          }
        EXPECT_EQ(at, scores->size());
        EXPECT_EQ(model->pages->pages_in_use(), 0);
      }
}

/// Rows that passed the first block, while questions were answered.
int64_t rows_run(SharedModel& model, const std::vector<ChoiceQuestion>& questions, int64_t& passes) {
  Profile profile;
  model.transformer->set_profile(&profile);
  EXPECT_TRUE(score_choices(model, questions, {}));
  model.transformer->set_profile(nullptr);
  const StepTime down = profile.at(ModelStep::kDown);
  const WeightInfo info = model.transformer->linears()[6];
  const int64_t layers = model.transformer->spec().block_count();
  passes = down.calls / layers;
  return static_cast<int64_t>(down.operations) / (2 * layers * info.n * info.k);
}

TEST(MultipleChoice, AContextThatStaysIsRunOnceAndQuestionsRunTogether) {
  const auto model = open({});
  model->info.weight_bytes = 100 << 20;
  const std::string context = random_text(40, 5);  // 41 tokens
  std::vector<ChoiceQuestion> questions(2);
  for (int c = 0; c < 4; ++c) {
    questions[0].choices.push_back({context, "a" + random_text(c, 7 + uint64_t(c))});
    questions[1].choices.push_back({random_text(30, 9), std::string(size_t(c + 1), char('b' + c))});
  }
  int64_t passes = 0;
  // Each context once, and of each continuation all but its last token.
  EXPECT_EQ(rows_run(*model, questions, passes), 41 + (0 + 1 + 2 + 3) + 31 + (0 + 1 + 2 + 3));
  EXPECT_EQ(passes, 2);
  // A long context with more questions than run together: after the first group its last token alone runs again.
  const std::string examples = random_text(200, 5);
  questions.assign(40, {});
  for (size_t q = 0; q < questions.size(); ++q)
    for (int c = 0; c < 2; ++c) questions[q].choices.push_back({examples, random_text(9, 2 * q + uint64_t(c))});
  const int64_t rows = rows_run(*model, questions, passes);
  EXPECT_GE(rows, 201 + 80 * 8);
  EXPECT_LE(rows, 201 + 80 * 8 + 20 * passes);
  EXPECT_GE(passes, 4);
  EXPECT_LE(passes, 20);
}

TEST(MultipleChoice, AQuestionLongerThanTheContextIsRefusedAndTheModelStaysUsable) {
  const auto model = open({});
  auto questions = random_questions(3, 1);
  const std::string text = random_text(kContext + 1, 3);
  questions.push_back({{{text, "a"}, {"b", "c"}}, 0});
  const auto got = score_choices(*model, questions, {});
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(model->pages->pages_in_use(), 0);
  questions.pop_back();
  EXPECT_TRUE(score_choices(*model, questions, {}));
}

TEST(MultipleChoice, StopsWhenItIsAsked) {
  const auto model = open({});
  ChoiceOptions options;
  options.progress = [](const std::string&, int64_t done, int64_t) { return done < 2; };
  const auto report = multiple_choice(*model, random_questions(5, 1), options);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

/// The likeliest tokens one after the other, of one sequence that runs alone.
std::vector<TokenId> greedy(SharedModel& model, std::vector<TokenId> tokens, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::vector<float> logits = alone(model, tokens);
    const auto row = row_of(logits, static_cast<int64_t>(tokens.size()) - 1, model.info.vocab_size);
    tokens.push_back(static_cast<TokenId>(std::ranges::max_element(row) - row.begin()));
  }
  return tokens;
}

TEST(Continuations, AreAsLongAsTwoLoneModelsAgree) {
  const auto model = open({.pages = 4}), base = open({.format = FormatId::kF32, .activation = Activation::kF32});
  const std::string text = random_text(2000, 3);
  AgreementOptions options;
  options.prompts = 6;
  options.prompt_tokens = 12;
  options.tokens = 9;
  const auto report = compare_continuations(*model, *base, text, options);
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_EQ(report->lengths.size(), 6u);
  auto tokens = *model->tokenizer.encode(text, {.add_special = false, .parse_special = false});
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 6; ++i) {
    const auto first = tokens.begin() + i * (static_cast<int64_t>(tokens.size()) / 12) / 6 * 12;
    std::vector<TokenId> prompt(first, first + 12);
    prompt[0] = 0;  // BOS
    const auto own = greedy(*model, prompt, 9), other = greedy(*base, prompt, 9);
    lengths.push_back(std::ranges::mismatch(own, other).in1 - own.begin() - 12);
  }
  EXPECT_EQ(report->lengths, lengths);
  EXPECT_LT(std::ranges::min(lengths), 9);
  ASSERT_FALSE(report->examples.empty());
  EXPECT_NE(report->examples[0].model, report->examples[0].base);
  const auto same = compare_continuations(*base, *base, text, options);
  EXPECT_EQ(same->lengths, std::vector<int64_t>(6, 9));
  EXPECT_EQ(same->never, 1);
  options.tokens = kContext;
  EXPECT_EQ(compare_continuations(*model, *base, text, options).error().code, ErrorCode::kInvalidArgument);
  options.tokens = 9;
  EXPECT_EQ(compare_continuations(*model, *base, "short", options).error().code, ErrorCode::kInvalidArgument);
  options.progress = [](const std::string&, int64_t, int64_t) { return false; };
  EXPECT_EQ(compare_continuations(*model, *base, text, options).error().code, ErrorCode::kCancelled);
}

TEST(Continuations, OfATextAreTheLastWordsOfItsPassages) {
  std::string words;
  for (int i = 1; i < 24; ++i) words += " w" + std::to_string(i);
  const std::string text = "too short\n" + words + " last and more\n" + words + " 1815\n" + words + "  gap\n" + words +
                           " second\n" + words + " third";
  const auto all = continuation_questions(text, 10);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].choices[0].context, words);
  EXPECT_EQ(all[0].choices[0].continuation, " last");
  EXPECT_EQ(all[1].choices[0].continuation, " second");
  EXPECT_EQ(all[2].choices[0].continuation, " third");
  const auto two = continuation_questions(text, 2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].choices[0].continuation, " second");
  EXPECT_TRUE(continuation_questions("", 5).empty());
}

}  // namespace
}  // namespace lowbit
