// Float arrays in and out, for the verbs.

#include "base/try.h"
#include "io/npy.h"
#include "io/posix_file.h"
#include "lowbit/gru.h"

namespace lowbit {

Result<GruArray> read_float_array(const std::string& path) {
  NpyArray array;
  if (path.ends_with(".npz")) {
    LOWBIT_TRY_ASSIGN(auto all, read_npz(path));
    if (all.size() != 1) return fail(ErrorCode::kInvalidArgument, path, std::to_string(all.size()) + " arrays", "one");
    array = std::move(all[0]);
  } else {
    LOWBIT_TRY_ASSIGN(array, read_npy(path));
  }
  LOWBIT_TRY_ASSIGN(const int64_t count, element_count(array.shape));
  GruArray out{array.shape, std::vector<float>(static_cast<size_t>(count))};
  convert_to_f32(array.view(), 0, count, out.data.data());
  return out;
}

Status write_float_array(const std::string& path, std::span<const float> data, std::span<const int64_t> shape) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const int64_t n : shape) header += std::to_string(n) + ", ";
  header += "), }";
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  std::string start = "\x93NUMPY";
  start += {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  start += header;
  LOWBIT_TRY_ASSIGN(const int fd, create_file(path));
  Status status = write_all(fd, std::as_bytes(std::span(start)), path);
  if (status) status = write_all(fd, std::as_bytes(data), path);
  const Status closed = sync_and_close(fd, path);
  return status ? closed : status;
}

}  // namespace lowbit
