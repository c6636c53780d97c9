// stories260K: a real model whose greedy text is known byte for byte.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lowbit/tokenizer.h"
#include "model/random_model.h"
#include "runtime/sampler.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

std::string data_folder() {
  const char* set = std::getenv("LOWBIT_DATA");
  return set != nullptr ? set : LOWBIT_SOURCE_DIR "/../shared/data";
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The file's tensors in memory; the reader under test elsewhere is io/, here a second opinion of a
/// few lines.
MemorySource read_stories(const std::string& folder) {
  MemorySource source;
  source.config = read_file(folder + "/config.json");
  const std::string file = read_file(folder + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto shape = entry["shape"].get<std::vector<int64_t>>();
    const int64_t n = shape.size() == 1 ? 1 : shape[0], k = shape.back();
    std::vector<float> values(size_t(n * k));
    std::memcpy(values.data(), file.data() + 8 + header_bytes + entry["data_offsets"][0].get<size_t>(),
                values.size() * sizeof(float));
    source.add(name, n, k, values);
  }
  return source;
}

class Stories : public testing::Test {
 protected:
  void SetUp() override {
    folder = data_folder() + "/lm/stories260K";
    if (!std::filesystem::exists(folder + "/model.safetensors")) GTEST_SKIP() << "no " << folder;
  }

  /// 200 steps from BOS at temperature 0, as llama2.c's run.c prints them.
  std::string greedy(const LoadOptions& options) {
    const MemorySource source = read_stories(folder);
    auto model = Transformer::load(source, options);
    EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
    auto spec = spec_from_tokenizer_json(read_file(folder + "/tokenizer.json"));
    EXPECT_TRUE(spec.has_value()) << (spec ? "" : spec.error().message());
    auto tokenizer = Tokenizer::build(*spec);
    EXPECT_TRUE(tokenizer.has_value());
    SamplerOptions cold;
    cold.temperature = 0;
    auto sampler = Sampler::make(cold);
    auto cache = (*model)->make_cache();
    std::vector<float> logits(size_t((*model)->spec().vocab_size));
    std::vector<TokenId> text;
    int32_t token = 1;
    for (int step = 0; step < 200; ++step) {
      const int32_t one[1] = {token};
      EXPECT_TRUE((*model)->forward(one, *cache, LogitsWanted::last(), logits));
      token = *sampler->sample(logits);
      if (token == 1) break;
      text.push_back(token);
    }
    return *tokenizer->decode(text) + "\n";
  }

  std::string folder;
};

TEST_F(Stories, GreedyTextByteForByte) {
  const std::string want = read_file(folder + "/greedy-200.txt");
  for (Isa isa : {Isa::kScalar, best_isa()})
    for (Activation activation : {Activation::kF32, Activation::kInt8}) {  // dense weights: the same path
      LoadOptions options;
      options.isa = isa;
      options.x.activation = activation;
      options.threads = 2;
      EXPECT_EQ(greedy(options), want) << isa_name(isa);
    }
}

}  // namespace
}  // namespace lowbit
