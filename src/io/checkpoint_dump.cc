// lowbit_io_dump OUT: a checkpoint with every format, scale and zero kind in OUT/checkpoint, and what dequantize_rows
// makes of each weight in OUT/expected.safetensors. tests/golden/check_read_checkpoint.py compares the example reader
// with it. lowbit_io_dump OUT CHECKPOINT: what dequantize_rows makes of each tensor of that checkpoint, in
// OUT/expected.safetensors.
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "io/test_files.h"

namespace {

using namespace lowbit;  // NOLINT

std::map<std::string, QTensor> all_weights() {
  Rng rng(5);
  std::map<std::string, QTensor> out;
  const std::pair<int64_t, int64_t> blocks[] = {{1, 0},  {0, 0},  {1, 32},  {1, 3},
                                                {4, 64}, {-1, 0}, {-1, 48}, {128, 128}};
  int i = 0;
  for (const auto& info : formats()) {
    if (!info.canonical) continue;
    for (int scale = 0; scale < 5; ++scale)
      for (int zero = 0; zero < 4; ++zero, ++i) {
        const Scaling s{blocks[i % 8].first, blocks[i % 8].second, static_cast<ScaleKind>(scale),
                        static_cast<ZeroKind>(zero)};
        out["l." + std::to_string(i) + ".weight"] = testing_io::random_qtensor(rng, info.id, 9, 64 + i % 37, s);
        if (info.kind == ValueKind::kDense) scale = zero = 5;  // one of each is enough
      }
  }
  return out;
}

Status dump_reals(const std::string& directory, std::vector<SafetensorsDecl> decls,
                  const std::function<Result<QTensor>(const std::string&)>& load) {
  const auto names = decls;
  auto expected = SafetensorsWriter::create(directory + "/expected.safetensors", std::move(decls), {});
  if (!expected) return tl::unexpected<Error>(expected.error());
  for (const auto& decl : names) {
    const auto w = load(decl.name);
    if (!w) return tl::unexpected<Error>(w.error());
    std::vector<float> real(static_cast<size_t>(w->n * w->k));
    dequantize_rows(*w, 0, w->n, real.data());
    if (auto written = (*expected)->append(std::as_bytes(std::span(real))); !written) return written;
  }
  return (*expected)->finish();
}

Status dump(const std::string& directory) {
  const auto weights = all_weights();
  auto checkpoint = CheckpointWriter::create(directory + "/checkpoint", {.overwrite = true});
  if (!checkpoint) return tl::unexpected<Error>(checkpoint.error());
  std::vector<SafetensorsDecl> decls;
  for (const auto& [name, w] : weights) {
    decls.push_back({name, DType::kF32, {w.n, w.k}});
    if (auto added = (*checkpoint)->add(name, w, {w.n, w.k}); !added) return added;
  }
  if (auto bytes = (*checkpoint)->finish({}); !bytes) return tl::unexpected<Error>(bytes.error());
  return dump_reals(directory, std::move(decls),
                    [&](const std::string& name) { return Result<QTensor>(weights.at(name)); });
}

Status dump_checkpoint(const std::string& directory, const std::string& path) {
  const auto checkpoint = Checkpoint::open(path);
  if (!checkpoint) return tl::unexpected<Error>(checkpoint.error());
  std::vector<SafetensorsDecl> decls;
  for (const auto& t : checkpoint->tensors()) decls.push_back({t.name, DType::kF32, t.shape});
  return dump_reals(directory, std::move(decls), [&](const std::string& name) { return checkpoint->load(name); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  std::filesystem::create_directories(argv[1]);
  const auto done = argc == 3 ? dump_checkpoint(argv[1], argv[2]) : dump(argv[1]);
  if (!done) std::fprintf(stderr, "error: %s\n", done.error().message().c_str());
  return done ? 0 : 1;
}
