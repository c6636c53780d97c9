// packed_spans.cuh for heads of 64 and 128 elements whose keys and values have 2, 3, 4 or 8 bits each, or 4 and 2, four
// queries at a time.

#include "kernels/cuda/block/packed_spans.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

template <int kHead>
cudaError_t launch_bits(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.packed.key_bits, values = call.kv.packed.value_bits;
  if (keys == 8) return launch_spans<PackedForm<kHead, 4, 8, 8>>(call, device);
  if (keys == 3) return launch_spans<PackedForm<kHead, 4, 3, 3>>(call, device);
  if (keys == 2) return launch_spans<PackedForm<kHead, 4, 2, 2>>(call, device);
  return values == 2 ? launch_spans<PackedForm<kHead, 4, 4, 2>>(call, device)
                     : launch_spans<PackedForm<kHead, 4, 4, 4>>(call, device);
}

}  // namespace

bool block::takes_packed_spans(const AttendPacked& call, const Device& device) {
  const PackedPages& pages = call.kv.packed;
  constexpr auto kMostShared = static_cast<int64_t>(sizeof(SpanShared<PackedForm<128, 4, 2, 2>>));
  return has_packed_form(pages.key_bits, pages.value_bits, call.attend.kv.head_dim) && !pages.fp8 &&
         call.kv.old.tables == nullptr && call.attend.tile_queries == 4 && call.teams == 0 &&
         device.shared_bytes >= kMostShared;
}

bool block::joins_packed_spans(const AttendPacked& call, const Device& device) {
  return call.arrived != nullptr && call.attend.spans <= kMostJoined && takes_packed_spans(call, device);
}

cudaError_t block::attend_packed_spans(const AttendPacked& call, const Device& device) {
  return call.attend.kv.head_dim == 64 ? launch_bits<64>(call, device) : launch_bits<128>(call, device);
}

}  // namespace lowbit::cuda
