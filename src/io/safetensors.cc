#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/json_text.h"
#include "io/lost_pages.h"

static_assert(std::endian::native == std::endian::little, "safetensors and GGUF are read in place");

namespace lowbit {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 32;
constexpr size_t kMaxNameBytes = 4096;

/// Reads the header without building a tree, so that memory stays near the size of what is kept. Any event that does
/// not fit the one shape a header may have ends the parse with a message.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsEntry> entries;  // offset and size_bytes: data_offsets[0], [1] as they stand
  std::map<std::string, std::string> metadata;
  std::string problem, problem_at;
  ErrorCode code = ErrorCode::kCorrupt;

  bool start_object(size_t) override {
    if (state_ == State::kStart) return go(State::kTop);
    if (state_ == State::kTensor) return go(State::kField);
    if (state_ == State::kMetadata) return go(State::kMetaKey);
    return unexpected("an object");
  }
  bool end_object() override {
    if (state_ == State::kTop) return go(State::kEnd);
    if (state_ == State::kMetaKey) return go(State::kTop);
    if (state_ != State::kField) return unexpected("the end of an object");
    if (!has_dtype_ || !has_shape_ || !has_offsets_) return bad("without dtype, shape or data_offsets");
    return go(State::kTop);
  }
  bool key(string_t& text) override {
    switch (state_) {
      case State::kTop:
        return top_key(text);
      case State::kField:
        return field_key(text);
      case State::kMetaKey:
        key_ = text;
        if (metadata.contains(text)) return bad("with the __metadata__ key '" + text + "' twice");
        return go(State::kMetaValue);
      default:
        return unexpected("a key");
    }
  }
  bool string(string_t& text) override {
    if (state_ == State::kMetaValue) {
      metadata[key_] = text;
      return go(State::kMetaKey);
    }
    if (state_ != State::kDtype) return unexpected("a string");
    const auto dtype = parse_dtype(text);
    if (!dtype) {
      code = ErrorCode::kUnsupported;
      return bad("of element type '" + text.substr(0, 32) + "'");
    }
    entries.back().dtype = *dtype;
    return go(State::kField);
  }
  bool start_array(size_t) override {
    if (state_ == State::kShape) return go(State::kShapeItems);
    if (state_ == State::kOffsets) return go(State::kOffsetItems);
    return unexpected("an array");
  }
  bool end_array() override {
    if (state_ == State::kOffsetItems && offsets_seen_ != 2) return bad("with data_offsets that are not two numbers");
    if (state_ == State::kShapeItems || state_ == State::kOffsetItems) return go(State::kField);
    return unexpected("the end of an array");
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (state_ == State::kShapeItems) {
      if (v > uint64_t{INT64_MAX}) return bad("with an extent of " + std::to_string(v));
      if (entries.back().shape.size() >= kMaxRank) return bad("of more than 32 dimensions");
      entries.back().shape.push_back(static_cast<int64_t>(v));
      return true;
    }
    if (state_ != State::kOffsetItems) return unexpected("a number");
    if (offsets_seen_ >= 2) return bad("with more than two data_offsets");
    (offsets_seen_++ == 0 ? entries.back().offset : entries.back().size_bytes) = v;
    return true;
  }
  bool number_integer(number_integer_t) override { return bad("with a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return bad("with a number that is not an integer"); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (problem.empty()) problem = "text that is not JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  enum class State {
    kStart,
    kTop,
    kEnd,
    kTensor,
    kField,
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kMetadata,
    kMetaKey,
    kMetaValue
  };
  bool go(State next) {
    state_ = next;
    return true;
  }
  bool bad(std::string what) {
    problem = std::move(what);
    problem_at = tensor_;
    return false;
  }
  bool unexpected(const char* what) { return bad(std::string("with ") + what + " where it does not belong"); }

  bool top_key(const std::string& text) {
    tensor_ = text.substr(0, 128);
    if (text == "__metadata__") {
      if (seen_metadata_) return bad("twice");
      seen_metadata_ = true;
      return go(State::kMetadata);
    }
    if (text.size() > kMaxNameBytes) return bad("with a name of more than 4096 bytes");
    entries.push_back({text, DType::kF32, {}, 0, 0});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_seen_ = 0;
    return go(State::kTensor);
  }
  bool field_key(const std::string& text) {
    bool* seen = text == "dtype"          ? &has_dtype_
                 : text == "shape"        ? &has_shape_
                 : text == "data_offsets" ? &has_offsets_
                                          : nullptr;
    if (seen == nullptr) return bad("with the unknown key '" + text.substr(0, 64) + "'");
    if (*seen) return bad("with '" + text + "' twice");
    *seen = true;
    return go(seen == &has_dtype_ ? State::kDtype : seen == &has_shape_ ? State::kShape : State::kOffsets);
  }

  State state_ = State::kStart;
  std::string tensor_, key_;
  bool seen_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_seen_ = 0;
};

/// Offsets relative to the data become absolute; every rule about sizes is checked. `data` = bytes after the header.
Status check_layout(std::vector<SafetensorsEntry>* entries, uint64_t data_start, uint64_t data,
                    const std::string& path) {
  std::stable_sort(entries->begin(), entries->end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.size_bytes) < std::pair(b.offset, b.size_bytes);
  });
  uint64_t end_of_last = 0;
  const SafetensorsEntry* last_empty = nullptr;
  for (auto& e : *entries) {
    const std::string where = path + ": tensor '" + e.name + "'";
    const uint64_t begin = e.offset, end = e.size_bytes;
    const std::string range = "bytes " + std::to_string(begin) + " to " + std::to_string(end);
    if (end < begin || end > data)
      return fail(ErrorCode::kCorrupt, where, range, "a range inside the " + std::to_string(data) + " data bytes",
                  "the file may be truncated");
    if (begin != end_of_last)
      return fail(ErrorCode::kCorrupt, where, range,
                  "to start at " + std::to_string(end_of_last) + " (no hole, no overlap)");
    const auto count = element_count(e.shape);
    if (!count) return fail(ErrorCode::kCorrupt, where, "shape " + shape_string(e.shape), "fewer than 2^63 elements");
    const auto bytes = checked_mul(static_cast<uint64_t>(*count), static_cast<uint64_t>(dtype_bytes(e.dtype)));
    if (!bytes || *bytes != end - begin)
      return fail(ErrorCode::kCorrupt, where, std::to_string(end - begin) + " bytes",
                  std::string("shape ") + shape_string(e.shape) + " of " + dtype_name(e.dtype));
    if (begin == end) {
      if (last_empty != nullptr && last_empty->offset == data_start + begin)
        return fail(ErrorCode::kCorrupt, where, "no bytes, at the offset of '" + last_empty->name + "'",
                    "empty tensors at offsets of their own");
      last_empty = &e;
    }
    end_of_last = end;
    e.offset = data_start + begin;
    e.size_bytes = end - begin;
  }
  if (end_of_last != data)
    return fail(ErrorCode::kCorrupt, path, std::to_string(data) + " data bytes",
                std::to_string(end_of_last) + ", where the last tensor ends");
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile f;
  LOWBIT_TRY_ASSIGN(f.file_, MappedFile::open(path));
  const auto bytes = f.file_->bytes();
  if (bytes.size() < 8) return fail(ErrorCode::kCorrupt, path, std::to_string(bytes.size()) + " bytes", "at least 8");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  if (header > kMaxHeaderBytes)
    return fail(ErrorCode::kCorrupt, path, "a header of " + std::to_string(header) + " bytes", "at most 100000000",
                "is this a safetensors file?");
  if (header > bytes.size() - 8)
    return fail(ErrorCode::kCorrupt, path,
                "a header of " + std::to_string(header) + " bytes in a file of " + std::to_string(bytes.size()),
                "a header inside the file", "the file may be truncated");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header);
  if (text.empty() || text[0] != '{')
    return fail(ErrorCode::kCorrupt, path + ": header", "no '{' at its start", "JSON");
  LOWBIT_TRY(check_json_limits(text, path + ": header",
                               {.depth = 4, .string_bytes = size_t{16} << 20, .text_bytes = kMaxHeaderBytes}));
  HeaderSax sax;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &sax)) {
    if (sax.problem_at.empty()) return fail(sax.code, path + ": header", sax.problem, "a safetensors header");
    return fail(sax.code, path + ": tensor '" + sax.problem_at + "'", "an entry " + sax.problem, "a safetensors entry");
  }
  f.tensors_ = std::move(sax.entries);
  f.metadata_ = std::move(sax.metadata);
  if (f.tensors_.size() > UINT32_MAX) return fail(ErrorCode::kUnsupported, path, "more than 2^32 tensors");
  LOWBIT_TRY(check_layout(&f.tensors_, 8 + header, bytes.size() - 8 - header, path));
  f.by_name_.resize(f.tensors_.size());
  for (uint32_t i = 0; i < f.by_name_.size(); ++i) f.by_name_[i] = i;
  const auto& tensors = f.tensors_;
  std::sort(f.by_name_.begin(), f.by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  const auto twice = std::adjacent_find(f.by_name_.begin(), f.by_name_.end(),
                                        [&](uint32_t a, uint32_t b) { return tensors[a].name == tensors[b].name; });
  if (twice != f.by_name_.end())
    return fail(ErrorCode::kCorrupt, path + ": header", "the tensor '" + tensors[*twice].name + "' twice",
                "each name once");
  LOWBIT_TRY(check_pages(bytes.data(), path.c_str()));
  return f;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return it == by_name_.end() || tensors_[*it].name != name ? nullptr : &tensors_[*it];
}

Result<Buffer> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  LOWBIT_TRY_ASSIGN(Buffer borrowed, file_->borrow(entry.offset, entry.size_bytes, "tensor '" + entry.name + "'"));
  if (reinterpret_cast<uintptr_t>(borrowed.data()) % static_cast<uint64_t>(dtype_bytes(entry.dtype)) == 0)
    return borrowed;
  LOWBIT_TRY_ASSIGN(Buffer copy, Buffer::allocate(borrowed.size(), entry.name.c_str()));
  if (!copy.empty()) std::memcpy(copy.data(), borrowed.data(), static_cast<size_t>(borrowed.size()));
  return copy;
}

}  // namespace lowbit
