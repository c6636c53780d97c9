#include "evaluate/logits_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/posix_file.h"
#include "ops/log_softmax.h"

namespace lowbit {
namespace {

constexpr char kMagic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
constexpr float kClip = 16.0f;
constexpr int64_t kRowHeaderWords = 4;  // two floats

tl::unexpected<Error> system_error(const std::string& path) { return fail(ErrorCode::kIo, path, std::strerror(errno)); }

}  // namespace

int64_t logits_row_words(int64_t vocab_size) { return round_up(vocab_size, 2) + kRowHeaderWords; }

void compress_log_probs(std::span<const float> logits, uint16_t* row) {
  const LogSoftmax soft = log_softmax(logits);
  const float largest = soft.largest, smallest = std::max(*std::ranges::min_element(logits), largest - kClip);
  const auto smallest_log_prob = static_cast<float>(soft.of(smallest));
  const float scale = (largest - smallest) / 65535.0f;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  std::memcpy(row, &scale, 4);
  std::memcpy(row + 2, &smallest_log_prob, 4);
  uint16_t* steps = row + kRowHeaderWords;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float step = logits[i] > smallest ? std::nearbyint(inverse * (logits[i] - smallest)) : 0.0f;
    steps[i] = static_cast<uint16_t>(std::min(step, 65535.0f));
  }
  if (logits.size() % 2 != 0) steps[logits.size()] = 0;
}

LogProbRow::LogProbRow(const uint16_t* row, int64_t) : steps(row + kRowHeaderWords) {
  std::memcpy(&scale, row, 4);
  std::memcpy(&smallest, row + 2, 4);
}

Result<LogitsWriter> LogitsWriter::create(const std::string& path, const LogitsHeader& header) {
  LogitsWriter writer;
  writer.path_ = path;
  LOWBIT_TRY_ASSIGN(ReplaceFile replace, ReplaceFile::create(path));
  writer.replace_.emplace(std::move(replace));
  writer.file_.reset(std::fopen(writer.replace_->path().c_str(), "wb"));
  if (!writer.file_) return system_error(path);
  LOWBIT_TRY(writer.write(kMagic, sizeof kMagic));
  for (const int32_t* field : {&header.context, &header.vocab_size, &header.chunks}) LOWBIT_TRY(writer.write(field, 4));
  LOWBIT_TRY(writer.write(header.tokens.data(), header.tokens.size() * sizeof(TokenId)));
  return writer;
}

Status LogitsWriter::write(const void* data, size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_.get()) != bytes) return system_error(path_);
  return {};
}

Status LogitsWriter::append(std::span<const uint16_t> rows) { return write(rows.data(), rows.size_bytes()); }

Status LogitsWriter::finish() {
  if (std::fflush(file_.get()) != 0 || (fsync(fileno(file_.get())) != 0 && errno != EINVAL)) return system_error(path_);
  file_.reset();
  return replace_->commit();
}

Result<LogitsReader> LogitsReader::open(const std::string& path) {
  LogitsReader reader;
  reader.path_ = path;
  LOWBIT_TRY_ASSIGN(const int descriptor, open_regular(path));
  reader.file_.reset(fdopen(descriptor, "rb"));
  if (!reader.file_) {
    close(descriptor);
    return system_error(path);
  }
  struct stat info = {};
  if (fstat(fileno(reader.file_.get()), &info) != 0) return system_error(path);

  char magic[8] = {};
  int32_t fields[3] = {};
  const auto corrupt = [&](const std::string& got, const std::string& wanted) {
    return fail(ErrorCode::kCorrupt, path, got, wanted, "make it with `lowbit ppl --save-logits`");
  };
  std::FILE* f = reader.file_.get();
  if (std::fread(magic, 1, 8, f) != 8 || std::memcmp(magic, kMagic, 8) != 0)
    return corrupt("no _logits_ mark", "a file of saved logits");
  if (std::fread(fields, 4, 3, f) != 3) return corrupt("a truncated header", "n_ctx, n_vocab and n_chunk");
  LogitsHeader& h = reader.header_;
  h.context = fields[0];
  h.vocab_size = fields[1];
  h.chunks = fields[2];
  const std::string sizes = std::to_string(h.chunks) + " chunks of " + std::to_string(h.context) + " tokens";
  if (h.context < 2 || h.vocab_size < 1 || h.chunks < 1) return corrupt(sizes, "positive sizes");
  const auto tokens = checked_mul(static_cast<uint64_t>(h.chunks), static_cast<uint64_t>(h.context));
  if (!tokens || *tokens > static_cast<uint64_t>(info.st_size) / 4)
    return corrupt(sizes, "no more than the file holds");
  h.tokens.resize(*tokens);
  if (std::fread(h.tokens.data(), 4, h.tokens.size(), f) != h.tokens.size()) return corrupt("truncated tokens", sizes);
  return reader;
}

Status LogitsReader::read(int64_t count, std::vector<uint16_t>& rows) {
  rows.resize(static_cast<size_t>(count * logits_row_words(header_.vocab_size)));
  if (std::fread(rows.data(), 2, rows.size(), file_.get()) != rows.size())
    return fail(ErrorCode::kCorrupt, path_, "a truncated file", std::to_string(count) + " more positions");
  return {};
}

}  // namespace lowbit
