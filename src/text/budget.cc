#include "text/budget.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <limits>

namespace lowbit::text {
namespace {

// A file is read within one budget and built within the other: together less than the file and 256 MiB, so that neither
// grows further behind 8 MiB. A vocabulary of 262,144 tokens and 580,000 merges, of the largest there are, takes 92 MB
// of the second.
constexpr std::size_t kFileBytes = std::size_t{64} << 20, kSpecBytes = std::size_t{112} << 20, kBytesPerFileByte = 4;
constexpr std::size_t kMostSizeThatCounts = std::size_t{8} << 20;
constexpr std::size_t kFileSteps = std::size_t{1} << 29, kStepsPerFileByte = 64;
// One word without merges takes 16 bytes for each of its bytes, its ids 8. Up to 10 MB the limit keeps to the text and
// 256 MiB.
constexpr std::size_t kTextBytes = std::size_t{56} << 20, kBytesPerTextByte = 20, kMoreBytesPerTextByte = 16;
constexpr std::size_t kBytesOfSmallText = 10'000'000;
constexpr std::size_t kTextSteps = std::size_t{1} << 28, kStepsPerTextByte = 1024;
// Patterns of real models take 20 to 50 ns per byte.
constexpr double kPatternSeconds = 1, kPatternSecondsPerByte = 2e-6;

std::size_t line(std::size_t fixed, std::size_t slope, std::size_t n) {
  std::size_t out = 0;
  if (__builtin_mul_overflow(slope, n, &out) || __builtin_add_overflow(out, fixed, &out))
    return std::numeric_limits<std::size_t>::max();
  return out;
}

}  // namespace

Budget Budget::of_file(std::size_t bytes) {
  return {ErrorCode::kCorrupt, bytes, line(kFileBytes, kBytesPerFileByte, std::min(bytes, kMostSizeThatCounts)),
          line(kFileSteps, kStepsPerFileByte, bytes), kPatternSeconds};
}

Budget Budget::of_spec(std::size_t bytes) {
  return {ErrorCode::kCorrupt, bytes, line(kSpecBytes, kBytesPerFileByte, std::min(bytes, kMostSizeThatCounts)),
          line(kFileSteps, kStepsPerFileByte, bytes), kPatternSeconds};
}

Budget Budget::of_text(std::size_t bytes) {
  const std::size_t more = bytes - std::min(bytes, kBytesOfSmallText);
  return {ErrorCode::kInvalidArgument, bytes,
          line(line(kTextBytes, kBytesPerTextByte, bytes), kMoreBytesPerTextByte, more),
          line(kTextSteps, kStepsPerTextByte, bytes),
          kPatternSeconds + kPatternSecondsPerByte * static_cast<double>(bytes)};
}

bool Budget::spend_product(std::size_t& left, std::size_t n, std::size_t each, const char* what) {
  return spend(left, line(0, each, n), what);
}

bool Budget::has_time(double next_s) {
  if (exhausted()) return false;
  const double now = thread_seconds();
  if (started_s_ < 0) started_s_ = now;
  if (now - started_s_ + next_s > seconds_) exhausted_ = "time for regular expressions";
  return !exhausted();
}

Status Budget::error(const char* where) const {
  const bool is_file = code_ == ErrorCode::kCorrupt;
  return fail(
      code_, where,
      fmt::format("steps that need too much {} for {} of {} bytes",
                  exhausted_ == std::string_view("steps") ? "work" : exhausted_, is_file ? "a file" : "a text", size_),
      "less than any model's own tokenizer needs many times over",
      "is the tokenizer the one that the model came with?");
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace lowbit::text
