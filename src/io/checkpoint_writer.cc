#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "base/try.h"
#include "io/checkpoint.h"
#include "io/checkpoint_layout.h"
#include "io/json_text.h"
#include "io/posix_file.h"
#include "io/replace_directory.h"
#include "lowbit/version.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kCopyBytes = int64_t{4} << 20;

/// Stands in a file's header until everything is written and the checkpoint's own is known.
constexpr const char* kNoGeneration = "0000000000000000";

struct SpooledTensor {
  SafetensorsDecl decl;
  int64_t offset = 0, bytes = 0;  // in the spool
  std::string hash;
};

/// Only what a checkpoint consists of may be removed when one is replaced.
Status check_replaceable(const std::string& target, bool overwrite) {
  if (!Checkpoint::is_checkpoint(target))
    return fail(ErrorCode::kInvalidArgument, target, "a directory with other files in it",
                "a new or empty directory or a lowbit checkpoint");
  if (!overwrite)
    return fail(ErrorCode::kInvalidArgument, target, "a checkpoint that is already there", "a new directory",
                "--force, or `overwrite` in code, replaces it");
  LOWBIT_TRY_ASSIGN(const auto names, directory_names(target));
  for (const std::string& name : names) {
    const fs::path path = target + "/" + name;
    const std::string extension = path.extension().string();
    const bool known =
        std::set<std::string>{".json", ".safetensors", ".jinja", ".txt", ".md", ".model"}.contains(extension);
    std::error_code error;
    if (!known || !fs::is_regular_file(path, error))
      return fail(ErrorCode::kInvalidArgument, path.string(), "something that is not part of a checkpoint",
                  "a directory with nothing else in it", "move it away first");
  }
  return {};
}

/// Puts `id` in the place of kNoGeneration into a finished safetensors file.
Status write_generation(const std::string& path, const std::string& id) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return io_error(path, "the file just written");
  const std::string wanted = std::string("\"") + kGenerationKey + "\":\"" + kNoGeneration;
  uint64_t header_bytes = 0;
  std::string header;
  bool done = pread(fd, &header_bytes, 8, 0) == 8;
  if (done) {
    header.resize(header_bytes);
    done = pread(fd, header.data(), header.size(), 8) == static_cast<ssize_t>(header.size());
  }
  const size_t at = header.find(wanted);
  done = done && at != std::string::npos;
  if (done) {
    const size_t place = 8 + at + wanted.size() - id.size();
    done = pwrite(fd, id.data(), id.size(), static_cast<off_t>(place)) == static_cast<ssize_t>(id.size());
  }
  const Status closed = sync_and_close(fd, path);
  if (!done) return fail(ErrorCode::kIo, path, "a header that could not be completed", "the file just written");
  return closed;
}

std::span<const std::byte> as_bytes(const std::vector<int64_t>& v) { return std::as_bytes(std::span(v)); }

std::string shard_name(size_t i, size_t count) {
  if (count == 1) return "model.safetensors";
  const auto five = [](size_t v) {
    const std::string digits = std::to_string(v);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return "model-" + five(i + 1) + "-of-" + five(count) + ".safetensors";
}

}  // namespace

struct CheckpointWriter::Impl {
  CheckpointOptions options;
  std::unique_ptr<ReplaceDirectory> directory;
  int spool = -1;
  int64_t spool_bytes = 0;
  std::vector<SpooledTensor> spooled;
  std::map<std::string, std::string> metadata;   // of the shard under way
  std::vector<std::vector<std::string>> shards;  // names of the tensors in each finished one
  std::set<std::string> names, files;
  std::string digest;  // names and checksums of everything written so far
  std::vector<LayerFormat> quantized;
  std::vector<std::string> dense_matrices;
  int64_t total_bytes = 0;
  std::optional<Error> failed;

  ~Impl() {
    if (spool >= 0) close(spool);
  }
  std::string file(const std::string& name) const { return directory->path() + "/" + name; }
  std::string spool_path() const { return file("spool"); }
  std::string shard_path(size_t i) const { return file("shard-" + std::to_string(i)); }

  Status append(const std::string& name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);
  Status add_parts(const std::string& name, const QTensor& w);
  Status close_shard();
  Status rename_shards(const std::string& generation);
  Result<json> make_config(const CheckpointInfo& info) const;
  Status remember(Status status) {
    if (!status && !failed) failed = status.error();
    return status;
  }
};

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::~CheckpointWriter() = default;

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::create(const std::string& target,
                                                                   const CheckpointOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  LOWBIT_TRY_ASSIGN(impl->directory, ReplaceDirectory::create(target, [&](const std::string& path) {
                      return check_replaceable(path, options.overwrite);
                    }));
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(impl)));
}

Status CheckpointWriter::Impl::append(const std::string& name, DType dtype, const Shape& shape,
                                      std::span<const std::byte> bytes) {
  if (!names.insert(name).second)
    return fail(ErrorCode::kInvalidArgument, "checkpoint", "the tensor '" + name + "' twice", "each name once");
  if (spool < 0) {
    LOWBIT_TRY_ASSIGN(spool, create_file(spool_path()));
  }
  LOWBIT_TRY(write_all(spool, bytes, spool_path()));
  const auto size = static_cast<int64_t>(bytes.size());
  spooled.push_back({{name, dtype, shape}, spool_bytes, size, xxh3_hex(bytes)});
  digest += name + " " + dtype_name(dtype) + shape_string(shape) + " " + spooled.back().hash + "\n";
  spool_bytes += size;
  return {};
}

Status CheckpointWriter::Impl::add_parts(const std::string& name, const QTensor& w) {
  const auto parts = weight_parts(w.format, w.scaling, w.n, w.k, static_cast<int64_t>(w.row_ends.size()));
  if (!parts) return fail(ErrorCode::kShapeMismatch, name, shape_string({w.n, w.k}), "fewer elements");
  const std::vector<int64_t> shape = {w.n, w.k};
  metadata[format_key(name)] = format_text(w.format, w.scaling);
  for (const auto& part : *parts) {
    const std::string_view suffix = part.suffix;
    const auto bytes = suffix == ".codes"          ? w.codes.span()
                       : suffix == ".scales"       ? w.scales.span()
                       : suffix == ".zeros"        ? w.zeros.span()
                       : suffix == ".super_scales" ? w.super_scales.span()
                       : suffix == ".codebook"     ? std::as_bytes(std::span(w.codebook))
                       : suffix == ".row_ends"     ? as_bytes(w.row_ends)
                                                   : as_bytes(shape);
    LOWBIT_TRY(append(name + part.suffix, part.dtype, part.shape, bytes));
  }
  return {};
}

Status CheckpointWriter::add(const std::string& name, const QTensor& w, const Shape& shape) {
  Impl& m = *impl_;
  if (m.failed) return tl::unexpected<Error>(*m.failed);
  LOWBIT_TRY(check_qtensor(w, name.c_str()));
  LOWBIT_TRY_ASSIGN(const int64_t elements, element_count(shape));
  if (elements != w.n * w.k || (!shape.empty() && shape.back() != w.k))
    return fail(ErrorCode::kShapeMismatch, name, shape_string(shape), "the shape of " + shape_string({w.n, w.k}));
  const bool dense = is_dense(w.format), is_weight = name.ends_with(kWeightSuffix);
  const std::string layer = is_weight ? name.substr(0, name.size() - kWeightSuffix.size()) : name;
  if (!dense && (!is_weight || shape.size() != 2))
    return fail(ErrorCode::kInvalidArgument, name, "a quantized tensor of shape " + shape_string(shape),
                "a matrix whose name ends in .weight");
  const int64_t bytes = w.total_bytes();
  if (!m.spooled.empty() && m.spool_bytes + bytes > m.options.shard_bytes) LOWBIT_TRY(m.remember(m.close_shard()));
  if (dense) {
    LOWBIT_TRY(m.remember(m.append(name, dense_dtype(w.format), shape, w.codes.span())));
    if (is_weight && shape.size() == 2) m.dense_matrices.push_back(layer);
  } else {
    LOWBIT_TRY(m.remember(m.add_parts(name, w)));
    m.quantized.push_back({layer, w.format, w.scaling});
  }
  return {};
}

/// The spool becomes a safetensors file: widest element type first, so that every tensor lies aligned.
Status CheckpointWriter::Impl::close_shard() {
  std::stable_sort(spooled.begin(), spooled.end(),
                   [](const auto& a, const auto& b) { return dtype_bytes(a.decl.dtype) > dtype_bytes(b.decl.dtype); });
  std::vector<SafetensorsDecl> decls;
  metadata["format"] = "pt";  // what transformers looks for
  metadata[kGenerationKey] = kNoGeneration;
  shards.emplace_back();
  for (const auto& t : spooled) {
    decls.push_back(t.decl);
    metadata[checksum_key(t.decl.name)] = t.hash;
    shards.back().push_back(t.decl.name);
  }
  const std::string path = shard_path(shards.size() - 1);
  LOWBIT_TRY_ASSIGN(auto writer, SafetensorsWriter::create(path, std::move(decls), metadata));
  if (spool >= 0 && close(std::exchange(spool, -1)) != 0) return io_error(spool_path(), "room for the file");
  const int in = spooled.empty() ? -1 : open(spool_path().c_str(), O_RDONLY | O_CLOEXEC);
  if (!spooled.empty() && in < 0) return io_error(spool_path(), "the file just written");
  spool = in;  // closed by the destructor on any early return
  LOWBIT_TRY_ASSIGN(Buffer piece, Buffer::allocate(kCopyBytes, "copy buffer"));
  for (const auto& t : spooled)
    for (int64_t at = 0; at < t.bytes;) {
      const ssize_t n = pread(in, piece.data(), static_cast<size_t>(std::min(kCopyBytes, t.bytes - at)), t.offset + at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return io_error(spool_path(), "the bytes just written");
      LOWBIT_TRY(writer->append(piece.span().first(static_cast<size_t>(n))));
      at += n;
    }
  LOWBIT_TRY(writer->finish());
  if (in >= 0) {
    close(std::exchange(spool, -1));
    if (unlink(spool_path().c_str()) != 0) return io_error(spool_path(), "a file that can be removed");
  }
  total_bytes += spool_bytes;
  spool_bytes = 0;
  spooled.clear();
  metadata.clear();
  return {};
}

Status CheckpointWriter::add_file(const std::string& name, const std::string& text) {
  Impl& m = *impl_;
  if (m.failed) return tl::unexpected<Error>(*m.failed);
  const bool plain = !name.empty() && name[0] != '.' && name.find('/') == std::string::npos;
  if (!plain || name == "config.json" || name.ends_with(".safetensors") || name == "model.safetensors.index.json" ||
      !m.files.insert(name).second)
    return fail(ErrorCode::kInvalidArgument, "checkpoint file", "'" + name + "'",
                "a plain file name that is not in use");
  m.digest += name + " " + xxh3_hex(std::as_bytes(std::span(text))) + "\n";
  return m.remember(write_text_file(m.file(name), text));
}

Status CheckpointWriter::Impl::rename_shards(const std::string& generation) {
  json map = json::object();
  const JsonEnd end_map(map);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    LOWBIT_TRY(write_generation(shard_path(i), generation));
    if (rename(shard_path(i).c_str(), file(name).c_str()) != 0)
      return io_error(file(name), "a file that can be renamed");
    for (const auto& tensor : shards[i]) map[tensor] = name;
  }
  if (shards.size() == 1) return {};
  json index = json::object();
  const JsonEnd end(index);
  index["metadata"]["total_size"] = total_bytes;
  index["metadata"][kGenerationKey] = generation;
  index["weight_map"] = std::move(map);
  return write_text_file(file("model.safetensors.index.json"), json_dump(index, 2) + "\n");
}

/// Operations at run time that the source's configuration asks for: a checkpoint's, or those of transformers' ternary
/// layers with norms.
json transforms_of(const json* quantization) {
  json transforms = json::object();
  const std::string method = quantization == nullptr ? "" : json_string(*quantization, "quant_method").value_or("");
  for (const char* key : {kOnlineHadamard, kLinearNorms})
    if (const json* transform = method == "lowbit" ? json_object(*quantization, key) : nullptr)
      transforms[key] = *transform;
  if (method == "bitnet" && quantization->value("use_rms_norm", json()) == true)
    transforms[kLinearNorms] = {{"eps", quantization->value("rms_norm_eps", json(1e-6))}};
  return transforms;
}

Result<json> CheckpointWriter::Impl::make_config(const CheckpointInfo& info) const {
  LOWBIT_TRY_ASSIGN(json config, parse_json_object(info.config_json, "config.json"));
  JsonEnd end_config(config);
  LOWBIT_TRY_ASSIGN(json fit, parse_json_object(info.fit_json, "fit"));
  const JsonEnd end_fit(fit);
  json q = describe_layers(quantized, dense_matrices);
  const JsonEnd end_q(q);
  q["quant_method"] = "lowbit";
  const json transforms = transforms_of(json_object(config, "quantization_config"));
  q["format_version"] = transforms.empty() ? 1 : kVersionOfTransforms;
  q.update(transforms);
  q["lowbit_version"] = version();
  q["fit"] = std::move(fit);
  q["quality"] = json::object();
  for (const auto& [layer, error] : info.rel_error) q["quality"][layer]["rel_error"] = error;
  config["quantization_config"].swap(q);  // what stood there ends with q
  return end_config.take();
}

Result<int64_t> CheckpointWriter::finish(const CheckpointInfo& info) {
  Impl& m = *impl_;
  const auto all = [&]() -> Result<int64_t> {
    if (m.failed) return tl::unexpected<Error>(*m.failed);
    if (!m.spooled.empty() || m.shards.empty()) LOWBIT_TRY(m.close_shard());
    LOWBIT_TRY_ASSIGN(json config, m.make_config(info));
    const JsonEnd end(config);
    const std::string all_texts = m.digest + json_dump(config);
    const std::string generation = xxh3_hex(std::as_bytes(std::span(all_texts)));
    config["quantization_config"][kGenerationKey] = generation;
    LOWBIT_TRY(m.rename_shards(generation));
    LOWBIT_TRY(write_text_file(m.file("config.json"), json_dump(config, 2) + "\n"));
    int64_t bytes = 0;
    LOWBIT_TRY_ASSIGN(const auto names, directory_names(m.directory->path()));
    for (const std::string& name : names) {
      std::error_code error;
      const auto size = fs::file_size(m.file(name), error);
      if (!error) bytes += static_cast<int64_t>(size);
    }
    LOWBIT_TRY(m.directory->commit());
    return bytes;
  };
  auto result = all();
  m.failed = result ? Error{ErrorCode::kInvalidArgument, "checkpoint", "a writer that has finished", "a new writer", ""}
                    : result.error();
  m.directory.reset();  // removes what is unfinished
  return result;
}

}  // namespace lowbit
