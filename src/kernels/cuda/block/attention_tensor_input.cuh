#pragma once
// Input of attention_tensor_step.cu: the pages of a span, and the rows that the kernel before has written.

#include "kernels/cuda/block/attention_tensor.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/team_barrier.cuh"

namespace lowbit::cuda::block {

constexpr int kStepWarps = kPagedThreads / 32, kWarpsOfPage = kStepWarps / kSpanPages, kOctets = kTensorRows / 8;
static_assert(kWarpsOfPage == 2);

/// A page in shared memory, and what becomes of it.
template <int kDim>
struct StepPage {
  union {
    uint16_t keys[kKeyHalves<kDim>];
    float products[kTensorRows][kDim + 4];  // behind the scores
  };
  uint16_t values[kValueHalves<kDim>];
  uint4 weights[kPageSteps][kOctets][32];      // fragments of both parts of eight queries
  float totals[kWarpsOfPage][kTensorRows][4];  // of positions t / 2 mod 4
  float most[kWarpsOfPage][kTensorRows];
  Running joined[kTensorRows];
};
template <int kDim>
struct TensorStepShared {
  StepPage<kDim> pages[kSpanPages];
  uint16_t queries[2][kTensorRows][kDim + 8];  // high and low parts
  float exponent[kTensorRows];
  uint64_t spans_have_come;  // a barrier
  bool is_last;              // of the spans' blocks
};

/// A warp's share of a page: half of its positions, then half of the elements. Lane 4 g + t has rows g and g + 8 of
/// products, and two queries of eight.
template <int kDim>
struct StepLane {
  int page, half, lane, g, t;
  const uint16_t *keys, *queries;  // where its matrices begin

  __device__ __forceinline__ explicit StepLane(const TensorStepShared<kDim>& shared)
      : page(static_cast<int>(threadIdx.x / 64)),
        half(static_cast<int>(threadIdx.x / 32 % 2)),
        lane(static_cast<int>(threadIdx.x % 32)),
        g(lane / 4),
        t(lane % 4),
        keys(shared.pages[page].keys + sum_row() * kKeyPitch + half * (kTensorPage / 2) + product_row()),
        queries(&shared.queries[lane / 16][lane % 8][lane / 8 % 2 * 8]) {}
  /// Of transposed matrices: elements or positions of the sums, and the sixteen rows of products.
  __device__ __forceinline__ int sum_row() const { return lane % 8 + lane / 16 * 8; }
  __device__ __forceinline__ int product_row() const { return lane / 8 % 2 * 8; }
  /// The two warps of the page.
  __device__ __forceinline__ void meet() const { team_barrier(1 + page, 64); }
};

/// Where the queries of a tile begin in q and out: those of one row, one behind the other.
__device__ __forceinline__ int64_t step_offset(const AttendPages& call, const PagedTile& tile) {
  return (int64_t{tile.sequence.row} * call.heads + int64_t{tile.kv_head} * tile.group + tile.first) * call.kv.head_dim;
}

/// Addresses of a span's pages. Those behind the sequence's last one are of no page.
struct StepPages {
  uint64_t at[kSpanPages];
  __device__ __forceinline__ void load(const AttendPages& call, int span) {
    const int64_t first = int64_t{span} * kSpanPages;
    const uint64_t* const from = call.kv.tables + blockIdx.x * call.kv.stride + first;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kSpanPages); ++i) at[i] = first + i < call.kv.stride ? from[i] : 0;
  }
  /// Keys (0) or values (1) of the kv head in page `page` of the span.
  __device__ __forceinline__ uint16_t* rows(const AttendPages& call, int page, int which) const {
    uint64_t own = at[0];
#pragma unroll
    for (int i = 1; i < static_cast<int>(kSpanPages); ++i) own = page == i ? at[i] : own;
    return reinterpret_cast<uint16_t*>(own) +
           ((call.kv.index * 2 + which) * call.kv.kv_heads + blockIdx.y) * kTensorPage * call.kv.head_dim;
  }
};

/// Whether some of the page is seen.
__device__ __forceinline__ bool is_seen(const Seen& seen, int page) {
  return page * kTensorPage < seen.end && (page + 1) * kTensorPage > seen.begin;
}

/// Starts the copies of what the span's rows see. Values that they do not see are zeros: 0 times infinity is no number.
template <int kDim>
__device__ __forceinline__ void fetch_span(const AttendPages& call, const StepPages& pages, const Seen& seen,
                                           TensorStepShared<kDim>& shared) {
  constexpr int kEights = kDim / 8, kCopies = kTensorPage * kEights / kPagedThreads;  // of 16 bytes
  static_assert(kCopies * kPagedThreads == kTensorPage * kEights);
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int page = 0; page < static_cast<int>(kSpanPages); ++page) {
    if (!is_seen(seen, page)) continue;
    const uint16_t* const from = pages.rows(call, page, 0) + thread * 8;
    uint16_t* const to = &shared.pages[page].keys[thread / 8 * kKeyPitch + thread % 8 * 8];
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_to_shared_16(to + i * (kPagedThreads / 8 * kKeyPitch), from + i * (kPagedThreads * 8));
  }
#pragma unroll
  for (int page = 0; page < static_cast<int>(kSpanPages); ++page) {
    if (!is_seen(seen, page)) continue;
    const uint16_t* const from = pages.rows(call, page, 1) + thread * 8;
    uint16_t* const to = &shared.pages[page].values[thread / kEights * kValuePitch16<kDim> + thread % kEights * 8];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      constexpr int kPositions = kPagedThreads / kEights;
      uint16_t* const own = to + i * (kPositions * kValuePitch16<kDim>);
      if (seen.has(page * kTensorPage + thread / kEights + i * kPositions)) {
        copy_to_shared_16(own, from + i * (kPagedThreads * 8));
      } else {
        *reinterpret_cast<uint4*>(own) = {0, 0, 0, 0};
      }
    }
  }
}

/// A row that the kernel before has written, as a warp has it: the new value, the new key, then queries. A lane has
/// neighbouring elements of the first half, and those that they rotate with. Where it is read and written is found
/// before the wait for it: behind the wait instructions cost time.
template <int kDim>
struct StepRow {
  static constexpr int kHalf = kDim / 2, kOwn = kHalf / 32;
  static_assert(kOwn == 1 || kOwn == 2);
  int query;                 // -2: value, -1: key
  const float* from;         // the lane's
  uint16_t* page = nullptr;  // of the new value or key, where this span has it
  float a[kOwn], b[kOwn];    // of both halves

  __device__ __forceinline__ static int first_element() { return static_cast<int>(threadIdx.x % 32) * kOwn; }
  __device__ __forceinline__ static void load_own(const float* from, float (&to)[kOwn]) {
    if constexpr (kOwn == 2) {
      const auto both = *reinterpret_cast<const float2*>(from);
      to[0] = both.x, to[1] = both.y;
    } else {
      to[0] = *from;
    }
  }

  __device__ __forceinline__ StepRow(const AttendStep& call, const PagedTile& tile, int span, const StepPages& pages,
                                     int row) {
    const AttendPages& attend = call.attend;
    const int64_t kv_row = (int64_t{tile.sequence.row} * attend.kv.kv_heads + tile.kv_head) * kDim;
    query = row - 2;
    from = query == -2   ? call.v + kv_row
           : query == -1 ? call.k + kv_row
                         : attend.q + step_offset(attend, tile) + query * kDim;
    from += first_element();
    const int position = tile.sequence.position;
    if (query < 0 && position / kSpan == span)
      page = pages.rows(attend, position / kTensorPage % static_cast<int>(kSpanPages), query == -1 ? 0 : 1);
  }
  __device__ __forceinline__ void load() { load_own(from, a), load_own(from + kHalf, b); }

  __device__ __forceinline__ void rotate(const float (&cos)[kOwn], const float (&sin)[kOwn]) {
    if (query == -2) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float x = a[i], y = b[i];
      a[i] = __fsub_rn(__fmul_rn(x, cos[i]), __fmul_rn(y, sin[i]));
      b[i] = __fadd_rn(__fmul_rn(y, cos[i]), __fmul_rn(x, sin[i]));
    }
  }

  __device__ __forceinline__ void put_query(float by, TensorStepShared<kDim>& shared) const {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) largest = fmaxf(largest, fmaxf(fabsf(a[i]), fabsf(b[i])));
#pragma unroll
    for (int w = 1; w < 32; w *= 2) largest = fmaxf(largest, xor_lanes(largest, w));
    const QueryScale scale = query_scale(largest);
    if (threadIdx.x % 32 == 0) shared.exponent[query] = __fmul_rn(by, scale.inverse);
    const auto put = [&](float x, float y, int at, int apart) {
      const TensorPair both = split_pair(__fmul_rn(x, scale.factor), __fmul_rn(y, scale.factor));
      put_halves(both.high, shared.queries[0][query] + at, apart);
      put_halves(both.low, shared.queries[1][query] + at, apart);
    };
    if constexpr (kOwn == 2) {
      put(a[0], a[1], first_element(), 1);
      put(b[0], b[1], first_element() + kHalf, 1);
    } else {
      put(a[0], b[0], first_element(), kHalf);
    }
  }
  __device__ __forceinline__ static void put_halves(uint32_t both, uint16_t* to, int apart) {
    if (apart == 1) {
      *reinterpret_cast<uint32_t*>(to) = both;
    } else {
      to[0] = static_cast<uint16_t>(both), to[apart] = static_cast<uint16_t>(both >> 16);
    }
  }

  /// Into the page, and beside the others in shared memory.
  __device__ __forceinline__ void put_new(int position, TensorStepShared<kDim>& shared) const {
    const int t = position % kTensorPage, here = position / kTensorPage % static_cast<int>(kSpanPages);
    const bool is_key = query == -1;
    uint16_t* const in_shared =
        is_key ? shared.pages[here].keys + t : shared.pages[here].values + t * kValuePitch16<kDim>;
    uint16_t* const in_page = page + (is_key ? t : t * kDim);
    const int shared_apart = is_key ? kKeyPitch : 1, page_apart = is_key ? kTensorPage : 1;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int e = first_element() + i;
      const uint16_t x = f16_nearest(a[i]), y = f16_nearest(b[i]);
      in_shared[e * shared_apart] = in_page[e * page_apart] = x;
      in_shared[(e + kHalf) * shared_apart] = in_page[(e + kHalf) * page_apart] = y;
    }
  }
};

/// Waits for the rows and all copies, then: the rotated queries as two f16 each; the new key and value into their page
/// and, where this span has them, beside the others. A warp has a row, some have none. Rows of shared memory without a
/// query stay as they are: nobody reads what comes of them.
template <int kDim>
__device__ __forceinline__ void add_rows(const AttendStep& call, const PagedTile& tile, int span,
                                         const StepPages& pages, const StepLane<kDim>& lane,
                                         TensorStepShared<kDim>& shared) {
  using Row = StepRow<kDim>;
  const int position = tile.sequence.position;
  float cos[Row::kOwn], sin[Row::kOwn];
  const int64_t turns = int64_t{position} * Row::kHalf + Row::first_element();
  Row::load_own(call.cos + turns, cos), Row::load_own(call.sin + turns, sin);
  const float by = __fmul_rn(call.attend.scale, kLog2E);
  int row = static_cast<int>(threadIdx.x / 32), left = tile.count + 2 - row;
  Row own(call, tile, span, pages, row);
  wait_for_predecessor_with(own.from, own.page, shared_address(lane.keys), left,
                            static_cast<int>(shared_address(lane.queries)));
  if (left > 0) own.load();
  wait_for_all_copies();
  __syncthreads();
#pragma unroll 1
  while (left > 0) {
    own.rotate(cos, sin);
    if (own.query >= 0) own.put_query(by, shared);
    if (own.page != nullptr) own.put_new(position, shared);
    row += kStepWarps, left -= kStepWarps;
    if (left <= 0) break;
    own = Row(call, tile, span, pages, row);
    own.load();
  }
}

}  // namespace lowbit::cuda::block
