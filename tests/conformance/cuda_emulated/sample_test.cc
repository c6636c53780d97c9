// Kernels that choose tokens, on fibers, against the CPU's sampler: needs no GPU.

#include <algorithm>
#include <memory>

#include "tests/conformance/cuda_emulated/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/sample_checks.h"

#include "tests/conformance/change_checks.h"

#include "tests/conformance/changed_choices.h"

#include "tests/conformance/logprob_checks.h"

namespace lowbit {
namespace {

TEST(SamplingOnFibers, TheSamplersTokens) {
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 31, 257, 1025, 2500, 8193})
    for (int round = 0; round < 12; ++round) check_choices(1 + round % 5, vocab, ++seed);
  check_choices(4, 1000, 124);  // a min_p below every weight, and a temperature at which the least of them are drawn
}

TEST(SamplingOnFibers, WithPenaltiesBiasesAndMasks) {
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 31, 33, 257, 1025, 8191, 8193})
    for (int round = 0; round < 12; ++round) check_changed_choices(1 + round % 5, vocab, ++seed);
  check_changed_choices(2, 128256, 1000);
}

TEST(SamplingOnFibers, LogprobsHaveTheBitsOfTheCpu) {
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 19, 31, 1023, 1024, 1025, 5000})
    for (int round = 0; round < 8; ++round) check_logprobs(1 + round % 4, vocab, ++seed);
  check_logprobs(1, 128256, 1000);
}

}  // namespace
}  // namespace lowbit
