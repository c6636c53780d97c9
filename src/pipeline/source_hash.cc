#include "pipeline/source_hash.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>
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

/// Of all files together, told by several threads.
class HashingProgress {
 public:
  HashingProgress(const Progress& callback, int64_t total) : callback_(&callback), total_(total) {}

  /// False: stop.
  bool add(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    return !*callback_ || (*callback_)("hashing", done_ - bytes, total_);
  }

 private:
  const Progress* callback_;
  int64_t total_, done_ = 0;
  std::mutex mutex_;
};

Result<std::string> file_sha256(const MappedFile& file, const std::string& path, HashingProgress& progress) {
  Sha256 hash;
  const uint64_t size = file.bytes().size();
  for (uint64_t at = 0; at < size; at += kChunkBytes) {
    const uint64_t count = std::min(kChunkBytes, size - at);
    if (!progress.add(static_cast<int64_t>(count))) return fail(ErrorCode::kCancelled, "hashing", "a request to stop");
    hash.update(file.bytes().subspan(at, count));
    LOWBIT_TRY(check_pages(file.bytes().data(), path.c_str()));
    file.release(at, count);
  }
  return hash.finish();
}

/// The digest of each file.
Result<std::vector<std::string>> files_sha256(const std::vector<std::string>& paths, const Progress& progress,
                                              ThreadPool& pool) {
  std::vector<std::shared_ptr<const MappedFile>> files;
  int64_t total = 0;
  for (const std::string& path : paths) {
    LOWBIT_TRY_ASSIGN(files.emplace_back(), MappedFile::open(path));
    total += files.back()->size();
  }
  HashingProgress all(progress, total);
  std::vector<Result<std::string>> digests(paths.size());
  pool.parallel_for(static_cast<int64_t>(paths.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      digests[i] = file_sha256(*files[i], paths[i], all);
  });
  std::vector<std::string> out;
  for (Result<std::string>& digest : digests) {
    LOWBIT_TRY_ASSIGN(out.emplace_back(), std::move(digest));
  }
  return out;
}

}  // namespace

Result<std::string> source_sha256(const std::string& path, const Progress& progress, ThreadPool& pool) {
  std::error_code error;
  std::vector<std::string> files;
  if (fs::is_directory(path, error)) {
    LOWBIT_TRY_ASSIGN(const auto names, directory_names(path));
    for (const std::string& name : names)
      if (name.ends_with(".safetensors")) files.push_back(path + "/" + name);
    if (files.empty()) return fail(ErrorCode::kNotFound, path, "no safetensors file", "the weights of a model");
    std::ranges::sort(files);
  } else {
    files.push_back(path);
  }
  LOWBIT_TRY_ASSIGN(std::vector<std::string> digests, files_sha256(files, progress, pool));
  if (files.size() == 1) return std::move(digests.front());
  std::string listing;
  for (size_t i = 0; i < files.size(); ++i)
    listing += digests[i] + "  " + fs::path(files[i]).filename().string() + "\n";
  Sha256 hash;
  hash.update(std::as_bytes(std::span(listing)));
  return hash.finish();
}

}  // namespace lowbit
