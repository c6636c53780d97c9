#include "pipeline/source_hash.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/sha256.h"
#include "base/try.h"
#include "io/lost_pages.h"
#include "io/mapped_file.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

Result<std::string> file_sha256(const std::string& path, const Progress& progress) {
  LOWBIT_TRY_ASSIGN(const auto file, MappedFile::open(path));
  Sha256 hash;
  const uint64_t size = file->bytes().size();
  for (uint64_t at = 0; at < size; at += kChunkBytes) {
    if (progress && !progress("hashing", static_cast<int64_t>(at), file->size()))
      return fail(ErrorCode::kCancelled, "hashing", "a request to stop");
    const uint64_t count = std::min(kChunkBytes, size - at);
    hash.update(file->bytes().subspan(at, count));
    LOWBIT_TRY(check_pages(file->bytes().data(), path.c_str()));
    file->release(at, count);
  }
  return hash.finish();
}

}  // namespace

Result<std::string> source_sha256(const std::string& path, const Progress& progress) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return file_sha256(path, progress);
  std::vector<fs::path> files;
  LOWBIT_TRY_ASSIGN(const auto names, directory_names(path));
  for (const std::string& name : names)
    if (name.ends_with(".safetensors")) files.push_back(path + "/" + name);
  if (files.empty()) return fail(ErrorCode::kNotFound, path, "no safetensors file", "the weights of a model");
  if (files.size() == 1) return file_sha256(files[0].string(), progress);
  std::ranges::sort(files);
  std::string listing;
  for (const fs::path& file : files) {
    LOWBIT_TRY_ASSIGN(const std::string digest, file_sha256(file.string(), progress));
    listing += digest + "  " + file.filename().string() + "\n";
  }
  Sha256 hash;
  hash.update(std::as_bytes(std::span(listing)));
  return hash.finish();
}

}  // namespace lowbit
