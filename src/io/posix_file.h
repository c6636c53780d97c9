#pragma once
// The few POSIX calls behind everything that lowbit writes.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/file.h"

namespace lowbit {

/// kIo with what the system says about `path` right now (errno).
tl::unexpected<Error> io_error(const std::string& path, const char* wanted);

/// A new or emptied file for writing (0666 & ~umask), close-on-exec. Returns the descriptor.
Result<int> create_file(const std::string& path);

/// A regular file for reading, close-on-exec; opening a pipe does not wait for its writer. Returns the descriptor.
/// Errors: kNotFound, kInvalidArgument (a directory), kIo (permission, a device or pipe).
Result<int> open_regular(const std::string& path);

/// All of `bytes`, however often the system writes less.
Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path);

/// fsync and close, both checked: on some file systems a full disk shows only here.
Status sync_and_close(int fd, const std::string& path);

/// The entries of a directory but "." and "..", in byte order. The standard library's iterator ends the process where
/// it gets no memory. Errors: kIo.
Result<std::vector<std::string>> directory_names(const std::string& path);

/// Makes the names in a directory durable.
Status sync_directory(const std::string& path);

/// write_text_file() of lowbit/file.h for bytes: `pieces` one behind the other.
Status write_binary_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);

}  // namespace lowbit
