#include "pipeline/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/try.h"
#include "io/json_text.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

constexpr char kMagic[8] = {'L', 'B', 'T', 'R', 'A', 'C', 'E', '\n'};
constexpr uint32_t kVersion = 1, kPassMark = 0x53534150;  // "PASS"
constexpr int64_t kMostHeaderBytes = int64_t{4} << 20, kMostTaps = 1 << 16, kMostWidth = 1 << 24;
constexpr int64_t kMostRows = 1 << 20, kMostPositions = int64_t{1} << 40;

// Both as they lie in the file, little-endian.
struct FileStart {
  char magic[8] = {};
  uint32_t version = 0, header_bytes = 0;
};
struct PassStart {
  uint32_t mark = 0, rows = 0;
  int64_t position = 0;
  uint32_t first = 0, count = 0;
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::string header_text(const TraceHeader& header) {
  const TraceInfo& i = header.info;
  nlohmann::json json = {{"lowbit", i.version},
                         {"model", i.model},
                         {"family", i.family},
                         {"activation", i.activation},
                         {"isa", i.isa},
                         {"device", i.device},
                         {"taps", nlohmann::json::array()}};
  for (const TraceTap& tap : header.taps)
    json["taps"].push_back({{"name", tap.name}, {"width", tap.width}, {"rows", tap.wanted ? "wanted" : "all"}});
  return json_dump(json);
}

/// "" where something is missing or out of range, by name.
std::string parse_taps(const nlohmann::json& json, std::vector<TraceTap>& taps) {
  const auto list = json.find("taps");
  if (list == json.end() || !list->is_array() || list->empty() || int64_t(list->size()) > kMostTaps)
    return "no list of taps";
  for (const nlohmann::json& entry : *list) {
    const auto name = json_string(entry, "name"), rows = json_string(entry, "rows");
    const auto width = json_int(entry, "width");
    if (!name || !rows || (*rows != "all" && *rows != "wanted") || !width || *width < 1 || *width > kMostWidth)
      return fmt::format("tap {} without name, width of 1 to {}, and rows", taps.size(), kMostWidth);
    taps.push_back({*name, *width, *rows == "wanted"});
  }
  return "";
}

}  // namespace

// ---- Writing

Result<TraceFileWriter> TraceFileWriter::create(const std::string& path, const TraceHeader& header) {
  LOWBIT_TRY_ASSIGN(ReplaceFile file, ReplaceFile::create(path));
  LOWBIT_TRY_ASSIGN(const int descriptor, create_file(file.path()));
  TraceFileWriter writer(std::move(file), descriptor);
  const std::string text = header_text(header);
  FileStart start{{}, kVersion, uint32_t(text.size())};
  std::copy_n(kMagic, sizeof kMagic, start.magic);
  writer.write(bytes_of(start));
  writer.write(std::as_bytes(std::span(text)));
  LOWBIT_TRY(writer.keep());
  return writer;
}

TraceFileWriter::TraceFileWriter(TraceFileWriter&& other) noexcept
    : file_(std::move(other.file_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      kept_(other.kept_),
      status_(std::move(other.status_)) {}

TraceFileWriter::~TraceFileWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

void TraceFileWriter::write(std::span<const std::byte> bytes) {
  if (status_) status_ = write_all(descriptor_, bytes, file_.target());
  size_ += int64_t(bytes.size());
}

void TraceFileWriter::begin(const TracePass& pass) {
  const PassStart start{kPassMark, uint32_t(pass.tokens.size()), pass.position, uint32_t(pass.first),
                        uint32_t(pass.count)};
  write(bytes_of(start));
  write(std::as_bytes(std::span(pass.tokens)));
}

void TraceFileWriter::append(std::span<const float> rows) { write(std::as_bytes(rows)); }

Status TraceFileWriter::keep() {
  if (status_) kept_ = size_;
  return status_;
}

void TraceFileWriter::drop() {
  if (!status_ || size_ == kept_) return;
  size_ = kept_;
  if (ftruncate(descriptor_, kept_) != 0 || lseek(descriptor_, kept_, SEEK_SET) != kept_)
    status_ = io_error(file_.target(), "a file that can be cut");
}

Status TraceFileWriter::finish() {
  drop();
  LOWBIT_TRY(status_);
  LOWBIT_TRY(sync_and_close(std::exchange(descriptor_, -1), file_.target()));
  return file_.commit();
}

// ---- Reading

Result<TraceFileReader> TraceFileReader::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // nobody need write to a pipe
  if (descriptor < 0) {
    if (errno == ENOENT) return fail(ErrorCode::kNotFound, path, "no such file", "a trace");
    return io_error(path, "a trace");
  }
  TraceFileReader reader(path, descriptor);
  struct stat info = {};
  if (fstat(descriptor, &info) != 0) return io_error(path, "a trace");
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kInvalidArgument, path, "no regular file", "a trace");
  reader.size_ = info.st_size;
  LOWBIT_TRY(reader.read_header());
  return reader;
}

TraceFileReader::TraceFileReader(TraceFileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      begin_(other.begin_),
      header_(std::move(other.header_)),
      all_before_(std::move(other.all_before_)),
      wanted_before_(std::move(other.wanted_before_)) {}

TraceFileReader::~TraceFileReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

tl::unexpected<Error> TraceFileReader::corrupt(std::string got, std::string wanted) const {
  return fail(ErrorCode::kCorrupt, path_, std::move(got), std::move(wanted), "make it with `lowbit run --trace`");
}

Status TraceFileReader::read(int64_t offset, std::span<std::byte> to) const {
  if (offset > size_ || int64_t(to.size()) > size_ - offset)
    return corrupt(fmt::format("{} bytes at {}", size_ - std::min(offset, size_), offset),
                   fmt::format("{}: is the file complete?", to.size()));
  while (!to.empty()) {
    const ssize_t n = pread(descriptor_, to.data(), to.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path_, "a file that can be read");
    if (n == 0) return corrupt("a file that became shorter", "a complete one");
    to = to.subspan(size_t(n));
    offset += n;
  }
  return {};
}

Status TraceFileReader::read_header() {
  FileStart start;
  if (size_ < int64_t(sizeof start)) return corrupt(fmt::format("{} bytes", size_), "a trace");
  LOWBIT_TRY(read(0, std::as_writable_bytes(std::span(&start, 1))));
  if (!std::equal(start.magic, start.magic + sizeof kMagic, kMagic)) return corrupt("another kind of file", "a trace");
  if (start.version != kVersion)
    return fail(ErrorCode::kUnsupported, path_, fmt::format("version {}", start.version),
                fmt::format("version {}", kVersion), "a newer lowbit has written it");
  if (start.header_bytes > kMostHeaderBytes)
    return corrupt(fmt::format("a header of {} bytes", start.header_bytes),
                   fmt::format("at most {}", kMostHeaderBytes));
  std::string text(start.header_bytes, '\0');
  LOWBIT_TRY(read(sizeof start, std::as_writable_bytes(std::span(text))));
  LOWBIT_TRY_ASSIGN(const nlohmann::json json, parse_json_object(text, path_));
  const auto text_of = [&](const char* key) { return json_string(json, key).value_or(""); };
  header_.info = {path_,          text_of("lowbit"), text_of("model"), text_of("family"), text_of("activation"),
                  text_of("isa"), text_of("device")};
  if (const std::string problem = parse_taps(json, header_.taps); !problem.empty()) return corrupt(problem, "taps");
  int64_t all = 0, wanted = 0;  // 2^16 taps of 2^24 columns, times 2^20 rows and 4 bytes: below 2^63
  for (const TraceTap& tap : header_.taps) {
    all_before_.push_back(all);
    wanted_before_.push_back(wanted);
    (tap.wanted ? wanted : all) += tap.width;
  }
  all_before_.push_back(all);
  wanted_before_.push_back(wanted);
  begin_ = int64_t(sizeof start) + start.header_bytes;
  return {};
}

Result<bool> TraceFileReader::next(int64_t& offset, TracePass& pass) const {
  if (offset == size_) return false;
  PassStart start;
  LOWBIT_TRY(read(offset, std::as_writable_bytes(std::span(&start, 1))));
  const int64_t rows = start.rows, first = start.first, count = start.count;
  const auto where = [&] { return fmt::format("the pass at byte {}: ", offset); };
  if (start.mark != kPassMark) return corrupt(where() + "no mark", "PASS");
  if (rows < 1 || rows > kMostRows || first > rows || count > rows - first)
    return corrupt(where() + fmt::format("{} tokens, logits of {} from {}", rows, count, first),
                   fmt::format("1 to {} tokens, logits of some of them", kMostRows));
  if (start.position < 0 || start.position > kMostPositions)
    return corrupt(where() + fmt::format("position {}", start.position), fmt::format("0 to {}", kMostPositions));
  const int64_t data = offset + int64_t(sizeof start);
  const int64_t values = rows * all_before_.back() + count * wanted_before_.back();
  if (data > size_ || rows + values > (size_ - data) / int64_t(sizeof(float)))
    return corrupt(where() + fmt::format("{} bytes", size_ - offset),
                   fmt::format("those of {} tokens: is the file complete?", rows));
  pass.position = start.position;
  pass.first = first;
  pass.count = count;
  pass.tokens.resize(size_t(rows));
  LOWBIT_TRY(read(data, std::as_writable_bytes(std::span(pass.tokens))));
  offset = data + (rows + values) * int64_t(sizeof(float));
  return true;
}

Status TraceFileReader::rows(int64_t end, const TracePass& pass, size_t tap, int64_t first, int64_t count,
                             float* out) const {
  const auto m = int64_t(pass.tokens.size());
  const int64_t width = header_.taps[tap].width;
  const int64_t behind =  // values from the tap's first row to the end of the pass
      m * (all_before_.back() - all_before_[tap]) + pass.count * (wanted_before_.back() - wanted_before_[tap]);
  const int64_t offset = end - (behind - first * width) * int64_t(sizeof(float));
  return read(offset, std::as_writable_bytes(std::span(out, size_t(count * width))));
}

}  // namespace lowbit
