#pragma once
// A file mapped read-only into memory. Buffers borrowed from it keep it mapped.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lowbit/error.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Immutable and thread safe. Always held by shared_ptr, because borrowed buffers share the ownership.
/// A file of up to 256 KiB is copied. A larger one that is shortened meanwhile reads as zeros where it is gone:
/// borrow() notices what happened before it, who reads asks LostPages or check_pages (io/lost_pages.h) behind it. A
/// file that is replaced (renamed over) stays whole for who has it open.
class MappedFile : public std::enable_shared_from_this<MappedFile> {
 public:
  /// Errors: kNotFound, kIo (permission, a device, ...), kInvalidArgument (a directory), kCorrupt (an empty file).
  static Result<std::shared_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Bytes [offset, offset + size) without a copy; read-only although Buffer's type does not say so.
  /// Errors: kCorrupt when the range is not inside the file, or no longer.
  Result<Buffer> borrow(uint64_t offset, uint64_t size, const std::string& what) const;

  /// Drops the pages wholly inside the range from this process; touching them reads the file again.
  void release(uint64_t offset, uint64_t size) const;

 private:
  MappedFile(std::string path, std::span<std::byte> bytes, int descriptor)
      : path_(std::move(path)), bytes_(bytes), descriptor_(descriptor) {}
  std::string path_;
  std::span<std::byte> bytes_;
  int descriptor_;  // kept open to ask for the file's size
};

/// The whole of a small file (configuration, tokenizer). Errors: as MappedFile::open, kUnsupported above `limit` bytes.
Result<std::string> read_text_file(const std::string& path, int64_t limit_bytes);

}  // namespace lowbit
