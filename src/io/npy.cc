#include "io/npy.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "io/inflate.h"
#include "io/lost_pages.h"
#include "io/mapped_file.h"

namespace lowbit {
namespace {

constexpr size_t kMaxNpyRank = 32;
constexpr size_t kMaxNpyHeaderBytes = 65536;

template <class T>
T load(std::span<const std::byte> bytes, size_t at) {
  T v;
  std::memcpy(&v, bytes.data() + at, sizeof(T));
  return v;
}

struct Header {
  std::string descr;
  bool fortran = false;
  Shape shape;
};

/// The Python dict literal of a header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class DictParser {
 public:
  explicit DictParser(std::string_view text) : text_(text) {}

  std::optional<Header> parse() {
    Header h;
    bool descr = false, order = false, shape = false;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      const auto key = quoted();
      if (!key || !take(':')) return std::nullopt;
      if (*key == "descr" && !descr) {
        const auto v = quoted();
        if (!v) return std::nullopt;
        h.descr = *v;
        descr = true;
      } else if (*key == "fortran_order" && !order) {
        if (word("True")) {
          h.fortran = true;
        } else if (!word("False")) {
          return std::nullopt;
        }
        order = true;
      } else if (*key == "shape" && !shape) {
        if (!tuple(&h.shape)) return std::nullopt;
        shape = true;
      } else {
        return std::nullopt;
      }
      if (!take(',') && peek() != '}') return std::nullopt;
    }
    if (peek() != '\0' || !descr || !order || !shape) return std::nullopt;
    return h;
  }

 private:
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view w) {
    (void)peek();
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }
  std::optional<std::string> quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return std::nullopt;
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return out;
  }
  bool tuple(Shape* shape) {
    if (!take('(')) return false;
    while (!take(')')) {
      int64_t v = 0;
      bool any = false;
      for (char c = peek(); c >= '0' && c <= '9'; c = at_ < text_.size() ? text_[at_] : '\0') {
        if (v > (INT64_MAX - 9) / 10) return false;
        v = 10 * v + (c - '0');
        any = true;
        ++at_;
      }
      if (!any || shape->size() >= kMaxNpyRank) return false;
      shape->push_back(v);
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }
  std::string_view text_;
  size_t at_ = 0;
};

Result<DType> dtype_of(const std::string& descr, const std::string& where) {
  static const std::pair<const char*, DType> kTypes[] = {
      {"f8", DType::kF64}, {"f4", DType::kF32}, {"f2", DType::kF16}, {"i8", DType::kI64},
      {"i4", DType::kI32}, {"i2", DType::kI16}, {"i1", DType::kI8},  {"u8", DType::kU64},
      {"u4", DType::kU32}, {"u2", DType::kU16}, {"u1", DType::kU8},  {"b1", DType::kBool}};
  for (const auto& [name, dtype] : kTypes)
    if (descr.size() == 3 && descr.substr(1) == name &&
        (descr[0] == '<' || (descr[0] == '|' && dtype_bytes(dtype) == 1)))
      return dtype;
  return fail(ErrorCode::kUnsupported, where, "the element type '" + descr.substr(0, 32) + "'",
              "little-endian floats, integers or booleans",
              descr.find('O') != std::string::npos ? "Python objects are never read; save plain arrays" : "");
}

/// A column-major array's elements in row-major order.
Result<Buffer> from_fortran(const Buffer& in, const Shape& given, int64_t element, const std::string& where) {
  LOWBIT_TRY_ASSIGN(Buffer out, Buffer::allocate(in.size(), where.c_str()));
  const int64_t count = in.size() / element;
  Shape shape;
  for (const int64_t extent : given)
    if (extent != 1) shape.push_back(extent);  // dozens of axes of one would cost a step each for every element
  if (shape.empty()) shape = {1};
  std::vector<int64_t> index(shape.size(), 0), stride(shape.size(), 1);
  for (size_t d = shape.size() - 1; d-- > 0;) stride[d] = stride[d + 1] * shape[d + 1];
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {  // i counts in file order: the first index runs fastest
    std::memcpy(out.data() + at * element, in.data() + i * element, static_cast<size_t>(element));
    for (size_t d = 0; d < shape.size(); ++d) {
      at += stride[d];
      if (++index[d] < shape[d]) break;
      at -= stride[d] * shape[d];
      index[d] = 0;
    }
  }
  return out;
}

/// A whole .npy file. The array may borrow from it.
Result<NpyArray> parse_npy(const Buffer& all, const std::string& where) {
  const auto bytes = all.span();
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0)
    return fail(ErrorCode::kCorrupt, where, "no .npy header", "a NumPy array");
  const auto major = load<uint8_t>(bytes, 6);
  if (major < 1 || major > 3)
    return fail(ErrorCode::kUnsupported, where, ".npy version " + std::to_string(major), "1, 2 or 3");
  const size_t start = major == 1 ? 10 : 12;
  if (bytes.size() < start) return fail(ErrorCode::kCorrupt, where, "a header cut short", "a NumPy array");
  const size_t length = major == 1 ? load<uint16_t>(bytes, 8) : load<uint32_t>(bytes, 8);
  if (length > kMaxNpyHeaderBytes || length > bytes.size() - start)
    return fail(ErrorCode::kCorrupt, where, "a header of " + std::to_string(length) + " bytes",
                "at most 65536, inside the file");
  const auto header = DictParser({reinterpret_cast<const char*>(bytes.data()) + start, length}).parse();
  if (!header)
    return fail(ErrorCode::kCorrupt, where, "a header that is not NumPy's",
                "{'descr': .., 'fortran_order': .., 'shape': ..}");
  NpyArray a;
  LOWBIT_TRY_ASSIGN(a.dtype, dtype_of(header->descr, where));
  a.shape = header->shape;
  const auto count = element_count(a.shape);
  const auto element = dtype_bytes(a.dtype);
  const auto data = count ? checked_mul(static_cast<uint64_t>(*count), static_cast<uint64_t>(element)) : std::nullopt;
  if (!data || *data != bytes.size() - start - length)
    return fail(ErrorCode::kCorrupt, where, std::to_string(bytes.size() - start - length) + " data bytes",
                "as many as " + shape_string(a.shape) + " of '" + header->descr + "' has", "the file may be truncated");
  const auto owner = std::make_shared<Buffer>(all);
  a.data = Buffer::borrow(owner->span().subspan(start + length), owner);
  if (header->fortran && a.shape.size() > 1 && *data > 0) {
    LOWBIT_TRY_ASSIGN(a.data, from_fortran(a.data, a.shape, element, where));
  } else if (reinterpret_cast<uintptr_t>(a.data.data()) % static_cast<uint64_t>(element) != 0) {
    LOWBIT_TRY_ASSIGN(Buffer copy, Buffer::allocate(a.data.size(), where.c_str()));
    if (!copy.empty()) std::memcpy(copy.data(), a.data.data(), static_cast<size_t>(copy.size()));
    a.data = copy;
  }
  return a;
}

constexpr uint32_t kEndSignature = 0x06054b50, kCentralSignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr size_t kEndBytes = 22, kCentralBytes = 46, kLocalBytes = 30;
constexpr unsigned kStored = 0, kDeflated = 8;

/// Offset of the end-of-directory record, which a comment of up to 65,535 bytes may follow.
std::optional<size_t> find_end(std::span<const std::byte> bytes) {
  if (bytes.size() < kEndBytes) return std::nullopt;
  const size_t last = bytes.size() - kEndBytes, first = last > 65535 ? last - 65535 : 0;
  for (size_t at = last + 1; at-- > first;)
    if (load<uint32_t>(bytes, at) == kEndSignature && load<uint16_t>(bytes, at + 20) == bytes.size() - at - kEndBytes)
      return at;
  return std::nullopt;
}

struct Member {
  std::string name;
  uint64_t offset = 0, packed = 0, size = 0;  // of the data in the file, and its size unpacked
  uint32_t checksum = 0;
  bool is_packed = false;
};

Result<Member> read_member(std::span<const std::byte> bytes, size_t* at, size_t end, const std::string& path) {
  const auto broken = [&](const char* what) {
    return fail(ErrorCode::kCorrupt, path + ": zip directory", what, "a sound .npz file");
  };
  if (end - *at < kCentralBytes || load<uint32_t>(bytes, *at) != kCentralSignature) return broken("a broken entry");
  const auto flags = load<uint16_t>(bytes, *at + 8), method = load<uint16_t>(bytes, *at + 10);
  uint64_t packed = load<uint32_t>(bytes, *at + 20), size = load<uint32_t>(bytes, *at + 24),
           local = load<uint32_t>(bytes, *at + 42);
  const size_t name = load<uint16_t>(bytes, *at + 28), extra = load<uint16_t>(bytes, *at + 30),
               comment = load<uint16_t>(bytes, *at + 32);
  if (end - *at - kCentralBytes < name + extra + comment) return broken("an entry longer than the directory");
  Member m;
  m.checksum = load<uint32_t>(bytes, *at + 16);
  m.name.assign(reinterpret_cast<const char*>(bytes.data()) + *at + kCentralBytes, name);
  *at += kCentralBytes + name + extra + comment;
  const std::string where = path + ": '" + m.name.substr(0, 128) + "'";
  if (flags & 1) return fail(ErrorCode::kUnsupported, where, "an encrypted member", "a plain one");
  if (method != kStored && method != kDeflated)
    return fail(ErrorCode::kUnsupported, where, "compression " + std::to_string(method), "DEFLATE, or none");
  if (packed == UINT32_MAX || size == UINT32_MAX || local == UINT32_MAX)
    return fail(ErrorCode::kUnsupported, where, "a member of 4 GiB or more", "smaller ones", "save it as .npy");
  m.is_packed = method == kDeflated;
  // A byte of DEFLATE makes at most 1,032: no file can ask for any amount of memory.
  if (m.is_packed ? size / 1032 > packed : packed != size) return broken("a member whose sizes cannot be");
  if (local > bytes.size() || bytes.size() - local < kLocalBytes || load<uint32_t>(bytes, local) != kLocalSignature)
    return broken("a member outside the file");
  m.offset = local + kLocalBytes + load<uint16_t>(bytes, local + 26) + load<uint16_t>(bytes, local + 28);
  m.packed = packed;
  m.size = size;
  if (m.offset > bytes.size() || packed > bytes.size() - m.offset) return broken("a member outside the file");
  return m;
}

/// The most bytes to which all compressed members of a file together may unpack, so that a small file cannot ask for
/// any amount of memory. Narrow elements count as the four bytes that readers make of them.
class UnpackBudget {
 public:
  explicit UnpackBudget(uint64_t file_bytes) : limit_(std::max(file_bytes + kExtra, 4 * file_bytes)), left_(limit_) {}

  Status take(uint64_t bytes, const std::string& where) {
    if (bytes > left_)
      return fail(ErrorCode::kUnsupported, where, "compressed arrays of more than " + std::to_string(limit_) + " bytes",
                  "4 times the file, or 96 MiB more than it", "save them with np.savez, which does not compress");
    left_ -= bytes;
    return {};
  }

 private:
  static constexpr uint64_t kExtra = uint64_t{96} << 20;
  uint64_t limit_, left_;
};

/// The bytes of a member: borrowed from the file, or unpacked.
Result<Buffer> unpack_member(const MappedFile& file, const Member& m, const std::string& path) {
  const std::string where = path + ": '" + m.name.substr(0, 128) + "'";
  LOWBIT_TRY_ASSIGN(Buffer bytes, file.borrow(m.offset, m.packed, "array"));
  if (m.is_packed) {
    LOWBIT_TRY_ASSIGN(Buffer unpacked, Buffer::allocate(static_cast<int64_t>(m.size), where.c_str()));
    LOWBIT_TRY(inflate(bytes.span(), unpacked.span(), where));
    bytes = std::move(unpacked);
  }
  if (crc32(bytes.span()) != m.checksum)
    return fail(ErrorCode::kCorrupt, where, "other bytes than its checksum says", "a sound .npz file");
  return bytes;
}

}  // namespace

Result<NpyArray> read_npy(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const auto file, MappedFile::open(path));
  LOWBIT_TRY_ASSIGN(const Buffer all, file->borrow(0, static_cast<uint64_t>(file->size()), "array"));
  LOWBIT_TRY_ASSIGN(NpyArray array, parse_npy(all, path));
  LOWBIT_TRY(check_pages(all.data(), path.c_str()));
  return array;
}

Result<std::vector<NpyArray>> read_npz(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const auto file, MappedFile::open(path));
  const auto bytes = file->bytes();
  const auto end = find_end(bytes);
  if (!end) return fail(ErrorCode::kCorrupt, path, "no zip directory", "an .npz file", "the file may be truncated");
  const size_t count = load<uint16_t>(bytes, *end + 10);
  const uint64_t size = load<uint32_t>(bytes, *end + 12), start = load<uint32_t>(bytes, *end + 16);
  if (start > *end || size != *end - start)
    return fail(ErrorCode::kCorrupt, path + ": zip directory", "a place outside the file", "a sound .npz file");
  std::vector<NpyArray> out;
  std::set<std::string> names;
  size_t at = start;
  uint64_t total = 0;
  UnpackBudget budget(bytes.size());
  for (size_t i = 0; i < count; ++i) {
    LOWBIT_TRY_ASSIGN(const Member m, read_member(bytes, &at, *end, path));
    total += m.packed;  // members that share bytes could ask for any amount of memory
    if (total > bytes.size())
      return fail(ErrorCode::kCorrupt, path + ": zip directory", "members that overlap", "a sound .npz file");
    if (!m.name.ends_with(".npy"))
      return fail(ErrorCode::kUnsupported, path + ": '" + m.name.substr(0, 128) + "'", "a member that is no array",
                  "only .npy members");
    if (!names.insert(m.name).second)
      return fail(ErrorCode::kCorrupt, path, "'" + m.name + "' twice", "each name once");
    const std::string where = path + ": '" + m.name.substr(0, 128) + "'";
    if (m.is_packed) LOWBIT_TRY(budget.take(m.size, where));
    LOWBIT_TRY_ASSIGN(const Buffer member, unpack_member(*file, m, path));
    LOWBIT_TRY_ASSIGN(NpyArray a, parse_npy(member, where));
    const auto element = static_cast<uint64_t>(dtype_bytes(a.dtype)), wide = uint64_t{4};
    if (m.is_packed && element < wide) LOWBIT_TRY(budget.take(m.size / element * (wide - element), where));
    a.name = m.name.substr(0, m.name.size() - 4);
    out.push_back(std::move(a));
  }
  if (at != *end)
    return fail(ErrorCode::kCorrupt, path + ": zip directory", "bytes after its last entry", "a sound .npz file");
  LOWBIT_TRY(check_pages(bytes.data(), path.c_str()));
  return out;
}

}  // namespace lowbit
