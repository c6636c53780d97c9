#pragma once
// The contract between backend/cuda/ and the kernels that need rows alone, in f32: vector operations, Gram
// matrices; no CUDA types. kernels/cuda/block/ implements it, kernels/cuda_stub/ stands in for it without a toolkit.
//
// Numerics: docs/numerics.md, every sum in its order, so that the bits are those of the CPU. Pointers are device
// memory, rows are dense, f32 unless it says otherwise. Calls enqueue work on `stream` and return. Errors: what CUDA
// says.

#include <cstdint>

#include "lowbit/error.h"

namespace lowbit::cuda {

/// sum [k, k] (f64, upper triangle) += x^T x, `chunk` rows at a time: f32 within a chunk, f64 across. With y: sum
/// [n, k] += y^T x, all of it.
struct AddGram {
  const float* x = nullptr;  // [rows, k]
  int64_t rows = 0, k = 0, chunk = 0;
  double* sum = nullptr;
  float* workspace = nullptr;  // gram_workspace_bytes()
  void* stream = nullptr;
  const float* y = nullptr;  // [rows, n]; null: none
  int64_t n = 0;
};
/// n = 0: without y.
int64_t gram_workspace_bytes(int64_t rows, int64_t k, int64_t n, int64_t chunk);
Status add_gram(const AddGram& call);
/// h [n, k] = sum * scale, rounded once; n = 0: [k, k], from the sum's upper triangle into both.
Status finish_gram(const double* sum, int64_t n, int64_t k, double scale, float* h, void* stream);

/// y [rows, n] = x / sqrt(mean(x^2) + eps) * weight; y may be x.
Status norm_rows(const float* x, const float* weight, int64_t rows, int64_t n, float eps, float* y, void* stream);

/// gate = silu(gate) * up
Status gate_rows(float* gate, const float* up, int64_t count, void* stream);
/// gate = r * r * up, r = gate < 0 ? 0 : gate
Status squared_relu_rows(float* gate, const float* up, int64_t count, void* stream);
/// Each `block` columns of x [rows, n] become their Hadamard transform, in place: VectorOps::hadamard. `scale`: 1 /
/// sqrt(block). block: a power of two from 2 to 4096 that divides n.
Status hadamard_rows(float* x, int64_t rows, int64_t n, int64_t block, float scale, void* stream);
/// y += x
Status add_rows(const float* x, int64_t count, float* y, void* stream);

/// y -= x
Status subtract_rows(const float* x, int64_t count, float* y, void* stream);

/// to = from, both in device memory; they do not overlap.
Status copy_floats(const float* from, int64_t count, float* to, void* stream);

/// *first = min(*first, base + the index of the first NaN or infinity in x).
Status find_non_finite(const float* x, int64_t count, uint64_t base, uint64_t* first, void* stream);

}  // namespace lowbit::cuda
