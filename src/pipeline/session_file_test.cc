// Sessions that were saved and loaded go on as those that never were.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "lowbit/model.h"
#include "pipeline/model_directory.h"

namespace lowbit {
namespace {

using testing_io::read_file;
using testing_io::Scratch;
using testing_io::write_file;

std::vector<TokenId> some_tokens(size_t n, uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& t : tokens) t = TokenId(rng.below(97));
  return tokens;
}

/// A directory with a model, and what is saved beside it.
class SessionFile : public ::testing::Test {
 protected:
  SessionFile() {
    spec_.max_positions = 1024;
    testing_model::write_model(folder_.path(), spec_);
  }
  Model open(const ModelOptions& options = {}) const { return open_at(folder_.path(), options); }
  static Model open_at(const std::string& path, const ModelOptions& options) {
    auto model = Model::open(path, options);
    EXPECT_TRUE(model) << model.error().message();
    return std::move(*model);
  }
  static ModelOptions with_kv(const char* kv, int64_t residual = 64) {
    ModelOptions options;
    options.kv = kv;
    options.kv_residual = residual;
    options.compute.threads = 2;
    return options;
  }
  std::string file() const { return folder_ / "session"; }

  RandomModelSpec spec_;
  Scratch folder_;
};

std::vector<float> copy_of(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

void expect_same(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size_bytes()), 0);
}

/// Both go on with the same tokens, after being cut to the same length first.
void expect_same_future(Session& a, Session& b, int64_t length, uint64_t seed) {
  ASSERT_TRUE(a.truncate(length));
  ASSERT_TRUE(b.truncate(length));
  for (const size_t n : {size_t{1}, size_t{90}, size_t{2}}) {
    const auto more = some_tokens(n, seed + n);
    const auto x = a.prefill(more), y = b.prefill(more);
    ASSERT_TRUE(x && y);
    expect_same(*y, *x);
  }
}

TEST_F(SessionFile, GoesOnAsIfNeverSaved) {
  const struct {
    const char* kv;
    int64_t refresh = 0;
    const char* demote = "";
  } caches[] = {
      {"f16"}, {"int4"}, {"k4v2"}, {"int8"}, {"int2", 192}, {"int8", 0, "128:k4v2"}, {"fp8", 200, "256:int3"}};
  for (const auto& cache : caches)
    for (const size_t n : {1, 64, 65, 200, 256, 600}) {
      SCOPED_TRACE(fmt::format("{} {} {}, {}", cache.kv, cache.refresh, cache.demote, n));
      ModelOptions options = with_kv(cache.kv);
      options.kv_refresh = cache.refresh;
      options.kv_demote = cache.demote;
      const Model model = open(options);
      Session session = model.session();
      const auto tokens = some_tokens(n);
      ASSERT_TRUE(session.prefill(tokens));
      ASSERT_TRUE(session.save(file(), "a note: \n\"x\""));
      Session loaded = model.session();
      ASSERT_TRUE(loaded.prefill(some_tokens(5, 9)));  // which goes
      const auto note = loaded.load(file());
      ASSERT_TRUE(note) << note.error().message();
      EXPECT_EQ(*note, "a note: \n\"x\"");
      EXPECT_EQ(loaded.length(), int64_t(n));
      EXPECT_EQ(loaded.kv_bytes(), session.kv_bytes());
      EXPECT_TRUE(std::ranges::equal(loaded.tokens(), tokens));
      expect_same(loaded.logits(), session.logits());
      for (const size_t length : {n, n - n / 10, n / 2, size_t{0}}) {
        Session a = session.fork(), b = loaded.fork();
        expect_same_future(a, b, int64_t(length), n);
        if (HasFatalFailure()) return;
      }
    }
}

TEST_F(SessionFile, WindowsGivePagesBackAndGoOn) {
  const Scratch folder;
  RandomModelSpec spec = spec_;
  spec.model_type = "mistral";
  spec.window = 100;
  testing_model::write_model(folder.path(), spec);
  for (const char* kv : {"f16", "int4"}) {
    const Model model = open_at(folder.path(), with_kv(kv));
    Session session = model.session();
    const auto tokens = some_tokens(900);
    for (size_t i = 0; i < tokens.size(); i += 300) ASSERT_TRUE(session.prefill(std::span(tokens).subspan(i, 300)));
    Session whole = open(with_kv(kv)).session();  // without windows
    ASSERT_TRUE(whole.prefill(tokens));
    if (kv == std::string("f16")) {
      EXPECT_LT(session.kv_bytes(), whole.kv_bytes());
    }
    ASSERT_TRUE(session.save(file()));
    Session loaded = model.session();
    ASSERT_TRUE(loaded.load(file()));
    for (const size_t length : {900, 700, 300, 20, 0}) {
      Session a = session.fork(), b = loaded.fork(), fresh = model.session();
      expect_same_future(a, b, int64_t(length), length);
      if (length > 0) {
        ASSERT_TRUE(fresh.prefill(std::span(tokens).first(length)));
      }
      Session c = session.fork();
      expect_same_future(fresh, c, int64_t(length), length);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(SessionFile, AnotherProcessAndInstructionSetLoadIt) {
  const auto tokens = some_tokens(300);
  std::vector<float> want;
  {
    const Model model = open(with_kv("int4"));
    Session session = model.session();
    ASSERT_TRUE(session.prefill(tokens));
    ASSERT_TRUE(session.truncate(250));  // without logits now
    ASSERT_TRUE(session.save(file()));
    want = copy_of(*session.decode(7));
  }
  ModelOptions options = with_kv("int4");
  options.compute.isa = "scalar";
  options.context = 260;  // another context is no other model
  const Model model = open(options);
  Session session = model.session();
  const auto note = session.load(file());
  ASSERT_TRUE(note) << note.error().message();
  EXPECT_EQ(*note, "");
  EXPECT_TRUE(session.logits().empty());
  expect_same(*session.decode(7), want);
}

TEST_F(SessionFile, GeneratesTheSameText) {
  const Model model = open(with_kv("int4"));
  GenerateOptions options;
  options.max_tokens = 40;
  options.stop_at_eos = false;
  options.sampler.repeat_penalty = 1.3f;  // its window reaches back into what was saved
  const auto tokens = some_tokens(150);
  Session whole = model.session();
  const auto want = whole.generate(tokens, options);
  Session session = model.session();
  ASSERT_TRUE(session.prefill(std::span(tokens).first(140)));
  ASSERT_TRUE(session.save(file()));
  Session loaded = model.session();
  ASSERT_TRUE(loaded.load(file()));
  const auto got = loaded.generate(std::span(tokens).last(10), options);
  ASSERT_TRUE(want && got);
  EXPECT_EQ(got->tokens, want->tokens);
}

TEST_F(SessionFile, SaysNothingOfOtherSequences) {
  // A page that was another sequence's keeps its keys behind the new one's end: they are not written.
  const Model model = open(with_kv("f16"));
  std::vector<std::string> files;
  for (const bool used : {false, true}) {
    if (used) {
      ASSERT_TRUE(model.session().prefill(some_tokens(64, 3)));
    }
    Session session = model.session();
    ASSERT_TRUE(session.prefill(some_tokens(10)));
    ASSERT_TRUE(session.save(file()));
    files.push_back(read_file(file()));
  }
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(SessionFile, RefusesWhatItIsNot) {
  const Model model = open(with_kv("int4"));
  Session session = model.session();
  ASSERT_TRUE(session.prefill(some_tokens(300)));
  ASSERT_TRUE(session.save(file()));
  const auto refused = [&](const Model& by, ErrorCode code, const std::string& says) {
    Session other = by.session();
    ASSERT_TRUE(other.prefill(some_tokens(3)));
    const auto loaded = other.load(file());
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, code) << loaded.error().message();
    EXPECT_NE(loaded.error().message().find(says), std::string::npos) << loaded.error().message();
    EXPECT_EQ(other.length(), 3);  // as it was
    EXPECT_TRUE(other.decode(1));
  };
  refused(open(with_kv("int8")), ErrorCode::kInvalidArgument, "kv int4");
  refused(open(with_kv("int4", 128)), ErrorCode::kInvalidArgument, "--kv-residual 64");
  ModelOptions options = with_kv("int4");
  options.kv_refresh = 192;
  refused(open(options), ErrorCode::kInvalidArgument, "kv_refresh 0");
  options = with_kv("int4");
  options.kv_demote = "500:int2";
  refused(open(options), ErrorCode::kInvalidArgument, "kv_demote 512:int2");
  options = with_kv("int4");
  options.activation = "f32";
  refused(open(options), ErrorCode::kInvalidArgument, "--act int8");
  options = with_kv("int4");
  options.context = 299;
  refused(open(options), ErrorCode::kInvalidArgument, "at most 299");
  const Scratch elsewhere;
  RandomModelSpec spec = spec_;
  spec.seed = 2;
  testing_model::write_model(elsewhere.path(), spec);
  refused(open_at(elsewhere.path(), with_kv("int4")), ErrorCode::kInvalidArgument, "another model");
  // A file of another version, and one that is no session.
  std::string bytes = read_file(file());
  const size_t at = bytes.find(R"("version":"2")");
  ASSERT_NE(at, std::string::npos);
  for (const char version : {'1', '3'}) {  // 1: values were not transformed
    bytes[at + 11] = version;
    write_file(file(), bytes);
    refused(model, ErrorCode::kUnsupported, std::string("version '") + version + "'");
  }
  write_file(file(), read_file(folder_ / "model.safetensors"));
  refused(model, ErrorCode::kCorrupt, "no session");
  EXPECT_EQ(model.session().load(folder_ / "none").error().code, ErrorCode::kNotFound);
}

TEST_F(SessionFile, RefusesPartsOfAFile) {
  const Model model = open(with_kv("int4"));
  Session session = model.session();
  ASSERT_TRUE(session.prefill(some_tokens(300)));
  ASSERT_TRUE(session.save(file()));
  const std::string whole = read_file(file());
  for (const double part : {0.0, 0.001, 0.01, 0.3, 0.9, 0.999}) {
    write_file(file(), whole.substr(0, size_t(double(whole.size()) * part)));
    const auto loaded = session.load(file());
    ASSERT_FALSE(loaded) << part;
    EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt) << loaded.error().message();
  }
  // Bytes of the header that were changed: refused, or another session, but nothing worse.
  Rng rng(4);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof header);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    bytes[8 + rng.below(header)] = char(rng.below(256));
    write_file(file(), bytes);
    Session other = model.session();
    if (other.load(file())) {
      EXPECT_TRUE(other.decode(1));
    }
  }
  EXPECT_EQ(session.length(), 300);
}

TEST_F(SessionFile, AFailedSaveLeavesTheFile) {
  const Model model = open(with_kv("f16"));
  Session session = model.session();
  ASSERT_TRUE(session.save(file()));  // of no tokens
  EXPECT_EQ(*session.load(file()), "");
  EXPECT_EQ(session.length(), 0);
  ASSERT_TRUE(session.prefill(some_tokens(3)));
  EXPECT_EQ(session.save(folder_.path()).error().code, ErrorCode::kInvalidArgument);  // a directory
  EXPECT_FALSE(session.save(folder_ / "none/session"));
  EXPECT_EQ(session.load(file()).value_or("failed"), "");
  EXPECT_EQ(session.length(), 0);
}

}  // namespace
}  // namespace lowbit
