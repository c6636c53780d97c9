#include "io/inflate.h"

#define ZLIB_CONST  // zlib: next_in is const
#include <zlib.h>

#include <algorithm>
#include <limits>

namespace lowbit {
namespace {

/// The whole of `in` into the whole of `out`; what is wrong, or null. zlib counts both in 32 bits.
const char* unpack(z_stream& z, std::span<const std::byte> in, std::span<std::byte> out) {
  constexpr size_t kMost = std::numeric_limits<uInt>::max();
  std::byte nothing{};  // zlib wants a place even where it has nothing to write
  for (;;) {
    const auto given = static_cast<uInt>(std::min(in.size(), kMost)),
               room = static_cast<uInt>(std::min(out.size(), kMost));
    z.next_in = reinterpret_cast<const Bytef*>(in.data());
    z.avail_in = given;
    z.next_out = reinterpret_cast<Bytef*>(room > 0 ? out.data() : &nothing);
    z.avail_out = room;
    const int result = ::inflate(&z, Z_NO_FLUSH);
    in = in.subspan(given - z.avail_in);
    out = out.subspan(room - z.avail_out);
    if (result == Z_STREAM_END)
      return !in.empty() ? "an end before theirs" : !out.empty() ? "fewer bytes in them" : nullptr;
    if (result == Z_BUF_ERROR) return in.empty() ? "their end missing" : "more bytes in them";
    if (result != Z_OK) return z.msg != nullptr ? z.msg : "an error of zlib";
  }
}

}  // namespace

Status inflate(std::span<const std::byte> in, std::span<std::byte> out, const std::string& where) {
  z_stream z{};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK)  // negative: no header around the stream
    return fail(ErrorCode::kOutOfMemory, where, "no memory for zlib", "a few tens of KiB");
  const char* const wrong = unpack(z, in, out);
  const std::string got = wrong == nullptr ? "" : std::string("packed bytes with ") + wrong;
  inflateEnd(&z);
  if (wrong == nullptr) return {};
  return fail(ErrorCode::kCorrupt, where, got, std::to_string(out.size()) + " bytes packed by DEFLATE");
}

uint32_t crc32(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace lowbit
