// Real vocabularies and llama.cpp's test vectors. Skipped without the data.

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>

#include "lowbit/tokenizer.h"
#include "text/test_data.h"

namespace lowbit {
namespace {

Tokenizer from_gguf(const std::filesystem::path& path) {
  const std::string file = test::read_file(path);
  return test::must(Tokenizer::build(test::must(spec_from_gguf_fields(test::GgufFields(file).tokenizer()))));
}

// Through tokenizer.json, as an imported checkpoint reads it.
Tokenizer rewritten(const Tokenizer& t) {
  const std::string json = test::must(to_tokenizer_json(t.spec())),
                    config = test::must(to_tokenizer_config_json(t.spec()));
  return test::must(Tokenizer::build(test::must(spec_from_tokenizer_json(json, config))));
}

// .inp: texts, each ended by a line __ggml_vocab_test__. .out: a line of ids for each, without bos, eos and specials.
void expect_vectors(const Tokenizer& tokenizer, const std::filesystem::path& gguf) {
  constexpr std::string_view kEnd = "\n__ggml_vocab_test__\n";
  std::string texts = test::read_file(gguf.string() + ".inp");
  std::istringstream lines(test::read_file(gguf.string() + ".out"));
  std::string line;
  int compared = 0;
  while (std::getline(lines, line)) {
    const std::size_t end = texts.find(kEnd);
    const std::string text = texts.substr(0, end);
    texts.erase(0, end == std::string::npos ? end : end + kEnd.size());
    std::istringstream numbers(line);
    const std::vector<TokenId> wanted{std::istream_iterator<TokenId>(numbers), {}};
    EXPECT_EQ(test::must(tokenizer.encode(text, {.add_special = false})), wanted) << text;
    ++compared;
  }
  EXPECT_EQ(compared, 46);
}

TEST(TokenizerData, LlamaCppVectorsOfGpt2) {
  LOWBIT_NEED_DATA(path, "tok/ggml-vocab-gpt-2.gguf");
  const Tokenizer t = from_gguf(path);
  expect_vectors(t, path);
  expect_vectors(rewritten(t), path);
}

TEST(TokenizerData, LlamaCppVectorsOfSentencePiece) {
  LOWBIT_NEED_DATA(path, "tok/ggml-vocab-llama-spm.gguf");
  const Tokenizer t = from_gguf(path);
  expect_vectors(t, path);
  expect_vectors(rewritten(t), path);
}

TEST(TokenizerData, StoriesIsTheSameFromGgufAndFromTokenizerJson) {
  LOWBIT_NEED_DATA(path, "lm/stories260K/stories260K-f32.gguf");
  LOWBIT_NEED_DATA(text_path, "text/tinystories_excerpt.txt");
  const Tokenizer gguf = from_gguf(path);
  const Tokenizer json = test::must(
      Tokenizer::build(test::must(spec_from_tokenizer_json(test::read_file(path.parent_path() / "tokenizer.json")))));
  const std::string text = test::read_file(text_path);
  const auto ids = test::must(gguf.encode(text));
  EXPECT_EQ(test::must(json.encode(text)), ids);
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(test::must(gguf.decode(ids)), text);
  EXPECT_EQ(json.spec().eos_id, 2);
  EXPECT_EQ(json.spec().add_bos, true);
}

TEST(TokenizerData, AWholeFileAtOnceIsFast) {
  LOWBIT_NEED_DATA(text_path, "text/wiki.test.raw");
  const std::string text = test::read_file(text_path);
  const std::pair<const char*, std::size_t> tokenizers[] = {{"tok/ggml-vocab-gpt-2.gguf", 286221},
                                                            {"tok/ggml-vocab-llama-spm.gguf", 335687}};
  for (const auto& [name, tokens] : tokenizers) {
    LOWBIT_NEED_DATA(path, name);
    const Tokenizer t = from_gguf(path);
    const auto start = std::chrono::steady_clock::now();
    const auto ids = test::must(t.encode(text, {.add_special = false}));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_EQ(ids.size(), tokens);
    EXPECT_EQ(test::must(t.decode(ids)), text);
    std::printf("%s: %zu tokens in %.3f s\n", name, ids.size(), seconds);
    EXPECT_LT(seconds, 20.0);  // 2 s is expected; sanitizers and busy machines get more
  }
}

}  // namespace
}  // namespace lowbit
