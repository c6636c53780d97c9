// packed_spans.cuh for five to eight queries that belong together: groups of more than four heads, and prompts.

#include "kernels/cuda/block/packed_spans.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

template <int kHead>
cudaError_t launch_wide(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.packed.key_bits, values = call.kv.packed.value_bits;
  if (keys == 8) return launch_spans<PackedForm<kHead, 8, 8, 8>>(call, device);
  if (keys == 3) return launch_spans<PackedForm<kHead, 8, 3, 3>>(call, device);
  if (keys == 2) return launch_spans<PackedForm<kHead, 8, 2, 2>>(call, device);
  return values == 2 ? launch_spans<PackedForm<kHead, 8, 4, 2>>(call, device)
                     : launch_spans<PackedForm<kHead, 8, 4, 4>>(call, device);
}

}  // namespace

cudaError_t block::attend_wide_spans(const AttendPacked& call, const Device& device) {
  return call.attend.kv.head_dim == 64 ? launch_wide<64>(call, device) : launch_wide<128>(call, device);
}

}  // namespace lowbit::cuda
