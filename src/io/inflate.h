#pragma once
// DEFLATE, the compression of zip archives.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lowbit/error.h"

namespace lowbit {

/// out = what the DEFLATE stream `in` unpacks to; both must end together. Source: RFC 1951. Errors: kCorrupt, with
/// `out` partly written.
Status inflate(std::span<const std::byte> in, std::span<std::byte> out, const std::string& where);

/// The checksum of zip and PNG.
uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace lowbit
