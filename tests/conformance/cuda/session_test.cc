// Sessions on a GPU write what sessions on a CPU write: tokens chosen there or here, alone or beside each other.

#include <gtest/gtest.h>

#include <thread>

#include "lowbit/model.h"
#include "pipeline/model_directory.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

/// The tokens that a session writes, and the logits that it holds then.
struct Written {
  std::vector<TokenId> tokens, sequence;
  std::string text, stop_reason;
  std::vector<float> logprobs;
  bool operator==(const Written&) const = default;
};

std::vector<GenerateOptions> ways(std::vector<float>* logprobs) {
  std::vector<GenerateOptions> all;
  GenerateOptions o;
  o.max_tokens = 100;
  o.stop_at_eos = false;
  o.sampler.temperature = 0;
  all.push_back(o);
  o.sampler.temperature = 1.2F;
  for (const uint64_t seed : {1, 2}) {
    o.sampler.seed = seed;
    all.push_back(o);
  }
  o.stop_at_eos = true;  // ends somewhere
  o.sampler = {.temperature = 3, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 3};
  all.push_back(o);
  o.stop = {"a", "<40>"};
  all.push_back(o);
  o.stop = {};
  o.max_tokens = 1;
  all.push_back(o);
  o.max_tokens = 1000;  // all of the context
  o.stop_at_eos = false;
  all.push_back(o);
  // Options that change logits, or tell of them.
  o.max_tokens = 60;
  o.sampler.repeat_penalty = 1.2F;
  all.push_back(o);
  o.sampler.frequency_penalty = 0.3F;
  o.sampler.repeat_window = 3;
  all.push_back(o);
  o.sampler.repeat_penalty = 1;
  o.sampler.logit_bias = {{5, 4.0F}};
  all.push_back(o);
  o.sampler.token_mask = {0xffffff7f, 0xffff, 0x7f};
  all.push_back(o);
  const auto hear = [logprobs](const TokenLogprobs& p) {
    logprobs->push_back(p.logprob);
    for (const auto& [id, logprob] : p.top) logprobs->insert(logprobs->end(), {float(id), logprob});
  };
  o.top_logprobs = 2;
  o.on_logprobs = hear;  // beside changes: from logits on the host
  all.push_back(o);
  o.sampler = {.temperature = 1.2F, .seed = 4};
  for (const int64_t top : {0, 2, 21}) {  // the last ones on the host, too
    o.top_logprobs = top;
    all.push_back(o);
  }
  return all;
}

Written write(const Model& model, size_t way) {
  Written w;
  Session session = model.session();
  const std::vector<TokenId> prompt = {1, 7, TokenId(way), 11};
  int called = 0;
  // One of them is told to stop in the middle, and goes on after that.
  const auto on_text = [&](std::string_view) { return way != 1 || ++called != 37; };
  for (int round = 0; round < 2; ++round) {
    GenerateOptions options = ways(&w.logprobs)[way];
    if (round == 1) options.max_tokens = 9;
    if (round == 1 && session.length() + 20 > session.context()) break;
    const auto got = session.generate(prompt, options, on_text);
    EXPECT_TRUE(got) << got.error().message();
    if (!got) return w;
    w.tokens.insert(w.tokens.end(), got->tokens.begin(), got->tokens.end());
    w.text += got->text;
    w.stop_reason += got->stop_reason + " ";
  }
  EXPECT_EQ(session.length(), int64_t(session.tokens().size()));
  w.sequence.assign(session.tokens().begin(), session.tokens().end());
  const auto logits = session.decode(3);  // of all that it holds
  if (logits) w.logprobs.insert(w.logprobs.end(), logits->begin(), logits->end());
  return w;
}

TEST(CudaSessions, WriteWhatTheCpuWrites) {
  LOWBIT_NEEDS_GPU();
  const size_t count = ways(nullptr).size();
  for (const char* kv : {"f16", "int4"}) {
    RandomModelSpec spec;
    spec.max_positions = 320;
    spec.tied = true;
    testing_io::Scratch folder;
    testing_model::write_model(folder.path(), spec);
    ModelOptions options;
    options.kv = kv;
    options.context = 320;
    options.exact = true;
    options.compute.device = "cpu";
    const auto cpu = Model::open(folder.path(), options);
    options.compute.device = "cuda";
    const auto gpu = Model::open(folder.path(), options);
    ASSERT_TRUE(cpu && gpu);
    std::vector<Written> want, together(count);
    for (size_t way = 0; way < count; ++way) {
      want.push_back(write(*cpu, way));
      EXPECT_EQ(write(*gpu, way), want.back()) << kv << ", way " << way << ": " << want.back().stop_reason;
    }
    std::vector<std::thread> threads;
    for (size_t way = 0; way < count; ++way) threads.emplace_back([&, way] { together[way] = write(*gpu, way); });
    for (std::thread& thread : threads) thread.join();
    for (size_t way = 0; way < count; ++way) EXPECT_EQ(together[way], want[way]) << kv << ", beside others, " << way;
  }
}

/// Attention on tensor cores has one order of sums, too.
TEST(CudaSessions, WriteTheSameTogetherAsAlone) {
  LOWBIT_NEEDS_GPU();
  const size_t count = ways(nullptr).size();
  for (const int64_t head_dim : {16, 64}) {
    RandomModelSpec spec;
    spec.max_positions = 320;
    spec.head_dim = head_dim;
    testing_io::Scratch folder;
    testing_model::write_model(folder.path(), spec);
    ModelOptions options;
    options.context = 320;
    options.compute.device = "cuda";
    const auto gpu = Model::open(folder.path(), options);
    ASSERT_TRUE(gpu);
    std::vector<Written> alone, together(count);
    for (size_t way = 0; way < count; ++way) alone.push_back(write(*gpu, way));
    std::vector<std::thread> threads;
    for (size_t way = 0; way < count; ++way) threads.emplace_back([&, way] { together[way] = write(*gpu, way); });
    for (std::thread& thread : threads) thread.join();
    for (size_t way = 0; way < count; ++way) EXPECT_EQ(together[way], alone[way]) << head_dim << ", " << way;
  }
}

TEST(CudaSessions, OneCallerGetsTheLikeliestTokensOfMany) {
  LOWBIT_NEEDS_GPU();
  testing_io::Scratch folder;
  testing_model::write_model(folder.path(), {});
  std::vector<TokenId> want;
  for (const char* device : {"cpu", "cuda"}) {
    ModelOptions options;
    options.exact = true;
    options.compute.device = device;
    const auto model = Model::open(folder.path(), options);
    ASSERT_TRUE(model);
    std::vector<Session> sessions;
    for (int i = 0; i < 3; ++i) sessions.push_back(model->session());
    const std::vector<TokenId> prompt = {1, 7, 11, 12, 13};
    std::vector<TokenId> next(3 * 21), sequences;
    for (const size_t at_once : {1, 20}) {
      std::vector<SessionTokens> parts;
      for (size_t i = 0; i < 3; ++i)
        parts.push_back({&sessions[i], std::span(prompt).first(3 + i), std::span(next).subspan(21 * i, at_once)});
      ASSERT_TRUE(Session::prefill_together(parts));
      for (Session& session : sessions) EXPECT_TRUE(session.logits().empty());
      for (Session& session : sessions)
        sequences.insert(sequences.end(), session.tokens().begin(), session.tokens().end());
      for (const SessionTokens& part : parts) sequences.push_back(part.next.back());
    }
    if (want.empty()) want = sequences;
    EXPECT_EQ(sequences, want) << device;
  }
}

}  // namespace
}  // namespace lowbit
