#include "backend/backend.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"

namespace lowbit {

Result<RowBuffer> HostBackend::allocate_rows(int64_t numbers, RowFormat format, const char* what) {
  LOWBIT_TRY_ASSIGN(Buffer bytes, Buffer::allocate(numbers * host_bytes(format), what));
  return RowBuffer(std::move(bytes), numbers, format);
}

Status HostBackend::upload(std::span<const float> from, RowBuffer& to, int64_t at) {
  put_rows(from.data(), int64_t(from.size()), to, at);
  return {};
}

Status HostBackend::download(const RowBuffer& from, int64_t at, std::span<float> to) {
  get_rows(from, at, int64_t(to.size()), to.data());
  return {};
}

Result<std::unique_ptr<TokenLimits>> Workspace::place_limits(std::span<const std::pair<int32_t, float>>,
                                                             std::span<const uint32_t>) const {
  return fail(ErrorCode::kUnsupported, "token limits", "a device that chooses no tokens", "logits on the host");
}

Result<std::shared_ptr<KvPool>> Backend::kv_pool(std::vector<KvGroup> groups, int64_t max_pages,
                                                 int64_t slab_pages) const {
  std::vector<KvPageMemory> memories(groups.size(), kv_page_memory());
  return KvPool::make(std::move(groups), max_pages, slab_pages, std::move(memories));
}

tl::unexpected<Error> not_finite(const std::string& name, int64_t column, bool compared) {
  return fail(ErrorCode::kInvalidArgument, name,
              fmt::format("NaN or infinity {} {}{}", compared ? "in column" : "as input", column,
                          compared ? " of what it aims at" : ""),
              "finite activations", "the model overflows on the calibration text");
}

tl::unexpected<Error> no_inputs(const std::string& name) {
  return fail(ErrorCode::kInvalidArgument, name, "no inputs", "at least one row");
}

}  // namespace lowbit
