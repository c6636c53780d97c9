#pragma once
// Random problems with their answers, for the test and the benchmark: canonical codes packed on the host, relaid out on
// the device, and the plain loops of docs/numerics.md on the CPU.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

struct GemmCase {
  FormatId format = FormatId::kInt4;
  GemmActivation activation = GemmActivation::kInt8;
  GemmOutput output = GemmOutput::kF32;
  int64_t m = 1, n = 1, k = 1, group = 0;
  int64_t x_pad = 0, y_pad = 0, x_shift = 0;  // elements behind each row; first element of x
  // int8, scales of x per group of 32 columns: that many share a scale of the weights; 0: each has its own
  int64_t per_scale = 0;
  bool exact_x_scales = false;  // of those: GemmProblem
  bool x_groups = false, offsets = false, bias = false, extremes = false, overlap = false;
  std::string text() const;
};

class CaseData {
 public:
  CaseData(const GemmCase& c, uint64_t seed, int weight_copies);
  ~CaseData();
  CaseData(const CaseData&) = delete;
  CaseData& operator=(const CaseData&) = delete;

  /// Output is poisoned with NaN first when `poison`.
  GemmProblem problem(int copy = 0) const;
  void poison();
  size_t weight_bytes() const { return tiles_; }
  /// Compares outputs on the host; `samples` random ones, or all when 0. Empty text: right. *worst: largest error over
  /// the sum of the terms' magnitudes (half activations).
  std::string check(int64_t samples, double* worst) const;
  /// The bytes of y, behind all launches of the default stream.
  std::vector<uint8_t> output() const;

 private:
  double expected(int64_t m, int64_t n, double* magnitude) const;
  float x_at(int64_t m, int64_t k) const;
  /// Random weights, scales and x on the host. Returns the packed codes.
  std::vector<uint8_t> draw(uint64_t seed);
  /// Sums of x for offsets, by groups or by groups that share a scale.
  void sum_x();
  void upload_weights(const std::vector<uint8_t>& codes, int copies);
  void upload_x();

  GemmCase c_;
  bool is_bits_, is_int8_;
  int64_t group_, groups_, ldx_, ldy_, row_bytes_;
  size_t tiles_;
  uint32_t table_[4] = {};  // of formats that look up
  std::vector<int8_t> values_, xq_;
  std::vector<uint16_t> xh_;
  std::vector<float> scales_, offsets_, bias_, x_scale_, x_sums_;
  std::vector<void*> device_;  // all allocations
  int32_t *d_bit_terms_ = nullptr, *d_x_bit_terms_ = nullptr;
  void *d_tiles_ = nullptr, *d_x_ = nullptr, *d_y_ = nullptr;
  float *d_scales_ = nullptr, *d_offsets_ = nullptr, *d_bias_ = nullptr, *d_x_scale_ = nullptr, *d_x_sums_ = nullptr;
};

void must(cudaError_t e, const char* what);

}  // namespace lowbit::cuda
