#include "model/fetch_tensor.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <span>

#include "base/try.h"

namespace lowbit {
namespace {

template <class U>
bool all_finite(const std::byte* data, int64_t n, U exponent_mask) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    U bits;
    std::memcpy(&bits, data + i * int64_t(sizeof(U)), sizeof(U));
    finite &= (bits & exponent_mask) != exponent_mask;
  }
  return finite;
}

enum class Bits { kF32, kF16, kBf16, kE4m3, kNotFloat };

bool all_finite(Bits kind, const std::byte* data, int64_t n) {
  switch (kind) {
    case Bits::kF32:
      return all_finite<uint32_t>(data, n, 0x7f800000u);
    case Bits::kF16:
      return all_finite<uint16_t>(data, n, 0x7c00u);
    case Bits::kBf16:
      return all_finite<uint16_t>(data, n, 0x7f80u);
    case Bits::kE4m3:
      return all_finite<uint8_t>(data, n, 0x7fu);  // the only NaN of each sign
    case Bits::kNotFloat:
      break;
  }
  return true;
}

bool all_finite(Bits kind, const Buffer& buffer, ThreadPool& pool) {
  const int64_t width = kind == Bits::kF32 ? 4 : kind == Bits::kE4m3 ? 1 : 2;
  if (kind == Bits::kNotFloat) return true;
  std::atomic<bool> finite{true};
  pool.parallel_for(buffer.size() / width, 1 << 18, [&](int64_t begin, int64_t end, int) {
    if (!all_finite(kind, buffer.data() + begin * width, end - begin)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

Bits bits_of_codes(FormatId format) {
  switch (format) {
    case FormatId::kF32:
      return Bits::kF32;
    case FormatId::kF16:
      return Bits::kF16;
    case FormatId::kBf16:
      return Bits::kBf16;
    case FormatId::kFp8:
      return Bits::kE4m3;
    default:
      return Bits::kNotFloat;
  }
}

Bits bits_of_scales(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kF32:
      return Bits::kF32;
    case ScaleKind::kF16:
      return Bits::kF16;
    case ScaleKind::kBf16:
      return Bits::kBf16;
    default:
      return Bits::kNotFloat;
  }
}

Bits bits_of_zeros(const Scaling& scaling) {
  switch (scaling.zero) {
    case ZeroKind::kPointF16:
      return Bits::kF16;
    case ZeroKind::kOffset:
      return scaling.scale == ScaleKind::kF32 ? Bits::kF32 : Bits::kF16;
    default:
      return Bits::kNotFloat;
  }
}

}  // namespace

Status check_finite(const QTensor& w, const std::string& name, ThreadPool& pool) {
  const char* part = nullptr;
  if (!all_finite(bits_of_codes(w.format), w.codes, pool)) part = "weights";
  if (!all_finite(bits_of_scales(w.scaling.scale), w.scales, pool)) part = "scales";
  if (!all_finite(Bits::kF16, w.super_scales, pool)) part = "super-scales";
  if (!all_finite(bits_of_zeros(w.scaling), w.zeros, pool)) part = "zeros";
  if (!all_finite(Bits::kF32, std::as_bytes(std::span(w.codebook)).data(), int64_t(w.codebook.size())))
    part = "codebook";
  if (part != nullptr)
    return fail(ErrorCode::kCorrupt, name, fmt::format("NaN or infinity in its {}", part), "finite numbers",
                "the file is damaged, or the model overflowed when it was converted");
  return {};
}

Status check_tensor(const QTensor& w, const std::string& name, int64_t n, int64_t k, ThreadPool& pool) {
  if (w.n != n || w.k != k)
    return fail(ErrorCode::kShapeMismatch, name, fmt::format("[{}, {}]", w.n, w.k), fmt::format("[{}, {}]", n, k),
                "config.json and weights disagree");
  return check_finite(w, name, pool);
}

Result<QTensor> fetch_tensor(const WeightSource& source, const std::string& name, int64_t n, int64_t k,
                             ThreadPool& pool) {
  if (!source.has(name))
    return fail(ErrorCode::kNotFound, name, "no such tensor", fmt::format("[{}, {}]", n, k),
                fmt::format("{} is incomplete, or its config.json belongs to another model", source.path()));
  LOWBIT_TRY_ASSIGN(QTensor w, source.load(name));
  LOWBIT_TRY(check_tensor(w, name, n, k, pool));
  return w;
}

}  // namespace lowbit
