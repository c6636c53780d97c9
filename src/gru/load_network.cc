// Float networks from arrays with names: npz, directories of npy, safetensors.

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/try.h"
#include "gru/gate_order.h"
#include "io/lost_pages.h"
#include "io/npy.h"
#include "io/posix_file.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;

/// Runs of digits compare as numbers: GRU_99 before GRU_184.
struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const {
    size_t i = 0, j = 0;
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    while (i < a.size() && j < b.size()) {
      if (digit(a[i]) && digit(b[j])) {
        const auto run = [&](const std::string& s, size_t& at) {
          while (at + 1 < s.size() && s[at] == '0' && digit(s[at + 1])) ++at;
          const size_t start = at;
          while (at < s.size() && digit(s[at])) ++at;
          return s.substr(start, at - start);
        };
        const std::string x = run(a, i), y = run(b, j);
        if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
      } else if (a[i] != b[j]) {
        return a[i] < b[j];
      } else {
        ++i;
        ++j;
      }
    }
    return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
  }
};
using Arrays = std::map<std::string, GruArrayView, NaturalLess>;

void add(Arrays& arrays, const std::string& name, NpyArray&& a) {
  GruArrayView v{name, {a.dtype, a.shape, {}}, a.data};
  v.view.data = v.owner.span();
  arrays.emplace(name, std::move(v));
}

Result<Arrays> read_directory(const std::string& path) {
  Arrays arrays;
  LOWBIT_TRY_ASSIGN(const auto names, directory_names(path));
  for (const std::string& name : names) {
    if (fs::path(name).extension() != ".npy") continue;
    LOWBIT_TRY_ASSIGN(NpyArray a, read_npy(path + "/" + name));
    add(arrays, fs::path(name).stem().string(), std::move(a));
  }
  return arrays;
}

Result<Arrays> read_arrays(const std::string& path) {
  if (fs::is_directory(path)) return read_directory(path);
  Arrays arrays;
  if (path.ends_with(".npz")) {
    LOWBIT_TRY_ASSIGN(auto all, read_npz(path));
    for (NpyArray& a : all) add(arrays, std::string(a.name), std::move(a));
    return arrays;
  }
  LOWBIT_TRY_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  for (const SafetensorsEntry& e : file.tensors()) {
    LOWBIT_TRY_ASSIGN(Buffer bytes, file.bytes(e));
    GruArrayView v{e.name, {e.dtype, e.shape, {}}, std::move(bytes)};
    v.view.data = v.owner.span();
    arrays.emplace(e.name, std::move(v));
  }
  return arrays;
}

/// The names of one network under one convention share a prefix.
struct Found {
  std::string prefix;
  int scheme = 0;
};

enum Scheme { kTorch, kShort, kKeras, kTriples };
constexpr std::array<const char*, 3> kMarks = {"weight_ih_l0", "w_ih", "recurrent_kernel"};

std::vector<Found> find_networks(const Arrays& arrays, const std::string& select) {
  std::vector<Found> found;
  for (const auto& [name, array] : arrays) {
    if (!name.starts_with(select)) continue;
    for (int scheme = kTorch; scheme <= kKeras; ++scheme)
      if (const std::string mark = kMarks[static_cast<size_t>(scheme)]; name.ends_with(mark))
        found.push_back({name.substr(0, name.size() - mark.size()), scheme});
  }
  return found;
}

class Reader {
 public:
  Reader(const Arrays& arrays, std::string path) : arrays_(arrays), path_(std::move(path)) {}

  Result<GruNetwork> read(const Found& f) const {
    if (f.scheme == kTorch) return read_torch(f.prefix);
    if (f.scheme == kShort) return read_short(f.prefix);
    return read_keras(f.prefix);
  }

  /// W [D, 3H, C], R [D, 3H, H] and, if it follows, B [D, 6H], in the order of their names.
  Result<GruNetwork> read_triples(const std::string& select) const {
    GruNetwork network;
    std::vector<const GruArrayView*> list;
    for (const auto& [name, array] : arrays_)
      if (name.starts_with(select)) list.push_back(&array);
    const auto rank = [&](size_t i) { return i < list.size() ? list[i]->view.shape.size() : 0; };
    int64_t directions = 0;
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      if (rank(i) != 3 || rank(i + 1) != 3) continue;
      const int64_t d = list[i]->view.shape[0];
      if (d < 1 || d > 2 || (directions != 0 && d != directions))
        return fail(ErrorCode::kShapeMismatch, path_ + ": '" + list[i]->name + "'", shape_string(list[i]->view.shape),
                    "1 or 2 directions, the same in every layer");
      directions = d;
      const bool bias = rank(i + 2) == 2 && list[i + 2]->view.shape[0] == d &&
                        list[i + 2]->view.shape[1] == 2 * list[i]->view.shape[1];
      for (int at = 0; at < d; ++at) {
        LOWBIT_TRY_ASSIGN(GruWeights cell, read_gru_cell({list[i], list[i + 1], bias ? list[i + 2] : nullptr, nullptr,
                                                          kUpdateFirst, false, at, static_cast<int>(d)},
                                                         path_));
        network.cells.push_back(std::move(cell));
      }
      i += bias ? 2 : 1;
    }
    if (network.cells.empty())
      return fail(ErrorCode::kNotFound, path_, "no GRU weights" + (select.empty() ? "" : " under '" + select + "'"),
                  "weight_ih_l0, w_ih, recurrent_kernel, or W [D,3H,C] and R [D,3H,H]");
    network.bidirectional = directions == 2;
    return network;
  }

 private:
  const GruArrayView* find(const std::string& name) const {
    const auto it = arrays_.find(name);
    return it == arrays_.end() ? nullptr : &it->second;
  }
  Result<const GruArrayView*> need(const std::string& name) const {
    if (const GruArrayView* a = find(name)) return a;
    return fail(ErrorCode::kNotFound, path_, "no array '" + name.substr(0, 256) + "'", "all weights of the GRU");
  }

  Result<GruNetwork> read_torch(const std::string& p) const {
    GruNetwork network;
    network.bidirectional = find(p + "weight_ih_l0_reverse") != nullptr;
    for (int layer = 0; find(p + "weight_ih_l" + std::to_string(layer)) != nullptr; ++layer)
      for (const char* suffix : {"", "_reverse"}) {
        if (*suffix != '\0' && !network.bidirectional) continue;
        const std::string tail = "_l" + std::to_string(layer) + suffix;
        LOWBIT_TRY_ASSIGN(const auto* w, need(p + "weight_ih" + tail));
        LOWBIT_TRY_ASSIGN(const auto* r, need(p + "weight_hh" + tail));
        LOWBIT_TRY_ASSIGN(
            GruWeights cell,
            read_gru_cell({w, r, find(p + "bias_ih" + tail), find(p + "bias_hh" + tail), kResetFirst}, path_));
        network.cells.push_back(std::move(cell));
      }
    return network;
  }

  Result<GruNetwork> read_short(const std::string& p) const {
    LOWBIT_TRY_ASSIGN(const auto* w, need(p + "w_ih"));
    LOWBIT_TRY_ASSIGN(const auto* r, need(p + "w_hh"));
    GruNetwork network;
    LOWBIT_TRY_ASSIGN(GruWeights cell, read_gru_cell({w, r, find(p + "b_ih"), find(p + "b_hh"), kResetFirst}, path_));
    network.cells.push_back(std::move(cell));
    return network;
  }

  /// Keras: kernel [C, 3H], bias [2, 3H]; a bias of one row belongs to a reset-before network. haste: the second bias
  /// is an array of its own.
  Result<GruNetwork> read_keras(const std::string& p) const {
    LOWBIT_TRY_ASSIGN(const auto* w, need(p + "kernel"));
    LOWBIT_TRY_ASSIGN(const auto* r, need(p + "recurrent_kernel"));
    const GruArrayView *bias = find(p + "bias"), *second = find(p + "recurrent_bias");
    std::array<GruArrayView, 2> halves;
    if (bias != nullptr && second == nullptr) {
      if (bias->view.shape.size() != 2 || bias->view.shape[0] != 2)
        return fail(ErrorCode::kUnsupported, path_ + ": '" + bias->name + "'", shape_string(bias->view.shape),
                    "[2, 3H]: a network with reset_after=True",
                    "with one bias the reset gate acts before the product, which lowbit does not run");
      for (size_t i = 0; i < 2; ++i) {
        const size_t size = bias->view.data.size() / 2;
        halves[i] = {
            bias->name, {bias->view.dtype, {bias->view.shape[1]}, bias->view.data.subspan(i * size, size)}, {}};
      }
      bias = &halves[0];
      second = &halves[1];
    }
    GruNetwork network;
    LOWBIT_TRY_ASSIGN(GruWeights cell, read_gru_cell({w, r, bias, second, kUpdateFirst, true}, path_));
    network.cells.push_back(std::move(cell));
    return network;
  }

  const Arrays& arrays_;
  std::string path_;
};

Result<GruNetwork> load_any(const std::string& path, const GruLoadOptions& options) {
  if (path.ends_with(".onnx")) return load_onnx_gru(path, options.select);
  LOWBIT_TRY_ASSIGN(const Arrays arrays, read_arrays(path));
  const Reader reader(arrays, path);
  const std::vector<Found> found = find_networks(arrays, options.select);
  if (found.size() > 1) {
    std::string names;
    for (const Found& f : found) names += (names.empty() ? "'" : ", '") + f.prefix.substr(0, 64) + "'";
    return fail(ErrorCode::kInvalidArgument, path, std::to_string(found.size()) + " networks", "one",
                "choose by the prefix of its names: " + names.substr(0, 512));
  }
  GruNetwork network;
  if (found.empty()) {
    LOWBIT_TRY_ASSIGN(network, reader.read_triples(options.select));
  } else {
    LOWBIT_TRY_ASSIGN(network, reader.read(found[0]));
  }
  if (auto status = check_gru(network); !status) {
    Error e = status.error();
    e.where = path + ": " + e.where;
    return tl::unexpected<Error>(std::move(e));
  }
  return network;
}

}  // namespace

Result<GruNetwork> load_gru(const std::string& path, const GruLoadOptions& options) {
  const LostPages lost;
  auto network = load_any(path, options);
  LOWBIT_TRY(lost.status(path));
  return network;
}

}  // namespace lowbit
