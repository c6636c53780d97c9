#pragma once
// The integer network: a plan per cell, kernels chosen per instruction set.

#include <functional>
#include <map>
#include <mutex>

#include "base/cpu.h"
#include "gru/plan.h"
#include "gru/schedule.h"
#include "kernels/cuda_gru_api.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Weights of all cells in a kernel's own order.
struct GruPacked {
  const GruKernel* kernel = nullptr;
  std::vector<Buffer> cells;
};

using GruDeviceCells = std::vector<cuda::GruDeviceCell>;

struct GruModel::Impl {
  GruConfig config;
  bool bidirectional = false, batch_first = false;
  std::vector<std::shared_ptr<const GruPlan>> cells;
  // Made on first use, one per kernel.
  mutable std::mutex mutex;
  mutable std::map<const GruKernel*, std::shared_ptr<const GruPacked>> packed;
  mutable std::map<int, std::shared_ptr<const GruDeviceCells>> on_device;  // by GPU

  int directions() const { return bidirectional ? 2 : 1; }
  int layers() const { return static_cast<int>(cells.size()) / directions(); }
  int64_t input() const { return cells.front()->spec().c; }
  int64_t state_size() const;
  Result<std::shared_ptr<const GruPacked>> packed_for(const GruKernel& kernel) const;
  /// GPU `device` must be the current one.
  Result<std::shared_ptr<const GruDeviceCells>> cells_on(int device) const;
};

/// Layers fit each other as in check_gru, x formats are those of the h below. Errors: kShapeMismatch, kCorrupt.
Result<std::shared_ptr<const GruModel::Impl>> make_gru_impl(GruConfig config, bool bidirectional,
                                                            std::vector<GruCell> cells, bool batch_first = false);

/// The strongest kernel up to `isa`.
const GruKernel& gru_kernel(Isa isa);
/// All kernels that this machine can run, the reference first.
std::vector<const GruKernel*> runnable_gru_kernels();

/// One step of one cell in integers, the sequences that run; codes q, row-major.
struct GruCodesTap {
  int cell = 0;
  int64_t step = 0, rows = 0;
  const int32_t* ih = nullptr;  // [rows, 3H], centered
  GruTrace trace;
  const uint16_t* x = nullptr;  // [rows, C] offset codes
  const uint16_t* h = nullptr;  // [rows, H] offset codes of the new state
};

struct GruForwardOptions {
  const GruKernel* kernel = nullptr;
  bool trace = false, codes = false;
  std::function<void(const GruCodesTap&)> tap;
};

/// The whole network over whole sequences.
Result<GruOutput> forward_codes(const GruModel::Impl& model, const GruInput& input, const GruForwardOptions& options);

/// The index of "cuda" or "cuda:<i>", -1 for anything else that names the CPU. Errors: kInvalidArgument.
Result<int> gru_gpu(const std::string& device);
/// Runs on a GPU. Errors: kUnsupported, kOutOfMemory, kShapeMismatch, kInvalidArgument.
Result<GruOutput> forward_on_device(const GruModel::Impl& model, const GruInput& input, int device, bool codes);

}  // namespace lowbit
