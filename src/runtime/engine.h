#pragma once
// Compute options, resolved against this machine.

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/x_spec.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/compute.h"

namespace lowbit {

/// Which GPUs `compute` asks for, by --device or LOWBIT_DEVICE: cuda, cuda:<i> or several with commas between; none:
/// the CPU. Error: kInvalidArgument (no such name).
Result<std::vector<int>> wanted_gpus(const Compute& compute);
/// wanted_gpus() for work on one device; -1: the CPU. Error: kUnsupported (several).
Result<int> wanted_gpu(const Compute& compute);

/// Where things run: on the CPU, with what it has, or on a GPU; a CPU prepares what a GPU runs.
struct Engine {
  Isa isa = Isa::kScalar;
  int threads = 1;
  int gpu = -1;           // of cuda::devices(); -1: none
  std::vector<int> gpus;  // that and more of them, for a model's layers
  std::unique_ptr<ThreadPool> pool;

  /// The one place where a device is chosen, and refused. A GPU that is asked for becomes the current device.
  /// Errors: kInvalidArgument, kUnsupported (an ISA or device that this machine or build lacks).
  static Result<Engine> make(const Compute& compute);
  /// The CPU, whatever device is asked for.
  static Result<Engine> on_cpu(const Compute& compute);
};

/// The backend that computes the engine's rows: its GPU's, else its CPU's, with its pool. Errors: kUnsupported.
Result<std::unique_ptr<Backend>> make_backend(const Engine& engine);

/// The type of activations that linear layers take. Layers whose weights are floats take f32 in any case.
struct ActivationChoice {
  XPolicy x;
  const char* name = "int8";
};

/// "int8": int8 with a scale per 32 columns. "auto": that, but with XPolicy::by_weight. "int8-row": int8 with one
/// scale per row; "int8-clip": that at the 99.9 % quantile of the row. "int4": -7..7 with a scale per 32 columns.
/// "fp8": E4M3 with a scale per 128 columns for fp8 weights, f32 for all others. "f16", "bf16": rounded to 16 bits,
/// products exact. "f32": exact.
Result<ActivationChoice> parse_activation(const std::string& name);

}  // namespace lowbit
