// The kernels that take every cell: one thread per output, int64, one launch per step. Never tuned.

#include "kernels/cuda/gru/elements.cuh"

namespace lowbit::cuda::gru {
namespace {

constexpr int kThreads = 128;

/// bias + sum over k of w x, x as offset codes.
template <class Code>
__device__ __forceinline__ int64_t dot(const Product& p, int64_t row, int64_t plain_row, const Code& code) {
  const int32_t* const w = p.plain + plain_row * p.k;
  int64_t sum = p.bias[row];
  for (int64_t i = 0; i < p.k; ++i) sum += int64_t{w[i]} * code(i);
  return sum;
}

/// Gates and state in int64, from centered numbers to the centered new h. look_up(table, x) goes from centered to
/// centered.
template <class LookUp>
__device__ __forceinline__ int64_t element(const GruGrid* g, const int64_t (&ih)[3], const int64_t (&hh)[3], int64_t h,
                                           const LookUp& look_up) {
  const auto fit = [&](int64_t v, int slot) {
    return clamp<int64_t>(v, g[slot].lo - g[slot].zp, g[slot].hi - g[slot].zp);
  };
  const auto shifted = [&](int64_t v, int from, int to) { return rounding_shift(v, g[from].shift - g[to].shift); };
  const int64_t u = look_up(0, fit(shifted(ih[0], kSlotIh, kSlotUi) + shifted(hh[0], kSlotHh, kSlotUi), kSlotUi));
  const int64_t r = look_up(1, fit(shifted(ih[1], kSlotIh, kSlotRi) + shifted(hh[1], kSlotHh, kSlotRi), kSlotRi));
  const int64_t rh = rounding_shift(r * hh[2], g[kSlotR].shift + g[kSlotHh].shift - g[kSlotNi].shift);
  const int64_t n = look_up(2, fit(shifted(ih[2], kSlotIh, kSlotNi) + rh, kSlotNi));
  const int64_t sum = u * h + ((int64_t{1} << g[kSlotU].shift) - u) * shifted(n, kSlotN, kSlotH);
  return fit(rounding_shift(sum, g[kSlotU].shift), kSlotH);
}

__device__ __forceinline__ int64_t centered(const Product& p, int64_t row, int64_t sum) {
  return clamp<int64_t>(rounding_shift(sum, p.shift[row]), p.low, p.high);
}

__global__ void __launch_bounds__(kThreads)
    input_plain(const __grid_constant__ Cell cell, const __grid_constant__ Call call) {
  const int64_t rows = call.s.steps * call.s.batch, all = rows * 3 * cell.h;
  for (int i = threadIdx.x; blockIdx.x == 0 && i < call.flag_count; i += kThreads) call.flags[i] = 0;
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < all; at += int64_t(gridDim.x) * kThreads) {
    const int64_t m = at / (3 * cell.h), c = at % (3 * cell.h), gate = c / cell.h, unit = c % cell.h;
    const uint8_t* const x = call.s.x.data + m * call.s.x.stride;
    const int64_t row = gate * cell.padded + unit;
    const int64_t sum = dot(cell.x, row, c, [&](int64_t i) {
      return int64_t{x[i]} + (cell.x.limbs == 2 ? 256 * int64_t{x[call.s.x.plane_bytes + i]} : 0);
    });
    const auto code = uint32_t(centered(cell.x, row, sum) + cell.grid[kSlotIh].zp - cell.grid[kSlotIh].lo);
    const int64_t to = m * cell.ih_stride + row;
    if (cell.ih_bytes == 1)
      call.ih[to] = uint8_t(code);
    else
      reinterpret_cast<uint16_t*>(call.ih)[to] = uint16_t(code);
  }
}

__global__ void __launch_bounds__(kThreads)
    step_plain(const __grid_constant__ Cell cell, const __grid_constant__ Call call, int64_t step, const uint16_t* from,
               uint16_t* to) {
  constexpr int kInputs[3] = {kSlotUi, kSlotRi, kSlotNi}, kOutputs[3] = {kSlotU, kSlotR, kSlotN};
  const auto look_up = [&](int table, int64_t x) {
    const uint16_t code = cell.table[table].data[x + zero_of(cell.grid[kInputs[table]])];
    return int64_t{code} - zero_of(cell.grid[kOutputs[table]]);
  };
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < call.s.batch * cell.h;
       at += int64_t(gridDim.x) * kThreads) {
    const int64_t i = at / cell.h, unit = at % cell.h;
    const int32_t length = call.s.length[i];
    if (step >= length) {
      to[at] = from[at];
      continue;
    }
    const uint16_t* const h = from + i * cell.h;
    int64_t hh[3], ih[3];
    const int64_t m = row_of(call.s, step, call.s.order[i], length);
    for (int gate = 0; gate < 3; ++gate) {
      const int64_t row = int64_t{gate} * cell.padded + unit;
      hh[gate] = centered(cell.r, row,
                          dot(cell.r, row, int64_t{gate} * cell.h + unit, [&](int64_t k) { return int64_t{h[k]}; }));
      const int64_t place = m * cell.ih_stride + row;
      ih[gate] = (cell.ih_bytes == 1 ? call.ih[place] : reinterpret_cast<const uint16_t*>(call.ih)[place]) -
                 zero_of(cell.grid[kSlotIh]);
    }
    const int64_t zero = zero_of(cell.grid[kSlotH]);
    const int64_t code = element(cell.grid, ih, hh, int64_t{h[unit]} - zero, look_up) + zero;
    to[at] = uint16_t(code);
    uint8_t* const y = call.s.y.data + m * call.s.y.stride + call.s.y_column + unit;
    y[0] = uint8_t(code);
    if (cell.r.limbs == 2) y[call.s.y.plane_bytes] = uint8_t(code >> 8);
  }
}

/// Offset code of v, as quantize_value of src/gru/ gives it.
__global__ void __launch_bounds__(kThreads) encode(const float* x, int64_t rows, int64_t columns, const GruGrid grid,
                                                   const GruCodes out, int planes, double scale) {
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < rows * columns;
       at += int64_t(gridDim.x) * kThreads) {
    const double v = double(x[at]) * scale;  // a power of two: exact
    const double q = isnan(v) ? double(grid.zp) : rint(v) + grid.zp;
    const auto code = uint32_t(int32_t(fmin(fmax(q, double(grid.lo)), double(grid.hi))) - grid.lo);
    uint8_t* const to = out.data + at / columns * out.stride + at % columns;
    to[0] = uint8_t(code);
    if (planes == 2) to[out.plane_bytes] = uint8_t(code >> 8);
  }
}

__global__ void __launch_bounds__(kThreads)
    decode(const GruCodes codes, int64_t rows, int64_t columns, const GruGrid grid, int planes, float scale, float* y) {
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < rows * columns;
       at += int64_t(gridDim.x) * kThreads) {
    const uint8_t* const from = codes.data + at / columns * codes.stride + at % columns;
    const int32_t code = from[0] | (planes == 2 ? from[codes.plane_bytes] << 8 : 0);
    y[at] = float(code + grid.lo - grid.zp) * scale;
  }
}

unsigned blocks_for(int64_t threads) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return unsigned(blocks < 1 ? 1 : blocks > 65536 ? 65536 : blocks);
}

}  // namespace

cudaError_t launch_input_plain(const Cell& cell, const Call& call, cudaStream_t stream) {
  input_plain<<<blocks_for(call.s.steps * call.s.batch * 3 * cell.h), kThreads, 0, stream>>>(cell, call);
  return cudaGetLastError();
}

cudaError_t launch_steps_plain(const Cell& cell, const Call& call, cudaStream_t stream) {
  // An odd number of steps must end in `state`: the first step then reads a copy of it.
  auto* const spare = reinterpret_cast<uint16_t*>(call.shared_h);
  const uint16_t* from = call.s.state;
  uint16_t* to = spare;
  if (call.s.steps % 2 != 0) {
    const size_t bytes = 2 * size_t(call.s.batch) * size_t(cell.h);
    if (const auto e = cudaMemcpyAsync(spare, call.s.state, bytes, cudaMemcpyDeviceToDevice, stream); e != cudaSuccess)
      return e;
    from = spare;
    to = call.s.state;
  }
  for (int64_t step = 0; step < call.s.steps; ++step) {
    step_plain<<<blocks_for(call.s.batch * cell.h), kThreads, 0, stream>>>(cell, call, step, from, to);
    uint16_t* const next = to == spare ? call.s.state : spare;
    from = to;
    to = next;
  }
  return cudaGetLastError();
}

cudaError_t launch_encode(const float* x, int64_t rows, int64_t columns, const GruGrid& grid, const GruCodes& out,
                          cudaStream_t stream) {
  encode<<<blocks_for(rows * columns), kThreads, 0, stream>>>(x, rows, columns, grid, out, gru_planes(grid),
                                                              ldexp(1.0, grid.shift));
  return cudaGetLastError();
}

cudaError_t launch_decode(const GruCodes& codes, int64_t rows, int64_t columns, const GruGrid& grid, float* y,
                          cudaStream_t stream) {
  decode<<<blocks_for(rows * columns), kThreads, 0, stream>>>(codes, rows, columns, grid, gru_planes(grid),
                                                              ldexpf(1.0f, -grid.shift), y);
  return cudaGetLastError();
}

}  // namespace lowbit::cuda::gru
