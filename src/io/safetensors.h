#pragma once
// safetensors files: 8 bytes header length (little-endian), a JSON header, the tensors' bytes without gaps.
//
// Strict where the format's own reader is lenient: see docs/checkpoint.md. A file is accepted only if the header is at
// most 100,000,000 bytes and starts with '{', no key comes twice, shape, element type and bytes agree, and the tensors
// cover the data without a hole or an overlap up to the last byte of the file. Zero-size tensors may not share their
// offset with each other.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/mapped_file.h"
#include "lowbit/error.h"
#include "lowbit/tensor.h"
#include "tensor/buffer.h"

namespace lowbit {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t offset = 0;  // in the file
  uint64_t size_bytes = 0;
};

/// An opened file. Copies share the mapping.
class SafetensorsFile {
 public:
  /// Errors: as MappedFile::open; kCorrupt (a broken rule, with the tensor's name), kUnsupported (an element type or a
  /// limit).
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  int64_t size_bytes() const { return file_->size(); }
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }  // by offset
  const SafetensorsEntry* find(std::string_view name) const;                 // null when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The tensor's bytes, borrowed; copied to aligned memory when the file holds them unaligned for their type.
  Result<Buffer> bytes(const SafetensorsEntry& entry) const;
  void release(const SafetensorsEntry& entry) const { file_->release(entry.offset, entry.size_bytes); }

 private:
  std::shared_ptr<MappedFile> file_;
  std::vector<SafetensorsEntry> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, names ascending
  std::map<std::string, std::string> metadata_;
};

/// One file or all the shards that an index names, seen as one.
class SafetensorsSet {
 public:
  /// `directory` holds model.safetensors or model.safetensors.index.json (which wins when both exist). A shard's name
  /// must be a plain file name. Errors: kNotFound (no weights, a missing shard, a tensor that is not in its shard),
  /// kCorrupt.
  static Result<SafetensorsSet> open(const std::string& directory);

  struct Located {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  const std::vector<SafetensorsFile>& files() const { return *files_; }
  const std::vector<Located>& tensors() const { return tensors_; }  // by name
  const Located* find(std::string_view name) const;
  Result<Buffer> bytes(std::string_view name) const;

 private:
  std::shared_ptr<std::vector<SafetensorsFile>> files_;
  std::vector<Located> tensors_;
};

struct SafetensorsDecl {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
};

/// Writes a file in one pass: all names and shapes first, then the bytes in that order, in pieces of any size. Data
/// starts and, for element sizes up to 8, every tensor lies aligned: declare wide types first (see
/// SafetensorsWriter::order).
class SafetensorsWriter {
 public:
  /// Errors: kInvalidArgument (a name twice, "__metadata__"), kIo.
  static Result<std::unique_ptr<SafetensorsWriter>> create(const std::string& path,
                                                           std::vector<SafetensorsDecl> tensors,
                                                           const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();  // closes; an unfinished file is left for the caller to remove
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next bytes. Errors: kInvalidArgument (more than declared), kIo (disk full, ...).
  Status append(std::span<const std::byte> bytes);
  /// fsync and close. Errors: kInvalidArgument (fewer bytes than declared), kIo.
  Status finish();

 private:
  SafetensorsWriter(std::string path, int fd, uint64_t data_bytes)
      : path_(std::move(path)), fd_(fd), left_(data_bytes) {}
  std::string path_;
  int fd_ = -1;
  uint64_t left_ = 0;
};

}  // namespace lowbit
