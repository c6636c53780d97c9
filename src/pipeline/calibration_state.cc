#include "pipeline/calibration_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/sha256.h"
#include "base/try.h"
#include "io/checkpoint.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kRefused[] = "refused", kRun[] = "run";
constexpr int64_t kLongestJson = int64_t{4} << 20;

/// Whether these are all files of a run that was stopped before anything was done.
bool is_empty(const std::vector<std::string>& names) {
  return std::ranges::all_of(
      names, [](const auto& name) { return name.starts_with(".tmp-") || name == std::string(kRun) + ".json"; });
}

std::string digest(const std::string& text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

}  // namespace

Result<std::unique_ptr<CalibrationState>> CalibrationState::open(const std::string& target, const json& run,
                                                                 bool discard) {
  std::string path = target;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  path += ".calibration";
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return io_error(path, "a directory that can be made");
  const int lock = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return io_error(path, "a directory for the state of a calibration");
  auto state = std::unique_ptr<CalibrationState>(new CalibrationState(path, lock));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kInvalidArgument, path, "another process that calibrates for this target", "one at a time");
  std::error_code error;
  bool fresh = true;  // or killed before the first file was whole
  LOWBIT_TRY_ASSIGN(const auto names, directory_names(path));
  for (const std::string& name : names) fresh = fresh && name.starts_with(".tmp-");
  if (!fresh && !fs::exists(path + "/run.json", error))
    return fail(ErrorCode::kInvalidArgument, path, "a directory with other files in it",
                "the state of a calibration, or nothing", "move it away first");
  const bool same_run = !fresh && state->load_json(kRun) == run;
  if (!same_run && !is_empty(names) && !discard && state->load_json(kRefused).is_null())
    return fail(ErrorCode::kInvalidArgument, path, "an unfinished calibration of another source, text or other options",
                "the state of this one", "remove that directory, or --force to start again");
  state->is_ours_ = true;
  if (same_run) return state;
  for (const std::string& name : names)
    if (!error) fs::remove_all(path + "/" + name, error);
  if (error) return fail(ErrorCode::kIo, path, error.message(), "a directory that can be emptied");
  LOWBIT_TRY(state->save_json(kRun, run));
  return state;
}

CalibrationState::~CalibrationState() {
  if (is_ours_ && !has_results()) remove();
  if (lock_ >= 0) close(lock_);
}

bool CalibrationState::has_results() const {
  const auto names = directory_names(path_);
  return !names || !is_empty(*names);
}

std::string CalibrationState::block_path(int64_t block) const { return fmt::format("{}/block-{}", path_, block); }

json CalibrationState::load_json(const std::string& name) const {
  const std::string path = path_ + "/" + name + ".json";
  const auto text = read_text_file(path, kLongestJson);
  if (!text) return nullptr;
  const auto whole = parse_json_object(*text, path);
  if (!whole || !whole->contains("content")) return nullptr;
  const json& content = (*whole)["content"];
  return json_string(*whole, "sha256") == digest(json_dump(content)) ? content : json(nullptr);
}

Status CalibrationState::save_json(const std::string& name, const json& value) const {
  LOWBIT_TRY(write_text_file(path_ + "/" + name + ".json",
                             json_dump({{"content", value}, {"sha256", digest(json_dump(value))}}, 1) + "\n"));
  return sync_directory(path_);
}

Status CalibrationState::mark_refused() const { return save_json(kRefused, true); }

bool CalibrationState::load(int64_t block, FinishedBlock& out) const {
  const std::string path = block_path(block);
  const auto verified = verify_checkpoint(path);
  if (!verified || !verified->problems.empty()) return false;
  const auto checkpoint = Checkpoint::open(path);
  if (!checkpoint) return false;
  const json fits = load_json(fmt::format("block-{}", block));
  if (!fits.is_object()) return false;
  FinishedBlock block_read;
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    auto w = checkpoint->load(t.name);
    const json* entry = json_object(fits, t.name.c_str());
    const auto error = entry ? json_number(*entry, "rel_error") : std::nullopt;
    if (!w || !error) return false;
    block_read.weights[t.name] = std::move(*w);
    block_read.fits[t.name] = {*error, json_number(*entry, "output_error")};
  }
  out = std::move(block_read);
  return true;
}

Status CalibrationState::save(int64_t block, const FinishedBlock& finished) const {
  LOWBIT_TRY_ASSIGN(auto writer, CheckpointWriter::create(block_path(block), {.overwrite = true}));
  json fits = json::object();
  for (const auto& [name, w] : finished.weights) {
    LOWBIT_TRY(writer->add(name, w, {w.n, w.k}));
    const auto fit = finished.fits.find(name);
    const LayerFit& layer = fit == finished.fits.end() ? LayerFit{} : fit->second;
    fits[name] = {{"rel_error", layer.rel_error},
                  {"output_error", layer.output_error ? json(*layer.output_error) : json()}};
  }
  LOWBIT_TRY(writer->finish({}));
  return save_json(fmt::format("block-{}", block), fits);
}

void CalibrationState::remove() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace lowbit
