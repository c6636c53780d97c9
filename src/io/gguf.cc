#include "io/gguf.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/gguf_i2s.h"
#include "io/lost_pages.h"

namespace lowbit {
namespace {

constexpr uint64_t kMaxKeys = 65536, kMaxKeyBytes = 65535, kMaxTensorNameBytes = 1024, kMaxAlignment = 65536;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8, kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr int kMaxParts = 10000;

/// Bytes of a value of fixed size, 0 for strings and arrays, nullopt for an unknown type.
std::optional<uint64_t> fixed_bytes(uint32_t type) {
  constexpr uint64_t kBytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (type >= 13) return std::nullopt;
  return kBytes[type];
}

constexpr const char* kTruncated = "the file may be truncated";

/// Reads from the mapped file, front to back; nothing is read that is not there.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {}
  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  tl::unexpected<Error> corrupt(const std::string& got, const std::string& wanted, const char* hint = "") const {
    return fail(ErrorCode::kCorrupt, path_ + ": byte " + std::to_string(at_), got, wanted, hint);
  }
  template <class T>
  Result<T> number(const char* what) {
    LOWBIT_TRY_ASSIGN(const auto raw, take(sizeof(T), what));
    T v;
    std::memcpy(&v, raw.data(), sizeof(T));
    return v;
  }
  Result<std::span<const std::byte>> take(uint64_t size, const char* what) {
    if (size > left())
      return corrupt(std::string(what) + " of " + std::to_string(size) + " bytes",
                     "at most the " + std::to_string(left()) + " left in the file", kTruncated);
    const auto out = bytes_.subspan(at_, size);
    at_ += size;
    return out;
  }
  Result<std::string_view> text(uint64_t limit, const char* what) {
    LOWBIT_TRY_ASSIGN(const uint64_t length, number<uint64_t>(what));
    if (length > limit || length > left())
      return corrupt(std::string(what) + " of " + std::to_string(length) + " bytes",
                     "at most " + std::to_string(std::min(limit, left())), length > limit ? "" : kTruncated);
    LOWBIT_TRY_ASSIGN(const auto raw, take(length, what));
    return std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
  }

 private:
  std::span<const std::byte> bytes_;
  std::string path_;
  uint64_t at_ = 0;
};

Status check_bool(const Cursor& cursor, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes)
    if (static_cast<uint8_t>(b) > 1)
      return cursor.corrupt("the boolean " + std::to_string(static_cast<uint8_t>(b)), "0 or 1");
  return {};
}

Result<GgufValue> read_array(Cursor& cursor) {
  GgufValue v;
  v.type = GgufValueType::kArray;
  LOWBIT_TRY_ASSIGN(const uint32_t item, cursor.number<uint32_t>("array type"));
  LOWBIT_TRY_ASSIGN(v.count, cursor.number<uint64_t>("array length"));
  const auto size = fixed_bytes(item);
  if (!size) return cursor.corrupt("the array type " + std::to_string(item), "0 to 12");
  v.item_type = static_cast<GgufValueType>(item);
  if (v.item_type == GgufValueType::kArray)
    return fail(ErrorCode::kUnsupported, "GGUF metadata at byte " + std::to_string(cursor.at()), "an array of arrays",
                "plain arrays");
  const auto refuse = [&] {
    return cursor.corrupt("an array of " + std::to_string(v.count),
                          "a length that the " + std::to_string(cursor.left()) + " bytes left can hold");
  };
  if (v.item_type != GgufValueType::kString) {
    const auto bytes = checked_mul(v.count, *size);
    if (!bytes || *bytes > cursor.left()) return refuse();
    LOWBIT_TRY_ASSIGN(v.bytes, cursor.take(*bytes, "array"));
    if (v.item_type == GgufValueType::kBool) LOWBIT_TRY(check_bool(cursor, v.bytes));
    return v;
  }
  if (v.count > cursor.left() / 8) return refuse();
  Cursor start = cursor;
  for (uint64_t i = 0; i < v.count; ++i) LOWBIT_TRY(cursor.text(UINT64_MAX, "string"));
  LOWBIT_TRY_ASSIGN(v.bytes, start.take(cursor.at() - start.at(), "array"));
  return v;
}

Result<GgufValue> read_value(Cursor& cursor) {
  LOWBIT_TRY_ASSIGN(const uint32_t type, cursor.number<uint32_t>("value type"));
  const auto size = fixed_bytes(type);
  if (!size) return cursor.corrupt("the value type " + std::to_string(type), "0 to 12");
  GgufValue v;
  v.type = static_cast<GgufValueType>(type);
  if (v.type == GgufValueType::kArray) return read_array(cursor);
  if (v.type == GgufValueType::kString) {
    LOWBIT_TRY_ASSIGN(const auto text, cursor.text(UINT64_MAX, "string"));
    v.bytes = std::as_bytes(std::span(text));
    return v;
  }
  LOWBIT_TRY_ASSIGN(v.bytes, cursor.take(*size, "value"));
  if (v.type == GgufValueType::kBool) LOWBIT_TRY(check_bool(cursor, v.bytes));
  return v;
}

struct PartHeader {
  uint32_t version = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
};

Result<uint32_t> read_version(Cursor& cursor, const std::string& path) {
  const auto magic = cursor.take(4, "magic number");
  if (!magic || std::memcmp(magic->data(), "GGUF", 4) != 0)
    return fail(ErrorCode::kCorrupt, path, "a file that does not start with GGUF", "a GGUF file");
  LOWBIT_TRY_ASSIGN(const uint32_t version, cursor.number<uint32_t>("version"));
  if (version != 0 && (version & 0xffff) == 0)
    return fail(ErrorCode::kUnsupported, path, "a big-endian GGUF file", "little-endian",
                "convert it with gguf_convert_endian.py");
  if (version < 2 || version > 3)
    return fail(ErrorCode::kUnsupported, path, "GGUF version " + std::to_string(version), "version 2 or 3");
  return version;
}

Result<GgufTensor> read_tensor_info(Cursor& cursor, const std::string& path) {
  GgufTensor t;
  LOWBIT_TRY_ASSIGN(const auto name, cursor.text(kMaxTensorNameBytes, "tensor name"));
  if (name.empty()) return cursor.corrupt("a tensor without a name", "a name");
  t.name = name;
  const std::string where = path + ": tensor '" + t.name + "'";
  LOWBIT_TRY_ASSIGN(const uint32_t dims, cursor.number<uint32_t>("number of dimensions"));
  if (dims < 1 || dims > 4) return fail(ErrorCode::kCorrupt, where, std::to_string(dims) + " dimensions", "1 to 4");
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dims; ++d) {
    LOWBIT_TRY_ASSIGN(const uint64_t extent, cursor.number<uint64_t>("extent"));
    const auto product = checked_mul(elements, extent);
    if (extent == 0 || !product || *product > uint64_t{INT64_MAX})
      return fail(ErrorCode::kCorrupt, where, "an extent of " + std::to_string(extent),
                  "extents above 0, fewer than 2^63 elements");
    elements = *product;
    t.shape.insert(t.shape.begin(), static_cast<int64_t>(extent));
  }
  LOWBIT_TRY_ASSIGN(t.type_id, cursor.number<uint32_t>("tensor type"));
  LOWBIT_TRY_ASSIGN(t.offset, cursor.number<uint64_t>("tensor offset"));
  const GgufTypeInfo* info = gguf_type_info(t.type_id);
  if (info == nullptr)
    return fail(ErrorCode::kUnsupported, where, "GGUF type " + std::to_string(t.type_id), "a type that lowbit knows");
  if (t.k() % info->block_elems != 0)
    return fail(ErrorCode::kCorrupt, where, "rows of " + std::to_string(t.k()),
                std::string("whole blocks of ") + std::to_string(info->block_elems) + " for " + info->name);
  const auto bytes =
      checked_mul(elements / static_cast<uint64_t>(info->block_elems), static_cast<uint64_t>(info->block_bytes));
  const bool tail = info->id == GgufType::kI2S;
  const auto all = bytes && tail ? checked_add(*bytes, static_cast<uint64_t>(kI2sTailBytes)) : bytes;
  if (!all) return fail(ErrorCode::kCorrupt, where, "shape " + shape_string(t.shape), "fewer than 2^64 bytes");
  t.size_bytes = *all;
  return t;
}

const GgufValue* find_value(const std::vector<std::pair<std::string, GgufValue>>& metadata, std::string_view key) {
  const auto it = std::lower_bound(metadata.begin(), metadata.end(), key,
                                   [](const auto& kv, std::string_view k) { return kv.first < k; });
  return it == metadata.end() || it->first != key ? nullptr : &it->second;
}

Result<uint64_t> read_alignment(const PartHeader& header, const std::string& path) {
  const GgufValue* v = find_value(header.metadata, "general.alignment");
  if (v == nullptr) return 32;
  const auto alignment = v->type == GgufValueType::kU32 ? v->as_int() : std::nullopt;
  if (!alignment || *alignment < 1 || static_cast<uint64_t>(*alignment) > kMaxAlignment ||
      (*alignment & (*alignment - 1)) != 0)
    return fail(ErrorCode::kCorrupt, path + ": general.alignment",
                alignment ? std::to_string(*alignment) : "another type than uint32", "a power of two up to 65536");
  return static_cast<uint64_t>(*alignment);
}

/// Relative offsets become absolute ones; tensors must lie one after the other, padded to the alignment.
Status place_tensors(PartHeader* header, uint64_t info_end, uint64_t file_size, const std::string& path) {
  LOWBIT_TRY_ASSIGN(const uint64_t alignment, read_alignment(*header, path));
  const auto padded = [alignment](uint64_t v) -> std::optional<uint64_t> {
    const auto sum = checked_add(v, alignment - 1);
    if (!sum) return std::nullopt;
    return *sum / alignment * alignment;
  };
  const auto start = padded(info_end);
  if (!start) return fail(ErrorCode::kCorrupt, path, "a header end beyond 2^64");
  uint64_t expected = 0;
  for (auto& t : header->tensors) {
    const std::string where = path + ": tensor '" + t.name + "'";
    if (t.offset != expected)
      return fail(ErrorCode::kCorrupt, where, "offset " + std::to_string(t.offset),
                  std::to_string(expected) + ", after the tensor before it");
    const auto begin = checked_add(*start, t.offset);
    const auto end = begin ? checked_add(*begin, t.size_bytes) : std::nullopt;
    if (!end || *end > file_size)
      return fail(ErrorCode::kCorrupt, where,
                  std::to_string(t.size_bytes) + " bytes at offset " + std::to_string(t.offset),
                  "data inside the file of " + std::to_string(file_size), kTruncated);
    const auto next = padded(t.offset + t.size_bytes);
    if (!next) return fail(ErrorCode::kCorrupt, where, "an end beyond 2^64");
    expected = *next;
    t.offset = *begin;
  }
  return {};
}

Result<PartHeader> read_part(std::span<const std::byte> bytes, const std::string& path) {
  PartHeader header;
  Cursor cursor(bytes, path);
  LOWBIT_TRY_ASSIGN(header.version, read_version(cursor, path));
  LOWBIT_TRY_ASSIGN(const uint64_t tensors, cursor.number<uint64_t>("number of tensors"));
  LOWBIT_TRY_ASSIGN(const uint64_t keys, cursor.number<uint64_t>("number of keys"));
  if (tensors > cursor.left() / kMinTensorInfoBytes)
    return cursor.corrupt(std::to_string(tensors) + " tensors", "a number that the file can hold", kTruncated);
  if (keys > kMaxKeys || keys > cursor.left() / kMinKeyBytes)
    return cursor.corrupt(std::to_string(keys) + " keys", "a number that the file can hold, at most 65536", kTruncated);
  for (uint64_t i = 0; i < keys; ++i) {
    LOWBIT_TRY_ASSIGN(const auto key, cursor.text(kMaxKeyBytes, "key"));
    if (key.empty()) return cursor.corrupt("an empty key", "a name");
    LOWBIT_TRY_ASSIGN(const GgufValue value, read_value(cursor));
    header.metadata.emplace_back(std::string(key), value);
  }
  std::sort(header.metadata.begin(), header.metadata.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 1; i < header.metadata.size(); ++i)
    if (header.metadata[i].first == header.metadata[i - 1].first)
      return fail(ErrorCode::kCorrupt, path, "the key '" + header.metadata[i].first + "' twice", "each key once");
  for (uint64_t i = 0; i < tensors; ++i) {
    LOWBIT_TRY_ASSIGN(auto tensor, read_tensor_info(cursor, path));
    header.tensors.push_back(std::move(tensor));
  }
  LOWBIT_TRY(place_tensors(&header, cursor.at(), bytes.size(), path));
  return header;
}

}  // namespace

Status GgufFile::open_part(const std::string& path, uint32_t part) {
  LOWBIT_TRY_ASSIGN(auto file, MappedFile::open(path));
  LOWBIT_TRY_ASSIGN(auto header, read_part(file->bytes(), path));
  LOWBIT_TRY(check_pages(file->bytes().data(), path.c_str()));
  const GgufValue* number = find_value(header.metadata, "split.no");
  if (number != nullptr && number->as_int().value_or(-1) != int64_t{part})
    return fail(ErrorCode::kInvalidArgument, path, "part " + std::to_string(number->as_int().value_or(-1) + 1),
                "part " + std::to_string(part + 1), part == 0 ? "give the first part, ...-00001-of-" : "");
  for (auto& t : header.tensors) {
    t.part = part;
    tensors_.push_back(std::move(t));
  }
  if (part == 0) {
    version_ = header.version;
    metadata_ = std::move(header.metadata);
  }
  parts_.push_back(std::move(file));
  return {};
}

Status GgufFile::open_siblings(const std::string& path) {
  const GgufValue* v = value("split.count");
  const int64_t count = v == nullptr ? 1 : v->as_int().value_or(-1);
  if (count < 0 || count > kMaxParts)
    return fail(ErrorCode::kCorrupt, path + ": split.count", std::to_string(count), "1 to 10000");
  if (count <= 1) return {};
  const auto five = [](int64_t i) {
    const std::string digits = std::to_string(i);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  const std::string tail = "-of-" + five(count) + ".gguf", first = "-" + five(1) + tail;
  if (!path.ends_with(first))
    return fail(ErrorCode::kInvalidArgument, path, "the first of " + std::to_string(count) + " parts",
                "a name that ends in " + first);
  const std::string stem = path.substr(0, path.size() - first.size());
  for (int64_t i = 1; i < count; ++i) LOWBIT_TRY(open_part(stem + "-" + five(i + 1) + tail, static_cast<uint32_t>(i)));
  return {};
}

Result<bool> GgufFile::same_tensor(const GgufTensor& a, const GgufTensor& b) const {
  if (a.shape != b.shape || a.type_id != b.type_id) return false;
  LOWBIT_TRY_ASSIGN(const Buffer x, bytes(a));
  LOWBIT_TRY_ASSIGN(const Buffer y, bytes(b));
  const bool same = std::memcmp(x.data(), y.data(), static_cast<size_t>(x.size())) == 0;
  release(a);
  release(b);
  return same;
}

Status GgufFile::index_tensors() {
  constexpr const char* kHead = "output.weight";
  std::optional<uint32_t> head_again;  // is there already
  by_name_.resize(tensors_.size());
  for (uint32_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const GgufTensor &a = tensors_[by_name_[i - 1]], &b = tensors_[by_name_[i]];
    if (a.name != b.name) continue;
    // BitNet's writers list the head twice. Nothing else, and not more often: comparing costs what the file says it
    // has.
    const bool third = i > 1 && tensors_[by_name_[i - 2]].name == b.name;
    LOWBIT_TRY_ASSIGN(const bool same, b.name == kHead && !third ? same_tensor(a, b) : Result<bool>(false));
    if (!same) return fail(ErrorCode::kCorrupt, path(), "the tensor '" + b.name + "' twice", "each name once");
    head_again = by_name_[i];
  }
  if (!head_again) return {};
  tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(*head_again));
  return index_tensors();
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  GgufFile f;
  LOWBIT_TRY(f.open_part(path, 0));
  LOWBIT_TRY(f.open_siblings(path));
  LOWBIT_TRY(f.index_tensors());
  return f;
}

int64_t GgufFile::size_bytes() const {
  int64_t sum = 0;
  for (const auto& p : parts_) sum += p->size();
  return sum;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return it == by_name_.end() || tensors_[*it].name != name ? nullptr : &tensors_[*it];
}

const GgufValue* GgufFile::value(std::string_view key) const { return find_value(metadata_, key); }

Result<Buffer> GgufFile::bytes(const GgufTensor& t) const {
  return parts_[t.part]->borrow(t.offset, t.size_bytes, "tensor '" + t.name + "'");
}

Result<QTensor> GgufFile::load(const GgufTensor& t) const {
  LOWBIT_TRY_ASSIGN(const Buffer raw, bytes(t));
  auto w = gguf_to_qtensor(static_cast<GgufType>(t.type_id), t.n(), t.k(), raw);
  if (!w) w.error().where = path() + ": tensor '" + t.name + "', " + w.error().where;
  return w;
}

void GgufFile::release(const GgufTensor& t) const { parts_[t.part]->release(t.offset, t.size_bytes); }

}  // namespace lowbit
