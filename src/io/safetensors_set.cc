// Sharded safetensors: the index and the view of all shards as one.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/try.h"
#include "io/json_text.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;

using WeightMap = std::vector<std::pair<std::string, std::string>>;  // tensor, shard

/// {"metadata": anything, "weight_map": {name: file}}; nothing but the map is kept.
class IndexSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  WeightMap weight_map;
  bool has_map = false;
  std::string problem;

  bool start_object(size_t) override {
    if (depth_ == 1) in_map_ = key_ == "weight_map";
    if (depth_ >= 2 && in_map_) return bad("an object inside weight_map");
    if (depth_ == 1 && in_map_) {
      if (has_map) return bad("weight_map twice");
      has_map = true;
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0 || in_map_) return bad("an array where it does not belong");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ <= 2) key_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (in_map_) weight_map.emplace_back(key_, text);
    return depth_ > 0 || bad("a string");
  }
  bool number_unsigned(number_unsigned_t) override { return plain(); }
  bool number_integer(number_integer_t) override { return plain(); }
  bool number_float(number_float_t, const string_t&) override { return plain(); }
  bool null() override { return plain(); }
  bool boolean(bool) override { return plain(); }
  bool binary(binary_t&) override { return plain(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (problem.empty()) problem = "text that is not JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool plain() { return (depth_ > 0 && !in_map_) || bad("a value that is not a file name in weight_map"); }
  bool bad(const char* what) {
    problem = what;
    return false;
  }
  int depth_ = 0;
  bool in_map_ = false;
  std::string key_;
};

/// A plain name inside the directory: nothing that could lead elsewhere.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

/// By tensor; each tensor once, each shard a plain file name.
Result<WeightMap> read_weight_map(const std::string& index) {
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(index, kMaxIndexBytes));
  LOWBIT_TRY(check_json_limits(text, index,
                               {.depth = 16, .string_bytes = size_t{1} << 20, .text_bytes = size_t{kMaxIndexBytes}}));
  IndexSax sax;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &sax) || !sax.has_map)
    return fail(ErrorCode::kCorrupt, index, sax.problem.empty() ? "no weight_map" : sax.problem,
                "{\"weight_map\": {tensor: file}}");
  WeightMap& map = sax.weight_map;
  for (const auto& [tensor, shard] : map)
    if (!is_plain_file_name(shard))
      return fail(ErrorCode::kCorrupt, index + ": tensor '" + tensor + "'", "the shard '" + shard.substr(0, 128) + "'",
                  "a plain file name in the same directory");
  std::sort(map.begin(), map.end());
  const auto twice =
      std::adjacent_find(map.begin(), map.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != map.end())
    return fail(ErrorCode::kCorrupt, index, "the tensor '" + twice->first + "' twice", "each name once");
  return std::move(map);
}

Result<SafetensorsFile> open_shard(const std::string& directory, const std::string& shard, const std::string& index) {
  auto file = SafetensorsFile::open(directory + "/" + shard);
  if (!file && file.error().code == ErrorCode::kNotFound)
    return fail(ErrorCode::kNotFound, index, "no shard '" + shard + "'", "every file of weight_map",
                "download the missing file");
  return file;
}

}  // namespace

Result<SafetensorsSet> SafetensorsSet::open(const std::string& directory) {
  SafetensorsSet set;
  set.files_ = std::make_shared<std::vector<SafetensorsFile>>();
  const std::string single = directory + "/model.safetensors", index = single + ".index.json";
  if (exists(index)) {
    LOWBIT_TRY_ASSIGN(const WeightMap weight_map, read_weight_map(index));
    std::map<std::string, size_t> place;  // of each shard in files_
    for (const auto& [tensor, shard] : weight_map) place.emplace(shard, 0);
    for (auto& [shard, at] : place) {
      at = set.files_->size();
      LOWBIT_TRY_ASSIGN(auto file, open_shard(directory, shard, index));
      set.files_->push_back(std::move(file));
    }
    for (const auto& [tensor, shard] : weight_map) {
      const SafetensorsFile& file = (*set.files_)[place.at(shard)];
      const SafetensorsEntry* entry = file.find(tensor);
      if (entry == nullptr)
        return fail(ErrorCode::kNotFound, index, "no tensor '" + tensor + "' in " + shard,
                    "the tensors that weight_map names");
      set.tensors_.push_back({&file, entry});
    }
  } else if (exists(single)) {
    LOWBIT_TRY_ASSIGN(auto file, SafetensorsFile::open(single));
    set.files_->push_back(std::move(file));
    for (const auto& e : set.files_->front().tensors()) set.tensors_.push_back({&set.files_->front(), &e});
  } else {
    const bool pickled =
        exists(directory + "/pytorch_model.bin") || exists(directory + "/pytorch_model.bin.index.json");
    return fail(ErrorCode::kNotFound, directory, "neither model.safetensors nor model.safetensors.index.json",
                "a directory with safetensors weights",
                pickled ? "pickled weights are never read; transformers' save_pretrained writes safetensors" : "");
  }
  std::sort(set.tensors_.begin(), set.tensors_.end(),
            [](const Located& a, const Located& b) { return a.entry->name < b.entry->name; });
  return set;
}

const SafetensorsSet::Located* SafetensorsSet::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Located& t, std::string_view n) { return t.entry->name < n; });
  return it == tensors_.end() || it->entry->name != name ? nullptr : &*it;
}

Result<Buffer> SafetensorsSet::bytes(std::string_view name) const {
  const Located* t = find(name);
  if (t == nullptr) return fail(ErrorCode::kNotFound, "tensor '" + std::string(name) + "'", "no such tensor");
  return t->file->bytes(*t->entry);
}

}  // namespace lowbit
