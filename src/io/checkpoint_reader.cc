#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "base/try.h"
#include "io/checkpoint.h"
#include "io/checkpoint_layout.h"
#include "io/json_text.h"
#include "io/lost_pages.h"

namespace lowbit {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{32} << 20;

Result<json> read_config(const std::string& directory, std::string* text) {
  const std::string path = directory + "/config.json";
  LOWBIT_TRY_ASSIGN(*text, read_text_file(path, kMaxConfigBytes));
  return parse_json_object(*text, path, {.depth = 32, .text_bytes = size_t{kMaxConfigBytes}});
}

Status check_version(const json& q, const std::string& where) {
  const auto version = json_int(q, "format_version");
  if (!version || *version < 1)
    return fail(ErrorCode::kCorrupt, where + ".format_version",
                q.contains("format_version") ? json_dump(q["format_version"]).substr(0, 64) : "nothing",
                "a positive number");
  if (*version > kCheckpointVersion)
    return fail(ErrorCode::kUnsupported, where + ".format_version", std::to_string(*version),
                "at most " + std::to_string(kCheckpointVersion),
                "this checkpoint was written by a newer lowbit (" +
                    json_string(q, "lowbit_version").value_or("unknown").substr(0, 32) + "); update lowbit");
  for (const char* transform : {kOnlineHadamard, kLinearNorms})
    if (*version < kVersionOfTransforms && q.contains(transform))
      return fail(ErrorCode::kCorrupt, where + ".format_version", std::to_string(*version),
                  std::to_string(kVersionOfTransforms) + ", since there is a " + transform);
  return {};
}

/// Files of two checkpoints: the directory was replaced while it was read, or somebody mixed them.
Status check_generation(const json& q, const SafetensorsSet& files, const std::string& where) {
  const std::string wanted = json_string(q, kGenerationKey).value_or("none");
  for (const SafetensorsFile& file : files.files()) {
    const auto it = file.metadata().find(kGenerationKey);
    const std::string got = it == file.metadata().end() ? "none" : it->second;
    if (got != wanted)
      return fail(
          ErrorCode::kCorrupt, file.path(), "generation " + got.substr(0, 32),
          wanted.substr(0, 32) + " as " + where + " has",
          "the checkpoint was replaced while it was read: open it again; or files of two checkpoints are mixed");
  }
  return {};
}

std::string shape_text(const SafetensorsEntry& e) {
  return std::string(dtype_name(e.dtype)) + " " + shape_string(e.shape);
}

/// The format that config.json says against the note in the tensor's own file: "" when they agree, or there are no
/// codes. A missing note is a problem only where `must` is set: other writers need not write one.
std::string format_problem(const CheckpointTensor& t, const SafetensorsSet& files, bool must) {
  const auto* codes = files.find(t.name + ".codes");
  if (codes == nullptr) return "";
  const auto& metadata = codes->file->metadata();
  const auto written = metadata.find(format_key(t.name));
  const std::string configured = format_text(t.format, t.scaling);
  if (written == metadata.end()) return must ? "a format note in the file" : "";
  return written->second == configured ? "" : written->second.substr(0, 64);
}

}  // namespace

struct Checkpoint::Impl {
  std::string path, config;
  SafetensorsSet files;
  std::vector<CheckpointTensor> tensors;

  Status add_quantized(const LayerFormat& layer, std::set<std::string>* used);
  Status add_dense(const SafetensorsEntry& entry);
  Result<const SafetensorsEntry*> part(const std::string& name) const {
    const auto* located = files.find(name);
    if (located == nullptr)
      return fail(ErrorCode::kNotFound, path + ": tensor '" + name + "'", "nothing",
                  "a tensor that quantization_config promises");
    return located->entry;
  }
  Result<std::vector<int64_t>> int64s(const std::string& name) const {
    LOWBIT_TRY_ASSIGN(const Buffer raw, files.bytes(name));
    std::vector<int64_t> out(static_cast<size_t>(raw.size() / 8));
    if (!out.empty()) std::memcpy(out.data(), raw.data(), out.size() * 8);
    return out;
  }
};

bool Checkpoint::is_checkpoint(const std::string& path) {
  std::string text;
  const auto config = read_config(path, &text);
  const json* q = config ? json_object(*config, "quantization_config") : nullptr;
  return q != nullptr && json_string(*q, "quant_method") == "lowbit";
}

Status Checkpoint::Impl::add_quantized(const LayerFormat& layer, std::set<std::string>* used) {
  const std::string name = layer.layer + std::string(kWeightSuffix);
  LOWBIT_TRY_ASSIGN(const SafetensorsEntry* shape, part(name + ".shape"));
  if (shape->dtype != DType::kI64 || shape->shape != Shape{2})
    return fail(ErrorCode::kCorrupt, path + ": tensor '" + name + ".shape'", shape_text(*shape), "I64 [2]");
  LOWBIT_TRY_ASSIGN(const auto extents, int64s(name + ".shape"));
  CheckpointTensor t{name, {extents[0], extents[1]}, layer.format, layer.scaling, 0};
  int64_t range_count = 0;
  if (layer.scaling.n_block == Scaling::kRowRanges) {
    LOWBIT_TRY_ASSIGN(const SafetensorsEntry* ends, part(name + ".row_ends"));
    range_count = ends->shape.size() == 1 ? ends->shape[0] : 0;
  }
  const auto parts = weight_parts(t.format, t.scaling, extents[0], extents[1], range_count);
  if (!parts)
    return fail(ErrorCode::kCorrupt, path + ": tensor '" + name + ".shape'", shape_string(t.shape),
                "extents of a matrix");
  for (const auto& p : *parts) {
    LOWBIT_TRY_ASSIGN(const SafetensorsEntry* entry, part(name + p.suffix));
    if (entry->dtype != p.dtype || entry->shape != p.shape)
      return fail(ErrorCode::kCorrupt, path + ": tensor '" + entry->name + "'", shape_text(*entry),
                  std::string(dtype_name(p.dtype)) + " " + shape_string(p.shape) + " for " +
                      format_info(t.format).name + " " + scaling_name(t.scaling));
    if (std::string_view(p.suffix) != ".shape") t.stored_bytes += static_cast<int64_t>(entry->size_bytes);
    used->insert(entry->name);
  }
  tensors.push_back(std::move(t));
  return {};
}

Status Checkpoint::Impl::add_dense(const SafetensorsEntry& entry) {
  const auto format = dense_format(entry.dtype);
  if (!format)
    return fail(ErrorCode::kCorrupt, path + ": tensor '" + entry.name + "'", shape_text(entry),
                "a part of a layer in quantization_config, or floats");
  tensors.push_back({entry.name, entry.shape, *format, {}, static_cast<int64_t>(entry.size_bytes)});
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  LOWBIT_TRY_ASSIGN(const json config, read_config(path, &impl->config));
  const std::string where = path + "/config.json: quantization_config";
  const json* q = json_object(config, "quantization_config");
  if (q == nullptr || json_string(*q, "quant_method") != "lowbit")
    return fail(ErrorCode::kInvalidArgument, where, q == nullptr ? "nothing" : "another quant_method",
                "quant_method \"lowbit\"", "import the model first");
  LOWBIT_TRY(check_version(*q, where));
  LOWBIT_TRY_ASSIGN(const auto layers, parse_layers(*q, where));
  LOWBIT_TRY_ASSIGN(impl->files, SafetensorsSet::open(path));
  LOWBIT_TRY(check_generation(*q, impl->files, where));
  std::set<std::string> used;
  for (const auto& layer : layers) {
    LOWBIT_TRY(impl->add_quantized(layer, &used));
    const CheckpointTensor& t = impl->tensors.back();
    if (const std::string wanted = format_problem(t, impl->files, false); !wanted.empty())
      return fail(ErrorCode::kCorrupt, path + "/config.json: layer of '" + t.name + "'",
                  format_text(t.format, t.scaling), wanted + " as the note in its file says");
  }
  for (const auto& located : impl->files.tensors())
    if (!used.contains(located.entry->name)) LOWBIT_TRY(impl->add_dense(*located.entry));
  std::sort(impl->tensors.begin(), impl->tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < impl->tensors.size(); ++i)
    if (impl->tensors[i].name == impl->tensors[i - 1].name)
      return fail(ErrorCode::kCorrupt, path + ": tensor '" + impl->tensors[i].name + "'", "quantized and as floats",
                  "one of them");
  return Checkpoint(std::move(impl));
}

const std::string& Checkpoint::path() const { return impl_->path; }
const std::string& Checkpoint::config_json() const { return impl_->config; }
const std::vector<CheckpointTensor>& Checkpoint::tensors() const { return impl_->tensors; }

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto& all = impl_->tensors;
  const auto it =
      std::lower_bound(all.begin(), all.end(), name, [](const auto& t, std::string_view n) { return t.name < n; });
  return it == all.end() || it->name != name ? nullptr : &*it;
}

Result<QTensor> Checkpoint::load(std::string_view name) const {
  const CheckpointTensor* t = find(name);
  if (t == nullptr)
    return fail(ErrorCode::kNotFound, impl_->path, "no tensor '" + std::string(name) + "'",
                "a tensor of this checkpoint");
  const SafetensorsSet& files = impl_->files;
  QTensor w;
  w.format = t->format;
  w.scaling = t->scaling;
  w.k = t->shape.empty() ? 1 : t->shape.back();
  w.n = 1;
  for (size_t i = 0; i + 1 < t->shape.size(); ++i) w.n *= t->shape[i];
  if (is_dense(t->format)) {
    LOWBIT_TRY_ASSIGN(w.codes, files.bytes(t->name));
  } else {
    LOWBIT_TRY_ASSIGN(w.codes, files.bytes(t->name + ".codes"));
    LOWBIT_TRY_ASSIGN(w.scales, files.bytes(t->name + ".scales"));
    if (w.scaling.zero != ZeroKind::kNone) {
      LOWBIT_TRY_ASSIGN(w.zeros, files.bytes(t->name + ".zeros"));
    }
    if (w.scaling.scale == ScaleKind::kDouble) {
      LOWBIT_TRY_ASSIGN(w.super_scales, files.bytes(t->name + ".super_scales"));
    }
    if (format_info(t->format).kind == ValueKind::kTable) {
      LOWBIT_TRY_ASSIGN(const Buffer table, files.bytes(t->name + ".codebook"));
      w.codebook.assign(table.as<float>(), table.as<float>() + table.size() / 4);
    }
    if (w.scaling.n_block == Scaling::kRowRanges) {
      LOWBIT_TRY_ASSIGN(w.row_ends, impl_->int64s(t->name + ".row_ends"));
    }
  }
  const std::string where = impl_->path + ": tensor '" + t->name + "'";
  LOWBIT_TRY(check_qtensor(w, where.c_str()));
  return w;
}

void Checkpoint::release(std::string_view name) const {
  const CheckpointTensor* t = find(name);
  if (t == nullptr) return;
  for (const char* suffix : {"", ".codes", ".scales", ".zeros", ".super_scales"})
    if (const auto* located = impl_->files.find(t->name + suffix)) located->file->release(*located->entry);
}

namespace {

/// Every tensor's bytes against the checksum beside them.
void verify_bytes(const SafetensorsSet& files, CheckpointReport& report) {
  for (const auto& file : files.files()) {
    report.bytes += file.size_bytes();
    for (const auto& entry : file.tensors()) {
      ++report.tensors;
      const auto bytes = file.bytes(entry);
      const auto sum = file.metadata().find(checksum_key(entry.name));
      const std::string where = file.path() + ": tensor '" + entry.name + "'";
      if (!bytes) {
        report.problems.push_back(bytes.error().message());
      } else if (sum == file.metadata().end()) {
        report.problems.push_back(where + ": got no checksum");
      } else if (const std::string got = xxh3_hex(bytes->span()); got != sum->second) {
        report.problems.push_back(where + ": got checksum " + got + ", wanted " + sum->second.substr(0, 32));
      }
      file.release(entry);
    }
  }
}

}  // namespace

Result<CheckpointReport> verify_checkpoint(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error))
    return fail(ErrorCode::kNotFound, path, "no directory", "a checkpoint directory");
  CheckpointReport report;
  const LostPages lost;
  const auto files = SafetensorsSet::open(path);
  if (files) verify_bytes(*files, report);
  if (!files) report.problems.push_back(files.error().message());
  const auto checkpoint = Checkpoint::open(path);
  if (!checkpoint) {
    if (report.problems.empty() || report.problems.front() != checkpoint.error().message())
      report.problems.push_back(checkpoint.error().message());
    return report;
  }
  for (const auto& t : checkpoint->tensors()) {
    const auto w = checkpoint->load(t.name);
    if (!w) report.problems.push_back(w.error().message());
    if (const std::string wanted = files ? format_problem(t, *files, true) : ""; !wanted.empty())
      report.problems.push_back(path + "/config.json: layer of '" + t.name + "': got " +
                                format_text(t.format, t.scaling) + ", wanted " + wanted);
    checkpoint->release(t.name);
  }
  if (const Status read = lost.status(path); !read) report.problems.push_back(read.error().message());
  return report;
}

}  // namespace lowbit
