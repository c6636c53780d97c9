#include <unistd.h>

#include <cstring>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/json_text.h"
#include "io/posix_file.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

constexpr size_t kDataAlign = 64;

std::string quoted(const std::string& text) { return json_dump(nlohmann::json(text)); }

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::vector<SafetensorsDecl> tensors, const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":" + json_dump(nlohmann::json(metadata));
    if (!tensors.empty()) header += ',';
  }
  uint64_t offset = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& t = tensors[i];
    if (t.name == "__metadata__" || !names.insert(t.name).second)
      return fail(ErrorCode::kInvalidArgument, path, "the tensor name '" + t.name + "'", "a free name, once");
    LOWBIT_TRY_ASSIGN(const int64_t count, element_count(t.shape));
    const auto bytes = checked_mul(static_cast<uint64_t>(count), static_cast<uint64_t>(dtype_bytes(t.dtype)));
    const auto end = bytes ? checked_add(offset, *bytes) : std::nullopt;
    if (!end)
      return fail(ErrorCode::kInvalidArgument, path + ": " + t.name, shape_string(t.shape), "fewer than 2^64 bytes");
    header += (i > 0 ? "," : "") + quoted(t.name) + ":{\"dtype\":\"" + dtype_name(t.dtype) + "\",\"shape\":[";
    for (size_t d = 0; d < t.shape.size(); ++d) header += (d > 0 ? "," : "") + std::to_string(t.shape[d]);
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(*end) + "]}";
    offset = *end;
  }
  header += '}';
  header.append((kDataAlign - (8 + header.size()) % kDataAlign) % kDataAlign, ' ');  // spaces are all the format allows
  const uint64_t size = header.size();
  header.insert(0, 8, '\0');
  std::memcpy(header.data(), &size, 8);
  LOWBIT_TRY_ASSIGN(const int fd, create_file(path));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, fd, offset));
  LOWBIT_TRY(write_all(fd, std::as_bytes(std::span(header)), path));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > left_)
    return fail(ErrorCode::kInvalidArgument, path_, std::to_string(bytes.size()) + " more bytes",
                std::to_string(left_) + " as declared");
  LOWBIT_TRY(write_all(fd_, bytes, path_));
  left_ -= bytes.size();
  return {};
}

Status SafetensorsWriter::finish() {
  if (left_ != 0)
    return fail(ErrorCode::kInvalidArgument, path_, std::to_string(left_) + " bytes missing", "all declared bytes");
  return sync_and_close(std::exchange(fd_, -1), path_);
}

}  // namespace lowbit
