#include "io/checkpoint.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include "io/json_text.h"
#include "io/safetensors.h"
#include "io/test_files.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT
namespace fs = std::filesystem;

/// Every canonical format with every kind of scale, zero and block that it may have.
std::map<std::string, QTensor> all_kinds() {
  Rng rng(11);
  std::map<std::string, QTensor> out;
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{1, 0},  {0, 0},  {1, 32},  {1, 48},
                                                           {4, 64}, {-1, 0}, {-1, 32}, {128, 128}};
  int number = 0;
  for (const auto& info : formats()) {
    if (!info.canonical) continue;
    if (info.kind == ValueKind::kDense) {
      out["dense." + std::string(info.name) + ".weight"] = random_qtensor(rng, info.id, 3, 37, {});
      continue;
    }
    for (int scale = 0; scale < 5; ++scale)
      for (int zero = 0; zero < 4; ++zero) {
        const auto [n_block, k_block] = blocks[static_cast<size_t>(number) % blocks.size()];
        const int64_t k = 64 + number % 37;  // short last groups, odd bits
        out["layers." + std::to_string(number++) + "." + info.name + ".weight"] = random_qtensor(
            rng, info.id, 9, k, {n_block, k_block, static_cast<ScaleKind>(scale), static_cast<ZeroKind>(zero)});
      }
  }
  return out;
}

void expect_same(const QTensor& a, const QTensor& b, const std::string& name) {
  EXPECT_EQ(a.format, b.format) << name;
  EXPECT_EQ(a.n, b.n) << name;
  EXPECT_EQ(a.k, b.k) << name;
  EXPECT_EQ(a.scaling, b.scaling) << name;
  EXPECT_TRUE(same_bytes(a.codes, b.codes)) << name;
  EXPECT_TRUE(same_bytes(a.scales, b.scales)) << name;
  EXPECT_TRUE(same_bytes(a.zeros, b.zeros)) << name;
  EXPECT_TRUE(same_bytes(a.super_scales, b.super_scales)) << name;
  EXPECT_EQ(a.codebook, b.codebook) << name;
  EXPECT_EQ(a.row_ends, b.row_ends) << name;
}

Result<int64_t> write_all_kinds(const std::string& path, const CheckpointOptions& options = {}) {
  auto writer = CheckpointWriter::create(path, options);
  if (!writer) return tl::unexpected<Error>(writer.error());
  for (const auto& [name, w] : all_kinds()) {
    const auto added = (*writer)->add(name, w, {w.n, w.k});
    if (!added) return tl::unexpected<Error>(added.error());
  }
  EXPECT_TRUE((*writer)->add_file("tokenizer.json", "{}"));
  return (*writer)->finish({.config_json = R"({"model_type":"llama"})",
                            .fit_json = R"({"method":"lsq","seed":0})",
                            .rel_error = {{"layers.0.int8", 0.25}}});
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(path)) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Checkpoint, EveryFormatAndScalingReadsBackBitForBit) {
  Scratch dir;
  for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{20000}}) {
    const std::string path = dir / ("c" + std::to_string(shard_bytes));
    const auto bytes = write_all_kinds(path, {.shard_bytes = shard_bytes});
    ASSERT_TRUE(bytes) << bytes.error().message();
    EXPECT_EQ(fs::exists(path + "/model.safetensors"), shard_bytes > 100000);
    EXPECT_EQ(fs::exists(path + "/model.safetensors.index.json"), shard_bytes < 100000);
    int64_t on_disk = 0;
    for (const auto& e : fs::directory_iterator(path)) on_disk += static_cast<int64_t>(e.file_size());
    EXPECT_EQ(*bytes, on_disk);
    const auto c = Checkpoint::open(path);
    ASSERT_TRUE(c) << c.error().message();
    const auto kinds = all_kinds();
    ASSERT_EQ(c->tensors().size(), kinds.size());
    EXPECT_GT(kinds.size(), 200u);
    for (const auto& [name, w] : kinds) {
      const auto back = c->load(name);
      ASSERT_TRUE(back) << back.error().message();
      expect_same(w, *back, name);
      EXPECT_EQ(c->find(name)->shape, (Shape{w.n, w.k}));
      c->release(name);
    }
    EXPECT_EQ(c->load("layers.0").error().code, ErrorCode::kNotFound);
    const auto report = verify_checkpoint(path);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->problems.empty()) << report->problems.front();
    EXPECT_GT(report->tensors, 600);
  }
  EXPECT_EQ(names_in(dir.path()).size(), 2u) << "nothing temporary is left";
}

TEST(Checkpoint, ConfigSaysWhatTheLayersAre) {
  Scratch dir;
  Rng rng(3);
  auto writer = CheckpointWriter::create(dir / "c");
  ASSERT_TRUE(writer);
  const Scaling g64{1, 64, ScaleKind::kF16, ZeroKind::kNone};
  for (int i = 0; i < 3; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    ASSERT_TRUE(
        (*writer)->add(layer + ".mlp.up_proj.weight", random_qtensor(rng, FormatId::kInt2, 4, 128, g64), {4, 128}));
    ASSERT_TRUE((*writer)->add(layer + ".mlp.down_proj.weight",
                               random_qtensor(rng, i == 1 ? FormatId::kInt8 : FormatId::kInt2, 4, 128, g64), {4, 128}));
    ASSERT_TRUE((*writer)->add(layer + ".norm.weight", random_qtensor(rng, FormatId::kF32, 1, 128, {}), {128}));
  }
  ASSERT_TRUE((*writer)->add("lm_head.weight", random_qtensor(rng, FormatId::kBf16, 4, 128, {}), {4, 128}));
  ASSERT_TRUE(
      (*writer)->finish({.config_json = R"({"hidden_size":128,"quantization_config":{"quant_method":"old"}})"}));
  const auto config = parse_json_object(read_file(dir / "c/config.json"), "config");
  ASSERT_TRUE(config);
  EXPECT_EQ((*config)["hidden_size"], 128);
  const auto& q = (*config)["quantization_config"];
  EXPECT_EQ(q["quant_method"], "lowbit");
  EXPECT_EQ(q["format_version"], 1);
  EXPECT_EQ(q["ignore"], nlohmann::json({"lm_head"}));
  const auto& group = q["config_groups"][q["layers"]["model.layers.0.mlp.up_proj"].get<std::string>()];
  EXPECT_EQ(group["format"], "int2");
  EXPECT_EQ(group["group_size"], 64);
  EXPECT_EQ(group["zero_point"], false);
  EXPECT_EQ(group["targets"], nlohmann::json({"model.layers.0.mlp.down_proj", "model.layers.2.mlp.down_proj",
                                              "re:model\\.layers\\.\\d+\\.mlp\\.up_proj"}));
}

TEST(Checkpoint, TransformsAtRunTimeRaiseTheVersion) {
  Scratch dir;
  Rng rng(4);
  const auto written = [&](const char* quantization_config) {
    auto writer = CheckpointWriter::create(dir / "c", {.overwrite = true});
    EXPECT_TRUE((*writer)->add("lm_head.weight", random_qtensor(rng, FormatId::kBf16, 4, 128, {}), {4, 128}));
    EXPECT_TRUE(
        (*writer)->finish({.config_json = std::string(R"({"quantization_config":)") + quantization_config + "}"}));
    EXPECT_TRUE(Checkpoint::open(dir / "c"));
    return (*parse_json_object(read_file(dir / "c/config.json"), "config"))["quantization_config"];
  };
  const auto turned = written(R"({"quant_method":"lowbit","format_version":2,"online_hadamard":{"mlp.down_proj":64}})");
  EXPECT_EQ(turned["format_version"], 2);
  EXPECT_EQ(turned["online_hadamard"], nlohmann::json({{"mlp.down_proj", 64}}));
  for (const char* plain : {R"({"quant_method":"lowbit","format_version":1})",
                            R"({"quant_method":"other","online_hadamard":{"mlp.down_proj":64}})"}) {
    const auto q = written(plain);
    EXPECT_EQ(q["format_version"], 1);
    EXPECT_FALSE(q.contains("online_hadamard"));
  }
}

TEST(Checkpoint, RefusesWhatItMustNotTouch) {
  Scratch dir;
  ASSERT_TRUE(write_all_kinds(dir / "c"));
  EXPECT_EQ(CheckpointWriter::create(dir / "c").error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(write_all_kinds(dir / "c", {.overwrite = true}));
  EXPECT_TRUE(Checkpoint::open(dir / "c"));
  fs::create_directory(dir / "empty");
  ASSERT_TRUE(write_all_kinds(dir / "empty")) << "an empty directory may be filled";
  fs::create_directory(dir / "other");
  write_file(dir / "other/thesis.txt", "years of work");
  EXPECT_FALSE(CheckpointWriter::create(dir / "other", {.overwrite = true}));
  write_file(dir / "c/thesis.tex", "years of work");
  EXPECT_FALSE(CheckpointWriter::create(dir / "c", {.overwrite = true}));
  write_file(dir / "file", "x");
  EXPECT_FALSE(CheckpointWriter::create(dir / "file", {.overwrite = true}));
  EXPECT_FALSE(CheckpointWriter::create(dir / "no/such/parent"));
  EXPECT_FALSE(CheckpointWriter::create(""));
  EXPECT_EQ(read_file(dir / "other/thesis.txt"), "years of work");
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"c", "empty", "file", "other"}));
}

TEST(Checkpoint, WriterRefusesBadTensorsAndLeavesNothing) {
  Scratch dir;
  Rng rng(5);
  {
    auto writer = CheckpointWriter::create(dir / "c");
    ASSERT_TRUE(writer);
    QTensor w = random_qtensor(rng, FormatId::kInt4, 4, 64, {1, 32, ScaleKind::kF16, ZeroKind::kNone});
    EXPECT_FALSE((*writer)->add("a.weight", w, {64, 4}));
    EXPECT_FALSE((*writer)->add("a.bias", w, {4, 64})) << "a quantized tensor must be a .weight";
    EXPECT_FALSE((*writer)->add_file("../x", ""));
    EXPECT_FALSE((*writer)->add_file("config.json", ""));
    ASSERT_TRUE((*writer)->add("a.weight", w, {4, 64}));
    EXPECT_FALSE((*writer)->add("a.weight", w, {4, 64})) << "twice";
    EXPECT_FALSE((*writer)->finish({})) << "an error before means no checkpoint";
  }
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(Checkpoint, ReaderNamesWhatIsWrong) {
  Scratch dir;
  ASSERT_TRUE(write_all_kinds(dir / "c"));
  const std::string config = read_file(dir / "c/config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write_file(dir / "c/config.json", text);
    const auto c = Checkpoint::open(dir / "c");
    EXPECT_FALSE(c);
    EXPECT_FALSE(verify_checkpoint(dir / "c")->problems.empty());
    return c ? Error{} : c.error();
  };
  const Error newer = with("\"format_version\": 1", "\"format_version\": 3");
  EXPECT_EQ(newer.code, ErrorCode::kUnsupported);
  EXPECT_NE(newer.message().find("newer lowbit"), std::string::npos);
  // An older reader would take it for a plain model.
  EXPECT_EQ(with("\"quant_method\":", R"("online_hadamard": {"mlp.down_proj": 2}, "quant_method":)").code,
            ErrorCode::kCorrupt);
  const Error unknown = with("\"format\": \"int8\"", "\"format\": \"int7\"");
  EXPECT_EQ(unknown.code, ErrorCode::kUnsupported);
  EXPECT_NE(unknown.message().find("int7"), std::string::npos);
  EXPECT_EQ(with("\"quant_method\": \"lowbit\"", "\"quant_method\": \"gptq\"").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(with("\"scale_dtype\": \"float32\"", "\"scale_dtype\": \"float33\"").code, ErrorCode::kUnsupported);
  EXPECT_EQ(with("\"group_size\": 32", "\"group_size\": 16").code, ErrorCode::kCorrupt);
  EXPECT_EQ(with("\"group_size\": 32", "\"group_size\": -2").code, ErrorCode::kCorrupt);
  EXPECT_EQ(with("\"layers.0.int8\": \"group_", "\"layers.999.int8\": \"group_").code, ErrorCode::kNotFound);
  EXPECT_EQ(with("{", "").code, ErrorCode::kCorrupt);
  // A group of 49 may need as many scales as one of 48, so only the note beside the codes tells that it is not what was
  // written.
  EXPECT_EQ(with("\"group_size\": 48", "\"group_size\": 49").code, ErrorCode::kCorrupt);
  write_file(dir / "c/config.json", config);
  EXPECT_TRUE(Checkpoint::open(dir / "c"));
  fs::remove(dir / "c/model.safetensors");
  EXPECT_EQ(Checkpoint::open(dir / "c").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(verify_checkpoint(dir / "absent"));
}

/// One weight of ones or twos, in as many files as `shard_bytes` gives.
void write_generation(const std::string& path, float value, int64_t shard_bytes = int64_t{1} << 40) {
  auto writer = CheckpointWriter::create(path, {.overwrite = true, .shard_bytes = shard_bytes});
  ASSERT_TRUE(writer);
  for (const char* name : {"a.weight", "b.weight"}) {
    QTensor w;
    w.n = 1;
    w.k = 4;
    w.codes = *Buffer::allocate(16, "test");
    for (int i = 0; i < 4; ++i) w.codes.as<float>()[i] = value;
    ASSERT_TRUE((*writer)->add(name, w, {4}));
  }
  ASSERT_TRUE((*writer)->finish({.config_json = "{\"value\": " + std::to_string(static_cast<int>(value)) + "}"}));
}

TEST(Checkpoint, FilesOfTwoGenerationsAreNeverReadAsOne) {
  Scratch dir;
  for (const int64_t shard_bytes : {int64_t{1} << 40, int64_t{16}}) {
    write_generation(dir / "one", 1, shard_bytes);
    write_generation(dir / "again", 1, shard_bytes);
    write_generation(dir / "two", 2, shard_bytes);
    EXPECT_EQ(read_file(dir / "one/config.json"), read_file(dir / "again/config.json"))
        << "the same content, the same files";
    for (const auto& file : fs::directory_iterator(dir / "two")) {
      const std::string name = file.path().filename().string();
      if (name.ends_with("index.json")) continue;  // the same names in the same files
      ASSERT_TRUE(Checkpoint::open(dir / "one"));
      fs::copy_file(file.path(), dir / ("one/" + name), fs::copy_options::overwrite_existing);
      const auto mixed = Checkpoint::open(dir / "one");
      ASSERT_FALSE(mixed) << name;
      EXPECT_EQ(mixed.error().code, ErrorCode::kCorrupt);
      EXPECT_NE(mixed.error().message().find("generation"), std::string::npos) << mixed.error().message();
      fs::copy_file(dir / ("again/" + name), dir / ("one/" + name), fs::copy_options::overwrite_existing);
    }
  }
}

TEST(Checkpoint, VerifyFindsEveryFlippedBit) {
  Scratch dir;
  Rng rng(17), data_rng(18);
  auto writer = CheckpointWriter::create(dir / "c");
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->add(
      "a.weight", random_qtensor(data_rng, FormatId::kInt3, 16, 67, {1, 32, ScaleKind::kF16, ZeroKind::kPointI8}),
      {16, 67}));
  ASSERT_TRUE((*writer)->add("b.weight", random_qtensor(data_rng, FormatId::kBf16, 1, 67, {}), {67}));
  ASSERT_TRUE((*writer)->finish({}));
  const std::string good = read_file(dir / "c/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    const size_t at = 8 + header + rng.below(bad.size() - 8 - header);
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng.below(8)));
    write_file(dir / "c/model.safetensors", bad);
    const auto report = verify_checkpoint(dir / "c");
    ASSERT_TRUE(report);
    EXPECT_FALSE(report->problems.empty()) << "byte " << at;
  }
}

TEST(Checkpoint, KilledWriterLeavesTheTargetAbsentOldOrComplete) {
  Scratch dir;
  Rng rng(23);
  int complete = 0;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)write_all_kinds(dir / "c", {.overwrite = true, .shard_bytes = 20000});
      _exit(0);
    }
    usleep(static_cast<useconds_t>(rng.below(i < 25 ? 20000 : 200000)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (!fs::exists(dir / "c")) continue;
    ++complete;
    const auto report = verify_checkpoint(dir / "c");
    ASSERT_TRUE(report);
    ASSERT_TRUE(report->problems.empty()) << report->problems.front();
  }
  ASSERT_TRUE(write_all_kinds(dir / "c", {.overwrite = true}));
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"c"}) << "what the killed ones left is cleaned up";
  RecordProperty("complete", complete);
}

TEST(Checkpoint, FullDiskIsOneErrorAndLeavesNothing) {
  Scratch dir;
  // A file size limit stands in for a full disk: write() fails in the middle, without special rights.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit {
      30000, 30000
    };
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto result = write_all_kinds(dir / "c");
    _exit(!result && result.error().code == ErrorCode::kIo ? 42 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
  EXPECT_TRUE(names_in(dir.path()).empty());
}

}  // namespace
}  // namespace lowbit
