// Float arrays in and out, for the verbs.

#include <algorithm>
#include <filesystem>

#include "base/try.h"
#include "io/lost_pages.h"
#include "io/npy.h"
#include "io/posix_file.h"
#include "lowbit/gru.h"

namespace lowbit {

namespace {

Result<GruArray> as_floats(const NpyArray& array, std::string name) {
  LOWBIT_TRY_ASSIGN(const int64_t count, element_count(array.shape));
  GruArray out{std::move(name), array.shape, std::vector<float>(static_cast<size_t>(count))};
  convert_to_f32(array.view(), 0, count, out.data.data());
  LOWBIT_TRY(check_pages(array.data.data(), out.name.c_str()));
  return out;
}

}  // namespace

Result<std::vector<GruArray>> read_float_arrays(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<GruArray> out;
  if (path.ends_with(".npz")) {
    LOWBIT_TRY_ASSIGN(auto all, read_npz(path));
    for (NpyArray& a : all) {
      LOWBIT_TRY_ASSIGN(GruArray array, as_floats(a, a.name));
      out.push_back(std::move(array));
      a = {};  // both at once would be twice the memory
    }
    return out;
  }
  std::vector<fs::path> files;
  std::error_code failed;
  if (fs::is_directory(path, failed)) {
    LOWBIT_TRY_ASSIGN(const auto names, directory_names(path));
    for (const std::string& name : names)
      if (fs::path(name).extension() == ".npy") files.push_back(path + "/" + name);
  } else {
    files = {path};
  }
  for (const fs::path& file : files) {
    LOWBIT_TRY_ASSIGN(const NpyArray a, read_npy(file.string()));
    LOWBIT_TRY_ASSIGN(GruArray array, as_floats(a, file.stem().string()));
    out.push_back(std::move(array));
  }
  return out;
}

Result<GruArray> read_float_array(const std::string& path) {
  LOWBIT_TRY_ASSIGN(auto all, read_float_arrays(path));
  if (all.size() != 1) return fail(ErrorCode::kInvalidArgument, path, std::to_string(all.size()) + " arrays", "one");
  return std::move(all[0]);
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
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(start)), std::as_bytes(data)};
  return write_binary_file(path, pieces);
}

}  // namespace lowbit
