// Whole models through backend/cuda, its kernels on fibers: the bits of the reference, without a GPU.

#include "runtime/program_checks.h"
#include "runtime/program_sequence_checks.h"
#include "runtime/program_window_checks.h"

#include "runtime/transformer.h"

namespace lowbit {
namespace {

using namespace program_checks;  // NOLINT

TEST(ProgramsOnFibers, GiveTheReferencesBits) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  for (const Variant& v : variants()) expect_reference(*cuda, v, pool);
  Variant v{"int4 codes of x", {}, {.group = 32, .rounding = {7, 0}}};
  v.model.format = FormatId::kInt4;
  expect_reference(*cuda, v, pool);
  for (const int64_t rows : {1, 128}) {
    expect_reference(*cuda, fp8_variant(rows), pool);
    expect_reference_sessions(*cuda, fp8_variant(rows), pool, 9);
    expect_reference_decoding(*cuda, fp8_variant(rows), pool, 9);
  }
}

TEST(ProgramsOnFibers, SequencesThatShareAPool) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  for (const Variant& v : variants()) expect_reference_sessions(*cuda, v, pool, v.model.window > 0 ? 14 : 9);
}

TEST(ProgramsOnFibers, SequencesThatDecode) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  for (const Variant& v : variants()) expect_reference_decoding(*cuda, v, pool, 9);
}

TEST(ProgramsOnFibers, WindowsGivePagesBack) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  expect_windows_give_pages_back(*cuda, pool);
}

/// Caches whose old pages are packed.
TEST(ProgramsOnFibers, QuantizedCaches) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  const std::vector<Variant> all = packed_variants();  // some of them: fibers take their time
  for (const int sessions : {0, 3, 9, 10}) expect_reference_sessions(*cuda, all[size_t(sessions)], pool, 10);
  for (const int decoding : {1, 7, 8, 11}) expect_reference_decoding(*cuda, all[size_t(decoding)], pool, 3);
}

TEST(ProgramsOnFibers, RandomSequencesOfQuantizedCaches) {
  uint64_t seed = 1;
  for (const CacheCase& c : cache_cases()) expect_same_sequences(c, 25, seed++);
}

TEST(ProgramsOnFibers, FastQuantizedCaches) {
  for (const char* kv : {"int8", "int4", "k4v2", "int2"}) expect_same_in_parts(kv, 64, 330);
  expect_same_in_parts("int4", 64, 330, 192);
}

TEST(ProgramsOnFibers, Fp8ActivationsAreRefusedByName) {
  RandomModelSpec spec;
  spec.format = FormatId::kFp8;
  spec.group = 40;
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.gpus = {0};
  options.x = {.activation = Activation::kFp8, .group = kFp8Block};
  const auto refused = Transformer::load(source, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message().find("fp8 activations"), std::string::npos) << refused.error().message();
}

/// A model as a whole: its pages, its batches, and rows that observers see in the host's memory.
TEST(ProgramsOnFibers, AModelOnADevice) {
  const MemorySource source = make_random_model({});
  LoadOptions options;
  options.batch = 20;
  const auto cpu = *Transformer::load(source, options);
  options.gpus = {0};
  const auto gpu = *Transformer::load(source, options);
  const int64_t vocab = cpu->spec().vocab_size;
  const std::vector<int32_t> tokens = {5,  3,  96, 0,  17, 17, 40, 2,  9,  11, 30, 31,
                                       32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42};
  std::vector<std::vector<float>> logits, seen;
  for (Transformer* model : {cpu.get(), gpu.get()}) {
    std::vector<float> all(tokens.size() * size_t(vocab)), rows;
    auto cache = *model->make_cache();
    model->set_observer(
        [&](const std::string&, const float* x, int64_t m, int64_t k) { rows.insert(rows.end(), x, x + m * k); });
    ASSERT_TRUE(model->forward(tokens, cache, LogitsWanted::range(0, int64_t(tokens.size())), all));
    model->set_observer({});
    auto other = cache.fork();
    ASSERT_TRUE(model->forward({{1}}, other, LogitsWanted::none(), {}));
    std::vector<float> next(static_cast<size_t>(vocab));
    ASSERT_TRUE(model->forward({{7}}, cache, LogitsWanted::last(), next));
    all.insert(all.end(), next.begin(), next.end());
    logits.push_back(all);
    seen.push_back(rows);
  }
  EXPECT_TRUE(same_bits(logits[1], logits[0]));
  EXPECT_TRUE(same_bits(seen[1], seen[0]));
  options.gpus = {1};
  EXPECT_EQ(Transformer::load(source, options).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace lowbit
