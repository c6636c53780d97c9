// Truncated and mutated files: always an error or a right answer, never a crash, a hang or memory beyond the file's
// size.
#include <sys/resource.h>

#include <chrono>
#include <filesystem>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/gguf_test_files.h"
#include "io/json_text.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

/// Reads all that a file that opens has to give. True when everything succeeded.
bool use_safetensors(const std::string& path) {
  const auto f = SafetensorsFile::open(path);
  if (!f) return false;
  for (const auto& e : f->tensors()) {
    const auto b = f->bytes(e);
    volatile uint8_t sink = 0;
    if (b && !b->empty()) sink = b->as<uint8_t>()[b->size() - 1];
    (void)sink;
  }
  return true;
}

bool use_gguf(const std::string& path) {
  const auto f = GgufFile::open(path);
  if (!f) return false;
  for (const auto& [key, value] : f->metadata()) {
    (void)value.as_int();
    (void)value.as_double();
    (void)value.as_strings();
    (void)value.as_ints();
    (void)value.as_floats();
  }
  bool ok = true;
  for (const auto& t : f->tensors()) {
    const auto w = f->load(t);
    ok = ok && w.has_value();
    if (!w || w->n * w->k > 1 << 20) continue;
    std::vector<float> out(static_cast<size_t>(w->n * w->k));
    dequantize_rows(*w, 0, w->n, out.data());
  }
  return ok;
}

std::string sample_safetensors(const Scratch& dir) {
  Rng rng(2);
  auto w = SafetensorsWriter::create(
      dir / "sample", {{"a", DType::kF32, {4, 5}}, {"bb", DType::kF16, {7}}, {"c", DType::kU8, {100}}}, {{"k", "v"}});
  EXPECT_TRUE((*w)->append(random_buffer(rng, 80 + 14 + 100).span()));
  EXPECT_TRUE((*w)->finish());
  return read_file(dir / "sample");
}

void expect_truncations_refused(const std::string& good, bool (*use)(const std::string&),
                                const std::vector<size_t>& borders) {
  Scratch dir;
  const std::string path = dir / "cut";
  write_file(path, good);
  ASSERT_TRUE(use(path));
  Rng rng(3);
  std::vector<size_t> cuts;
  for (const size_t b : borders)
    for (const size_t cut : {b - 1, b, b + 1})
      if (cut < good.size()) cuts.push_back(cut);
  for (int i = 0; i < 1000; ++i) cuts.push_back(rng.below(good.size()));
  for (const size_t cut : cuts) {
    write_file(path, good.substr(0, cut));
    EXPECT_FALSE(use(path)) << "cut at " << cut << " of " << good.size();
  }
}

/// Headers with a few bytes, numbers or runs changed. They may be wrong or, rarely, still right.
void expect_mutations_survive(const std::string& good, size_t header, bool (*use)(const std::string&)) {
  Scratch dir;
  Rng rng(4);
  const uint64_t numbers[] = {
      0, 1, 2, 0x7f, 0xff, 1u << 31, uint64_t{1} << 32, (uint64_t{1} << 42) + 1, uint64_t{1} << 63, UINT64_MAX};
  int refused = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 500; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) {
      const size_t at = rng.below(std::min(header, bad.size()));
      const uint64_t kind = rng.below(5);
      if (kind == 0) bad[at] = static_cast<char>(bad[at] ^ (1 << rng.below(8)));
      if (kind == 1) bad[at] = static_cast<char>(rng.below(256));
      if (kind == 2)
        bad.replace(at, std::min<size_t>(8, bad.size() - at),
                    raw(numbers[rng.below(10)]).substr(0, std::min<size_t>(8, bad.size() - at)));
      if (kind == 3) bad.erase(at, 1 + rng.below(8));
      if (kind == 4) bad.insert(at, bad.substr(rng.below(std::min(header, bad.size())), rng.below(16)));
    }
    write_file(dir / "bad", bad);
    refused += !use(dir / "bad");
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(refused, 300);
  EXPECT_LT(seconds, 500 * 0.05) << "at most 50 ms each";
}

TEST(HostileFiles, Safetensors) {
  Scratch dir;
  const std::string good = sample_safetensors(dir);
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  const size_t data = 8 + header;
  expect_truncations_refused(good, use_safetensors, {8, data, data + 80, data + 94, good.size()});
  expect_mutations_survive(good, data, use_safetensors);
}

TEST(HostileFiles, Gguf) {
  GgufTestFile file = small_gguf();
  const std::string good = file.bytes();
  expect_truncations_refused(good, use_gguf, file.borders);
  expect_mutations_survive(good, file.borders[3 + 5 + 6], use_gguf);
}

TEST(HostileFiles, CheckpointConfigAndWeights) {
  Scratch dir;
  Rng rng(6);
  auto writer = CheckpointWriter::create(dir / "c");
  ASSERT_TRUE(writer);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE((*writer)->add(
        "l." + std::to_string(i) + ".weight",
        random_qtensor(rng, FormatId::kCodebook4, 4, 70, {-1, 32, ScaleKind::kDouble, ZeroKind::kOffset}), {4, 70}));
  ASSERT_TRUE((*writer)->finish({}));
  static std::string directory, target;  // for the plain function below
  directory = dir / "c";
  const auto use = [](const std::string& path) {
    std::filesystem::rename(path, target);
    const auto c = Checkpoint::open(directory);
    if (!c) return false;
    bool ok = true;
    for (const auto& t : c->tensors()) {
      const auto w = c->load(t.name);
      ok = ok && w.has_value();
      if (!w) continue;
      std::vector<float> out(static_cast<size_t>(w->n * w->k));
      dequantize_rows(*w, 0, w->n, out.data());
    }
    return ok && c->tensors().size() == 3;
  };
  target = directory + "/config.json";
  const std::string config = read_file(target);
  expect_truncations_refused(config.substr(0, config.find_last_of('}') + 1), use, {1});
  expect_mutations_survive(config, config.size(), use);
  write_file(target, config);
  target = directory + "/model.safetensors";
  const std::string weights = read_file(target);
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), 8);
  expect_truncations_refused(weights, use, {8, 8 + header});
  expect_mutations_survive(weights, 8 + header, use);
}

TEST(HostileFiles, MemoryStaysNearTheFileSize) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  Scratch dir;
  std::string header = "{";
  for (int i = 0; i < 40000; ++i)
    header += "\"t" + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[" + std::string(i % 2 ? "1" : "1,1") +
              "],\"data_offsets\":[" + std::to_string(i) + "," + std::to_string(i + 1) + "]},";
  header.back() = '}';
  const std::vector<std::pair<std::string, std::string>> files = {
      {"deep", safetensors_bytes("{\"a\":" + std::string(20'000'000, '['), 0)},
      {"string", safetensors_bytes("{\"" + std::string(20'000'000, 'x') + "\":1}", 0)},
      {"shape", safetensors_bytes(
                    "{\"a\":{\"shape\":[1" +
                        [] {
                          std::string s;
                          for (int i = 0; i < 5'000'000; ++i) s += ",1";
                          return s;
                        }() +
                        "]}}",
                    0)},
      {"many", safetensors_bytes(header, 39999)},
      {"keys", "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(1'000'000) + std::string(20'000'000, '\0')},
      {"tensors",
       "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(500'000) + raw<uint64_t>(0) + std::string(20'000'000, '\x01')},
  };
  for (const auto& [name, bytes] : files) {
    write_file(dir / name, bytes);
    struct rusage before {
    }, after{};
    getrusage(RUSAGE_SELF, &before);
    EXPECT_FALSE(use_safetensors(dir / name)) << name;
    EXPECT_FALSE(use_gguf(dir / name)) << name;
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LE((after.ru_maxrss - before.ru_maxrss) * 1024, static_cast<int64_t>(bytes.size()) + (64 << 20)) << name;
  }
}

// A tree takes up to a hundred times its text: what would is refused before it is built.
TEST(HostileFiles, JsonOfManySmallValuesTakesLittleMemory) {
  const auto repeated = [](const std::string& part) {
    std::string s = "{\"x\": [";
    while (s.size() < 10'000'000) s += part;
    return s + "1]}";
  };
  for (const char* part : {"[],", "{},", "1,", "\"\",", "{\"\":0},", "[1,2],"}) {
    const std::string text = repeated(part);
    struct rusage before {
    }, after{};
    getrusage(RUSAGE_SELF, &before);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(parse_json_object(text, "config.json", {.text_bytes = size_t{32} << 20})) << part;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << part;
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LE((after.ru_maxrss - before.ru_maxrss) * 1024, static_cast<int64_t>(text.size()) + (256 << 20)) << part;
  }
  // A plausible object: a layer of a checkpoint has some ten values.
  std::string layers = "{\"layers\": [";
  for (int i = 0; i < 20'000; ++i)
    layers += R"({"name": "a.b", "format": "int4", "group": 64, "scale": "f16", "n": 1, "k": 2},)";
  EXPECT_TRUE(parse_json_object(layers + "{}]}", "config.json", {.text_bytes = size_t{32} << 20}));
}

TEST(HostileFiles, ShortenedWhileItIsOpenIsAnErrorOfTheNextTensor) {
  Scratch dir;
  // Large enough to be mapped: a small file is copied when it is opened.
  write_file(dir / "a", safetensors_bytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                                          R"("b":{"dtype":"F32","shape":[250000],"data_offsets":[16,1000016]}})",
                                          1000016));
  const auto f = SafetensorsFile::open(dir / "a");
  ASSERT_TRUE(f);
  const auto& first = f->tensors().front();
  const auto& last = f->tensors().back();
  ASSERT_TRUE(f->bytes(last));
  std::filesystem::resize_file(dir / "a", std::filesystem::file_size(dir / "a") - 1);
  EXPECT_TRUE(f->bytes(first)) << "still whole";
  const auto gone = f->bytes(last);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(gone.error().message().find("shortened"), std::string::npos) << gone.error().message();
  // A file that is renamed over is another one: what is open stays whole.
  (void)sample_safetensors(dir);
  const auto g = SafetensorsFile::open(dir / "sample");
  ASSERT_TRUE(g);
  write_file(dir / "short", "x");
  std::filesystem::rename(dir / "short", dir / "sample");
  EXPECT_TRUE(g->bytes(g->tensors().back()));
}

}  // namespace
}  // namespace lowbit
