// Whole models on a GPU against the reference, bit for bit: every family and format, ragged batches, ranges, taps,
// sequences that share pages; and what needs a device of its own: pages, Hessians, errors.

#include "runtime/program_checks.h"
#include "runtime/program_sequence_checks.h"
#include "runtime/program_window_checks.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>

#include "runtime/executor.h"
#include "runtime/transformer.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

using namespace program_checks;  // NOLINT

struct Gpu {
  ThreadPool pool{2};
  std::unique_ptr<Backend> backend = std::move(*make_cuda_backend(0, pool));
};

TEST(CudaPrograms, GiveTheReferencesBits) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  for (const Variant& v : variants()) expect_reference(*gpu.backend, v, gpu.pool);
}

/// Shapes that the tuned matmuls take: whole groups of 64, more than eight rows.
RandomModelSpec wide(FormatId format, int64_t group) {
  RandomModelSpec s;
  s.hidden = 256;
  s.intermediate = 384;
  s.heads = 8;
  s.head_dim = 32;
  s.format = format;
  s.group = group;
  return s;
}

TEST(CudaPrograms, EveryFormatWithEveryKindOfActivation) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  const XPolicy policies[] = {{.activation = Activation::kF32},
                              {.group = 32},
                              {.group = 64},
                              {.group = 0},
                              {.group = 32, .rounding = {7, 0}},
                              {.group = 0, .rounding = {127, 0.01F}},
                              {.group = 32, .by_weight = true}};
  for (const FormatId format :
       {FormatId::kF16, FormatId::kBf16, FormatId::kInt8, FormatId::kInt4, FormatId::kUint4, FormatId::kInt3,
        FormatId::kInt2, FormatId::kInt3Odd, FormatId::kInt2Odd, FormatId::kBinary, FormatId::kTernary,
        FormatId::kTernaryPacked, FormatId::kFp8, FormatId::kCodebook4, FormatId::kCodebook3, FormatId::kCodebook2})
    for (const int64_t group : {int64_t{64}, int64_t{32}, Scaling::kAll})
      for (const XPolicy& x : policies) {
        const std::string name = std::string(format_info(format).name) + ", group " + std::to_string(group) + ", x " +
                                 activation_name(x.activation) + " by " + std::to_string(x.group);
        expect_reference(*gpu.backend, {name.c_str(), wide(format, group), x}, gpu.pool);
        if (testing::Test::HasFailure()) return;
      }
}

TEST(CudaPrograms, HeadsOfAllSizes) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  for (const auto& [heads, kv_heads, head_dim] :
       {std::array<int64_t, 3>{9, 3, 64}, {4, 4, 6}, {16, 1, 20}, {3, 1, 128}, {2, 1, 130}, {2, 2, 256}, {20, 1, 8}}) {
    RandomModelSpec s;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dim = head_dim;
    s.max_positions = 640;
    const Variant v{"heads", s, {.activation = Activation::kF32}};
    expect_reference(*gpu.backend, v, gpu.pool);
    expect_reference_sessions(*gpu.backend, v, gpu.pool, 12);
    expect_reference_decoding(*gpu.backend, v, gpu.pool, 9);
  }
}

TEST(CudaPrograms, SequencesThatShareAPool) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  for (const Variant& v : variants()) expect_reference_sessions(*gpu.backend, v, gpu.pool, 40);
}

TEST(CudaPrograms, WindowsGivePagesBack) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  expect_windows_give_pages_back(*gpu.backend, gpu.pool);
}

/// Caches whose old pages are packed.
TEST(CudaPrograms, QuantizedCaches) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  for (const Variant& v : packed_variants()) {
    expect_reference_sessions(*gpu.backend, v, gpu.pool, 40);
    expect_reference_decoding(*gpu.backend, v, gpu.pool, 70);
  }
}

/// Sequences that are appended to, forked, cut back and dropped: 1,000 steps of each form of a cache.
TEST(CudaPrograms, RandomSequencesOfQuantizedCaches) {
  LOWBIT_NEEDS_GPU();
  uint64_t seed = 1;
  for (const CacheCase& c : cache_cases()) expect_same_sequences(c, 1000, seed++);
}

/// The kernel that is taken without --exact.
TEST(CudaPrograms, FastQuantizedCaches) {
  LOWBIT_NEEDS_GPU();
  for (const char* kv : {"int8", "int4", "k4v2", "int2"})
    for (const int64_t head_dim : {64, 128}) expect_same_in_parts(kv, head_dim, 1500);
  for (const char* kv : {"int4", "int2"}) expect_same_in_parts(kv, 128, 1500, 512);
}

/// A model as a whole, in parts of a prompt, forked and cut back.
TEST(CudaPrograms, AModelWithAQuantizedCache) {
  LOWBIT_NEEDS_GPU();
  RandomModelSpec spec;
  spec.max_positions = 640;
  const MemorySource source = make_random_model(spec);
  Rng rng(4);
  std::vector<int32_t> tokens(500);
  for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(spec.vocab)));
  for (const char* kv : {"int8", "int4", "k4v2"}) {
    std::vector<std::vector<float>> all;
    for (const int gpu : {-1, 0}) {
      LoadOptions options;
      options.batch = 96;
      if (gpu >= 0) options.gpus = {gpu};
      options.kv = *parse_kv_format(kv, 64);
      const auto model = Transformer::load(source, options);
      ASSERT_TRUE(model.has_value()) << model.error().message();
      std::vector<float>& logits = all.emplace_back();
      const auto add = [&](std::span<const int32_t> of, KvCache& cache) {
        std::vector<float> last(static_cast<size_t>(spec.vocab));
        ASSERT_TRUE((*model)->forward(of, cache, LogitsWanted::last(), last));
        logits.insert(logits.end(), last.begin(), last.end());
      };
      const auto pages = *(*model)->make_pool(64, 8);
      KvCache cache(pages, 640);
      add(std::span(tokens).first(430), cache);
      KvCache other = cache.fork();
      for (int i = 0; i < 40; ++i) add(std::span(tokens).subspan(size_t(430 + i), 1), i % 2 == 0 ? cache : other);
      ASSERT_TRUE(cache.truncate(300));
      add(std::span(tokens).subspan(450, 30), cache);
    }
    EXPECT_TRUE(same_bits(all[1], all[0])) << kv;
  }
}

/// From the second batch of a kind on these are recorded launches.
TEST(CudaPrograms, SequencesThatDecode) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  for (const Variant& v : variants()) expect_reference_decoding(*gpu.backend, v, gpu.pool, 70);
  const auto decode = [&](FormatId format, int64_t group, int64_t x_group) {
    expect_reference_decoding(*gpu.backend, {format_info(format).name, wide(format, group), {.group = x_group}},
                              gpu.pool, 12);
  };
  for (const FormatId format :
       {FormatId::kInt4, FormatId::kUint4, FormatId::kInt3, FormatId::kInt2, FormatId::kInt8, FormatId::kTernary})
    for (const int64_t group : {int64_t{64}, int64_t{128}}) decode(format, group, 32);
  for (const FormatId format : {FormatId::kInt4, FormatId::kTernary})
    for (const int64_t x_group : {0, 32}) decode(format, Scaling::kAll, x_group);
}

/// More tiles than a GPU has multiprocessors, of one weight and of pairs: blocks of two teams (step_gemv.cuh).
TEST(CudaPrograms, WideRowsThatDecode) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  for (const auto& [format, intermediate] : {std::pair{FormatId::kInt4, 4736}, {FormatId::kInt8, 2176}}) {
    RandomModelSpec s = wide(format, 64);
    s.hidden = 2304;
    s.intermediate = intermediate;
    s.layers = 1;
    expect_reference_decoding(*gpu.backend, {format_info(format).name, s, {.group = 32}}, gpu.pool, 3);
  }
}

/// Rows that kernels of a step read in several pieces, and more of them than there are thread blocks at a time.
TEST(CudaPrograms, LongRowsThatDecode) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  const auto decode = [&](FormatId format, int64_t group, int64_t x_group, int64_t intermediate) {
    RandomModelSpec s = wide(format, group);
    s.intermediate = intermediate;
    expect_reference_decoding(*gpu.backend, {format_info(format).name, s, {.group = x_group}}, gpu.pool, 4);
  };
  for (const FormatId format : {FormatId::kInt4, FormatId::kInt2, FormatId::kInt8})
    for (const int64_t group : {int64_t{64}, int64_t{128}}) decode(format, group, 32, 9216);
  for (const FormatId format : {FormatId::kTernary, FormatId::kInt4, FormatId::kInt8})
    decode(format, Scaling::kAll, 32, 4608);
  for (const FormatId format : {FormatId::kTernary, FormatId::kBinary, FormatId::kInt2})
    for (const int64_t intermediate : {4608, 6144}) decode(format, Scaling::kAll, 0, intermediate);
}

TEST(CudaPrograms, WhatNobodyHasIsRefusedByName) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  const MemorySource source = make_random_model({});
  auto model = load(source, {}, *gpu.backend);
  for (Step& step : model->steps)
    if (auto* glu = std::get_if<GluStep>(&step)) glu->glu = Glu::kGeluTanh;
  const auto refused = gpu.backend->compile(model->steps, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message().find("GELU"), std::string::npos) << refused.error().message();
  RandomModelSpec large;
  large.head_dim = 258;
  const auto too_large = load(make_random_model(large), {}, *gpu.backend);
  EXPECT_NE(gpu.backend->compile(too_large->steps, {}).error().message().find("heads of 258"), std::string::npos);
  EXPECT_EQ(make_cuda_backend(99, gpu.pool).error().code, ErrorCode::kUnsupported);
}

TEST(CudaPrograms, CachesOfTheHostAreRefused) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  const MemorySource source = make_random_model({});
  const auto model = load(source, {.activation = Activation::kF32}, *gpu.backend);
  const auto program = *gpu.backend->compile(model->steps, {});
  const auto work = *gpu.backend->workspace(model->steps, {slot_widths(model->spec), 8, 64});
  auto cache = *KvCache::make(groups_of(model->spec), 64);
  ASSERT_TRUE(cache.reserve(1));
  const std::vector<int32_t> tokens = {3};
  const std::vector<SequenceRows> sequences = {{&cache, 0, 0, 1}};
  const Status status = program->run(*work, {tokens, sequences, {}}, 0, program->steps());
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message().find("host"), std::string::npos) << status.error().message();
}

TEST(CudaPrograms, HessianOfTheReference) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  const auto ref = make_ref_backend(gpu.pool);
  Rng rng(3);
  for (const int64_t k : {40, 209})
    for (const int64_t n : {int64_t{0}, int64_t{33}, k, int64_t{300}}) {
      const int64_t rows = 2 * kHessianChunk + 100;
      std::vector<float> x(size_t(rows * k)), y(size_t(rows * std::max<int64_t>(n, 1))), z(y.size());
      for (auto* values : {&x, &y, &z})
        for (float& v : *values) v = float(rng.normal());
      const auto by_definition = *ref->hessian_sum(k, n);
      ASSERT_TRUE(by_definition->add(x.data(), y.data(), z.data(), rows));
      const InputHessian want = *by_definition->finish("rows");
      RowBuffer xd = *gpu.backend->allocate_rows(rows * k, RowFormat::kF32, "x");
      RowBuffer yd = *gpu.backend->allocate_rows(int64_t(y.size()), RowFormat::kF32, "y"),
                zd = *gpu.backend->allocate_rows(int64_t(z.size()), RowFormat::kF32, "z");
      ASSERT_TRUE(gpu.backend->upload(x, xd, 0) && gpu.backend->upload(y, yd, 0) && gpu.backend->upload(z, zd, 0));
      for (const int64_t cut : {int64_t{77}, rows}) {
        const auto sum = *gpu.backend->hessian_sum(k, n);
        for (int64_t first = 0; first < rows; first += cut)
          ASSERT_TRUE(sum->add(xd.bytes.as<float>() + first * k, yd.bytes.as<float>() + first * n,
                               zd.bytes.as<float>() + first * n, std::min(cut, rows - first)));
        const InputHessian got = *sum->finish("rows");
        EXPECT_TRUE(same_bits(got.h, want.h)) << k << ", cut " << cut;
        EXPECT_TRUE(same_bits(got.mismatch, want.mismatch)) << n << " x " << k << ", cut " << cut;
      }
      const auto bad = *gpu.backend->hessian_sum(k, 0);
      x[size_t(5 * k + 3)] = NAN;
      ASSERT_TRUE(gpu.backend->upload(x, xd, 0));
      ASSERT_TRUE(bad->add(xd.bytes.as<float>(), nullptr, nullptr, rows));
      EXPECT_NE(bad->finish("layer").error().message().find("layer: got NaN or infinity as input 3"),
                std::string::npos);
    }
}

TEST(CudaPrograms, RowsGoFromBuffersToSlotsAndBack) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  const std::array<int64_t, 2> widths = {4, 12};
  const auto work = *gpu.backend->workspace({}, {widths, 5, 16});
  std::vector<float> x(7 * 12), back(24);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1 + 0.001F * float(i);
  for (const RowFormat format : {RowFormat::kF32, RowFormat::kBf16}) {
    RowBuffer from = *gpu.backend->allocate_rows(7 * 12, RowFormat::kF32, "rows");
    RowBuffer to = *gpu.backend->allocate_rows(7 * 12, format, "rows");
    ASSERT_TRUE(gpu.backend->upload(x, from, 0));
    ASSERT_TRUE(work->load(1, 2, 3, from, 12));
    ASSERT_TRUE(work->save(1, 3, 2, to, 24));
    ASSERT_TRUE(gpu.backend->download(to, 24, back));
    std::vector<float> want(x.begin() + 24, x.begin() + 48);
    for (float& v : want) v = as_kept(format, v);
    EXPECT_TRUE(same_bits(back, want));
    ASSERT_TRUE(gpu.backend->upload(std::span(x).subspan(24, 24), to, 24));
    ASSERT_TRUE(gpu.backend->download(to, 24, back));
    EXPECT_TRUE(same_bits(back, want));
  }
}

/// Threads that drive one model on the GPU get what the CPU gives each alone.
TEST(CudaPrograms, ManyThreadsShareAModel) {
  LOWBIT_NEEDS_GPU();
  for (const Activation activation : {Activation::kF32, Activation::kInt8}) {
    const MemorySource source = make_random_model(wide(FormatId::kInt4, 64));
    LoadOptions options;
    options.x.activation = activation;
    options.x.group = 32;
    options.isa = best_isa();
    options.batch = 24;
    const auto cpu = *Transformer::load(source, options);
    options.gpus = {0};
    const auto loaded = Transformer::load(source, options);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    Executor executor(**loaded);
    constexpr int kThreads = 8, kSteps = 12;
    const int64_t vocab = cpu->spec().vocab_size;
    std::vector<std::vector<float>> got(kThreads);
    const auto story = [&](int thread, auto&& forward, KvCache cache) {
      Rng rng(uint64_t(thread) + 1);
      std::vector<float> all;
      for (int step = 0; step < kSteps; ++step) {
        std::vector<int32_t> tokens(step == 0 ? 1 + rng.below(90) : 1);
        for (int32_t& t : tokens) t = int32_t(rng.below(uint64_t(vocab)));
        std::vector<float> logits(static_cast<size_t>(vocab));
        EXPECT_TRUE(forward(tokens, cache, LogitsWanted::last(), logits));
        all.insert(all.end(), logits.begin(), logits.end());
      }
      return all;
    };
    const auto pages = *(*loaded)->make_pool(64, 8);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        got[size_t(t)] = story(
            t, [&](auto&&... a) { return executor.forward(a...); }, KvCache(pages, 256));
      });
    for (std::thread& t : threads) t.join();
    for (int t = 0; t < kThreads; ++t) {
      const auto want = story(
          t, [&](auto&&... a) { return cpu->forward(a...); }, *cpu->make_cache());
      EXPECT_TRUE(same_bits(got[size_t(t)], want)) << "thread " << t;
    }
  }
}

/// Logits of 40 tokens.
std::vector<float> logits_of(const MemorySource& source, const LoadOptions& how) {
  const auto model = *Transformer::load(source, how);
  const int64_t vocab = model->spec().vocab_size;
  std::vector<int32_t> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(int64_t(i * 7 + 3) % vocab);
  std::vector<float> logits(tokens.size() * size_t(vocab));
  auto cache = *model->make_cache();
  EXPECT_TRUE(model->forward(tokens, cache, LogitsWanted::range(0, int64_t(tokens.size())), logits));
  return logits;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double(got[i]) - want[i], 2);
    norm += std::pow(double(want[i]), 2);
  }
  return std::sqrt(error / norm);
}

/// With a scale per row and 128 columns sums are the CPU's. In blocks of 128 rows tensor cores round them, by 1.3e-4,
/// and in this model as small a change of its norms turns enough codes to move logits as far as FP8 itself does. So the
/// measure is f32 activations: a GPU's logits are no farther from theirs than the CPU's are.
TEST(CudaPrograms, Fp8Activations) {
  LOWBIT_NEEDS_GPU();
  Gpu gpu;
  expect_reference(*gpu.backend, fp8_variant(1), gpu.pool);
  expect_reference_decoding(*gpu.backend, fp8_variant(1), gpu.pool, 12);
  const Variant blocks = fp8_variant(128);
  const MemorySource source = make_random_model(blocks.model);
  LoadOptions options;
  options.x = blocks.x;
  options.batch = 24;
  LoadOptions plain = options, device = options;
  plain.x = {.activation = Activation::kF32};
  device.gpus = {0};
  const auto want = logits_of(source, plain);
  EXPECT_LE(relative_error(logits_of(source, device), want), 1.1 * relative_error(logits_of(source, options), want));
}

/// Tensor cores multiply x in 16 bits exactly and add in an order of their own (device_matmul_test.cc holds the bound
/// of one product), so that elements of the next layer's x may round to the other neighbour. Either is as near, so
/// logits are no farther from those of f32 x than the CPU's are; and what the order does to them is small beside what
/// rounding x does. The latter is not so for fp8: where sums change by two units in the last place, the CPU's own
/// logits of this model move by 0.2 to 0.55 of that.
TEST(CudaPrograms, ActivationsIn16Bits) {
  LOWBIT_NEEDS_GPU();
  for (const Halves halves : {Halves::kF16, Halves::kBf16})
    for (const auto& [format, group] : {std::pair{FormatId::kInt4, int64_t{64}},
                                        {FormatId::kInt2, int64_t{16}},
                                        {FormatId::kInt3, Scaling::kAll},
                                        {FormatId::kTernary, Scaling::kAll},
                                        {FormatId::kInt8, int64_t{64}},
                                        {FormatId::kFp8, int64_t{128}},
                                        {FormatId::kCodebook4, int64_t{64}}}) {
      const Variant v = halves_variant(halves, format, group);
      const MemorySource source = make_random_model(v.model);
      LoadOptions exact, host;
      exact.batch = host.batch = 24;
      exact.x = {.activation = Activation::kF32};
      host.x = v.x;
      LoadOptions device = host;
      device.gpus = {0};
      EXPECT_TRUE(same_bits(logits_of(source, device), logits_of(source, host)));
      device.exact = false;
      const auto want = logits_of(source, exact), by_host = logits_of(source, host);
      const auto by_device = logits_of(source, device);
      const double rounding = relative_error(by_host, want), order = relative_error(by_device, by_host);
      std::printf("%s, %s: x in 16 bits moves logits by %.1e, the order of sums by %.1e\n", v.name,
                  format_info(format).name, rounding, order);
      EXPECT_GT(rounding, 1e-6);
      EXPECT_LE(relative_error(by_device, want), 1.1 * rounding);
      if (format != FormatId::kFp8) {
        EXPECT_LE(order, 0.5 * rounding);
      }
    }
}

}  // namespace
}  // namespace lowbit
