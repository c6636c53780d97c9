#pragma once
// Compute options, resolved against this machine.

#include <memory>

#include "base/cpu.h"
#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/compute.h"

namespace lowbit {

struct Engine {
  Isa isa = Isa::kScalar;
  int threads = 1;
  std::unique_ptr<ThreadPool> pool;

  /// Errors: kInvalidArgument, kUnsupported (an ISA or device that this machine or build lacks).
  static Result<Engine> make(const Compute& compute);
};

/// "auto" and "int8" -> kInt8, "f32" -> kF32. With kInt8, layers whose weights are floats still use
/// f32 activations.
Result<Activation> parse_activation(const std::string& name);

}  // namespace lowbit
