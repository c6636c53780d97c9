// Kernels that choose tokens, on fibers, against the CPU's sampler: needs no GPU.

#include <algorithm>

#include "tests/conformance/cuda_emulated/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/sample_checks.h"

namespace lowbit {
namespace {

TEST(SamplingOnFibers, TheSamplersTokens) {
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 31, 257, 1025, 2500, 8193})
    for (int round = 0; round < 12; ++round) check_choices(1 + round % 5, vocab, ++seed);
  check_choices(4, 1000, 124);  // a min_p below every weight, and a temperature at which the least of them are drawn
}

}  // namespace
}  // namespace lowbit
