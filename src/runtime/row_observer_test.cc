#include "runtime/row_observer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/cpu.h"
#include "base/rng.h"
#include "base/test_bits.h"
#include "model/random_model.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

/// The rows that a sequence showed, tap by tap; the last tap is that of its logits.
class Record : public RowObserver {
 public:
  explicit Record(const ModelSpec& spec) : names(tap_names(spec)), taps(names.size() + 1) {}
  void begin(int64_t position, std::span<const int32_t> text, int64_t, int64_t count) override {
    EXPECT_EQ(position, int64_t(tokens.size()));
    tokens.insert(tokens.end(), text.begin(), text.end());
    wanted += count;
  }
  void rows(int tap, const float* x, int64_t m, int64_t k) override {
    EXPECT_EQ(k, names[size_t(tap)].width);
    taps[size_t(tap)].insert(taps[size_t(tap)].end(), x, x + m * k);
  }
  void logits(const float* x, int64_t m, int64_t vocab) override {
    taps.back().insert(taps.back().end(), x, x + m * vocab);
  }

  std::vector<TapName> names;
  std::vector<std::vector<float>> taps;
  std::vector<int32_t> tokens;
  int64_t wanted = 0;
};

std::unique_ptr<Transformer> load(const RandomModelSpec& spec, bool reference) {
  LoadOptions options;
  options.reference = reference;
  options.isa = best_isa();
  options.x.activation = spec.format == FormatId::kF32 ? Activation::kF32 : Activation::kInt8;
  options.x.group = 32;
  options.threads = 2;
  options.batch = 48;
  auto model = Transformer::load(make_random_model(spec), options);
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
  return model ? std::move(*model) : nullptr;
}

struct Sequence {
  std::vector<int32_t> text;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Record> record;  // of those that are traced
  std::vector<float> logits;       // of all tokens
};

/// The next tokens of some, in one batch, and logits of the last of them.
void step(Transformer& model, std::vector<Sequence>& sequences, Rng& rng) {
  const int64_t vocab = model.spec().vocab_size;
  std::vector<BatchPart> batch;
  int64_t room = model.batch();
  for (Sequence& s : sequences) {
    const int64_t done = s.cache->length(), left = int64_t(s.text.size()) - done;
    const int64_t rows = std::min({left, room, int64_t(rng.below(12))});
    if (rows == 0) continue;
    ASSERT_TRUE(s.cache->reserve(rows));
    const int64_t first = int64_t(rng.below(uint64_t(rows) + 1));
    batch.push_back({std::span(s.text).subspan(size_t(done), size_t(rows)), s.cache.get(), first, rows - first,
                     s.logits.data() + (done + first) * vocab, s.record.get()});
    room -= rows;
  }
  if (batch.empty()) return;
  ASSERT_TRUE(model.run(batch));
}

// In any company and on any backend, traced or not.
TEST(RowObserver, SeesTheRowsOfItsSequenceAlone) {
  for (const FormatId format : {FormatId::kF32, FormatId::kInt4})
    for (const int64_t hadamard : {0, 32}) {
      RandomModelSpec spec;
      spec.format = format;
      spec.down_hadamard = hadamard;
      const auto model = load(spec, false), reference = load(spec, true);
      ASSERT_TRUE(model && reference);
      const int64_t vocab = spec.vocab;
      Rng rng(5);
      std::vector<Sequence> sequences(6);
      for (size_t i = 0; i < sequences.size(); ++i) {
        Sequence& s = sequences[i];
        s.text.resize(3 + rng.below(46));  // the reference's batch takes it whole
        for (int32_t& t : s.text) t = int32_t(rng.below(uint64_t(vocab)));
        s.cache = std::make_unique<KvCache>(*model->make_cache());
        s.logits.resize(s.text.size() * size_t(vocab), 0.5f);
        if (i % 2 == 1) s.record = std::make_unique<Record>(model->spec());
      }
      const auto is_done = [](const Sequence& s) { return s.cache->length() == int64_t(s.text.size()); };
      while (!std::ranges::all_of(sequences, is_done)) step(*model, sequences, rng);

      for (const Sequence& s : sequences) {
        Record want(reference->spec());
        auto cache = reference->make_cache();
        std::vector<float> logits(s.logits.size());
        const auto n = int64_t(s.text.size());
        std::vector<BatchPart> alone = {{s.text, &*cache, 0, n, logits.data(), &want}};
        ASSERT_TRUE(cache->reserve(n));
        ASSERT_TRUE(reference->run(alone));
        for (int64_t row = 0; row < n; ++row) {
          const float* const got = s.logits.data() + row * vocab;
          EXPECT_TRUE(*got == 0.5f || std::memcmp(got, logits.data() + row * vocab, size_t(vocab) * 4) == 0) << row;
        }
        if (!s.record) continue;
        EXPECT_EQ(s.record->tokens, s.text);
        ASSERT_EQ(s.record->names.size(), 9u);
        for (size_t tap = 0; tap + 2 < s.record->taps.size(); ++tap)
          EXPECT_TRUE(same_bits(s.record->taps[tap], want.taps[tap])) << want.names[tap].name;
        EXPECT_EQ(int64_t(s.record->taps[8].size()), s.record->wanted * spec.hidden);
        EXPECT_EQ(int64_t(s.record->taps[9].size()), s.record->wanted * vocab);
        // The wanted rows, in order, are among the reference's.
        for (size_t tap : {size_t{8}, size_t{9}}) {
          const int64_t width = tap == 8 ? spec.hidden : vocab;
          int64_t at = 0;
          for (int64_t row = 0; row < s.record->wanted; ++row, ++at)
            while (at < n && std::memcmp(s.record->taps[tap].data() + row * width, want.taps[tap].data() + at * width,
                                         size_t(width) * 4) != 0)
              ++at;
          EXPECT_LE(at, n) << tap;
        }
      }
    }
}

TEST(RowObserver, TapsHaveNames) {
  RandomModelSpec spec;
  const auto model = load(spec, false);
  std::vector<std::string> names;
  for (const TapName& tap : tap_names(model->spec())) names.push_back(tap.name);
  EXPECT_EQ(names, (std::vector<std::string>{"blocks.0.attn_norm", "blocks.0.attn_out", "blocks.0.ffn_norm",
                                             "blocks.0.ffn_act", "blocks.1.attn_norm", "blocks.1.attn_out",
                                             "blocks.1.ffn_norm", "blocks.1.ffn_act", "final_norm"}));
  EXPECT_EQ(tap_names(model->spec())[3].width, spec.intermediate);
}

}  // namespace
}  // namespace lowbit
