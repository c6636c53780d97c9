#pragma once
// NumPy's .npy (versions 1 to 3) and .npz (stored or compressed) files, read without unpickling anything.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/tensor.h"
#include "tensor/buffer.h"

namespace lowbit {

struct NpyArray {
  std::string name;  // inside an .npz, without ".npy"; "" otherwise
  DType dtype = DType::kF32;
  Shape shape;
  /// Row-major, borrowed from the mapped file; of its own where it lies unaligned, in Fortran order or compressed.
  Buffer data;

  TensorView view() const { return {dtype, shape, data.span()}; }
};

/// Little-endian floats (f2 f4 f8), integers and booleans. Fortran order is turned into row-major.
/// Errors: as MappedFile::open; kCorrupt (broken header, too few or too many bytes), kUnsupported (objects, strings,
/// big-endian).
Result<NpyArray> read_npy(const std::string& path);

/// All arrays of an .npz in the order of its directory. Errors: as read_npy; kUnsupported (other compression than
/// DEFLATE, encrypted, members of 4 GiB, more data than 4 times the file and than 96 MiB above it), kCorrupt
/// (directory, sizes, checksums, names twice), kOutOfMemory.
Result<std::vector<NpyArray>> read_npz(const std::string& path);

}  // namespace lowbit
