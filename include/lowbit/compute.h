#pragma once
// Where and with what to compute, and what this machine offers.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/version.h"

namespace lowbit {

/// Called now and then from the thread that made the call: `done` of `total` steps of `stage`.
/// Return false to stop: the call then fails with kCancelled and leaves nothing half done. May be
/// empty.
using Progress = std::function<bool(const std::string& stage, int64_t done, int64_t total)>;

struct Compute {
  std::string device = "auto";  // auto, cpu, cuda, cuda:<i>; "" and auto ask LOWBIT_DEVICE
  std::string isa;              // scalar, avx2, avxvnni, avx512, amx; "" asks LOWBIT_ISA, then takes the best.
                                // Models also know ref: the plain loops that all others must agree with
  int threads = 0;              // 0 asks LOWBIT_THREADS, then takes the physical cores
};

/// One kernel of this build.
struct KernelInfo {
  std::string name;  // matmul_int2_a8__avx2_8x4; the grammar is in docs/kernels.md
  std::string isa;
  std::string format;
  std::string activation;  // "a8", "af32"
  std::string doc;         // the page that explains it
  bool runs_here = false;
};
std::vector<KernelInfo> kernels();

struct CpuReport {
  std::string model;
  std::vector<std::string> features;
  int logical_cpus = 0, physical_cores = 0;
};

struct DoctorReport {
  std::string version;  // of lowbit
  CpuReport cpu;
  std::string gpu;  // "" when there is none, or no CUDA in this build
  bool cuda_built = false;
  std::string isa;  // the one in use
  int threads = 0;
  /// Reading 512 MiB of memory with `threads` threads: the median of nine sweeps, and the slowest and fastest of them.
  double bandwidth_gb_s = 0, bandwidth_least_gb_s = 0, bandwidth_most_gb_s = 0;
  std::vector<KernelInfo> kernels;
  std::string default_model;          // path of the default model, "" when not found
  std::string data_dir;               // LOWBIT_DATA or the checkout's ../shared/data, "" when not found
  std::vector<std::string> problems;  // what is missing and how to get it
};
Result<DoctorReport> doctor(const Compute& compute);

/// Read bandwidth of memory in GB/s: the median of nine sweeps over `bytes` (at least 64 MiB).
Result<double> measure_bandwidth(const Compute& compute, int64_t bytes);

}  // namespace lowbit
