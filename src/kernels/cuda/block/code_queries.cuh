#pragma once
// The memory that the warps of a block of attention_codes.cu share, and the queries in it.
//
// Queries are integers of 16 bits, 256 times a high byte plus a low byte, both signed: columns 2 t and 2 t + 1 of an
// operand. So lane 4 g + t has sums of query t, and of each fourth one behind it.

#include <type_traits>

#include "kernels/cuda/block/attention_codes.cuh"

namespace lowbit::cuda::block {

/// The largest element of a query is less than 2^15 times this: so its high byte is not above 127.
constexpr float kQueryPart = 127.0f / 128;
constexpr uint32_t kFlipSigns = 0x80808080u;
constexpr float kIntegers = 12582912.0f;  // added: the low bits are the nearest integer

__device__ __forceinline__ float lane_value(float v, int lane) { return __shfl_sync(kAllLanes, v, lane, 32); }

/// Four elements of a query. A tile of four queries has room for one in 32 bits, in the half that multiply_two() takes
/// it from: no mask of scales then.
template <class F>
using QueryIntegers = std::conditional_t<F::kSets == 1, uint4, uint2>;
/// Where they are: four lanes that read each fourth one read different banks.
__host__ __device__ constexpr int integers_at(int four) { return four + four / 4; }

/// A number of each warp, which a thread loads four at a time.
template <class T>
struct alignas(16) PerWarp {
  T of[kCodesWarps];
};
/// Shared by the warps of a block. Columns 2 q and 2 q + 1 are of query q.
template <class F>
struct CodesShared {
  QueryIntegers<F> integers[F::kQueries][integers_at(F::kHead / 4)];  // queries, four elements to a place
  uint2 halves[2 * F::kQueries][F::kHead / 4 + 4 / F::kSets];         // the same as the sum of two f16
  uint4 bytes[2 * F::kQueries][F::kHead / 16 + (F::kHead == 64 ? 0 : F::kSets == 1 ? 4 : 1)];
  int first[F::kQueries], last[F::kQueries];  // positions that they see
  float exponent[F::kQueries];                // what makes exponents of two of products
  PerWarp<float> most[F::kQueries], total[F::kQueries];
  float of_parts[F::kQueries];   // sums of weights of the whole tile
  int64_t offsets[F::kQueries];  // of outputs
  PerWarp<int> results;          // where the warps' results lie, in slots that are free
  int work[kMostSharedTiles];
  CodesItems items;
  alignas(8) uint64_t parts_have_come;  // from the blocks of a cluster
  int count;                            // queries of the tile
  bool is_last;
};

/// The tile's queries as integers: a warp has one, of four queries one of those that more seldom have an item.
template <class F>
__device__ __forceinline__ void load_queries(const AttendPages& call, const CodesLaunch& launch, const CodesTile& tile,
                                             CodesShared<F>& shared) {
  const int thread = thread_read_here(), query = (thread / 32 + F::kQueries) % kCodesWarps, lane = thread % 32;
  if (query >= F::kQueries) return;
  float x[4] = {0, 0, 0, 0};
  const int64_t offset = tile.offset(call, launch, query);
  if (query < tile.count && lane < F::kHead / 4) {
    const float4 four = *reinterpret_cast<const float4*>(call.q + offset + lane * 4);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  }
  float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
  for (int w = 1; w < 32; w *= 2) largest = fmaxf(largest, xor_lanes(largest, w));
  const QueryScale scale = query_scale(largest);
  uint32_t bits[4], halves[4];
  bool is_number = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    is_number &= fabsf(x[i]) < INFINITY;
    const float shifted = __fadd_rn(__fmul_rn(__fmul_rn(x[i], scale.factor), kQueryPart), kIntegers),
                whole = __fsub_rn(shifted, kIntegers);
    bits[i] = __float_as_uint(shifted);
    const float high = f16_value(static_cast<uint16_t>(f16_pair(whole, 0)));
    halves[i] = f16_pair(high, __fsub_rn(whole, high));
  }
  is_number = all_of_warp(is_number);
  if (lane < F::kHead / 4) {
    auto& integers = shared.integers[query][integers_at(lane)];
    if constexpr (F::kSets == 1) {
      integers = {bits[0] & 0xffffu, bits[1] << 16, bits[2] & 0xffffu, bits[3] << 16};
    } else {
      integers = {__byte_perm(bits[0], bits[1], 0x5410), __byte_perm(bits[2], bits[3], 0x5410)};
    }
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const uint32_t which = low == 0 ? 0x5410 : 0x7632;
      shared.halves[2 * query + low][lane] = {__byte_perm(halves[0], halves[1], which),
                                              __byte_perm(halves[2], halves[3], which)};
      const uint32_t byte = low == 0 ? 0x0051 : 0x0040;
      const uint32_t all = __byte_perm(__byte_perm(bits[0] + 0x80, bits[1] + 0x80, byte),
                                       __byte_perm(bits[2] + 0x80, bits[3] + 0x80, byte), 0x5410);
      // The first and third four of sixteen, then the second and fourth: pairs of registers of an operand.
      const int place = lane / 4 * 4 + lane % 2 * 2 + lane / 2 % 2;
      reinterpret_cast<uint32_t*>(shared.bytes[2 * query + low])[place] = low == 0 ? all : all ^ kFlipSigns;
    }
  }
  if (lane != 0) return;
  if (query == 0) shared.count = tile.count;
  shared.offsets[query] = offset;
  const int position = tile.position(launch, query < tile.count ? query : 0);
  shared.first[query] = first_seen(position, call.window), shared.last[query] = position;
  shared.exponent[query] = is_number ? __fmul_rn(__fmul_rn(call.scale, kLog2E / kQueryPart), scale.inverse) : NAN;
}

}  // namespace lowbit::cuda::block
