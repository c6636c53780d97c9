// Tokens that a GPU chooses against the CPU's sampler, one by one.

#include <algorithm>
#include <memory>

#include "tests/conformance/cuda/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/sample_checks.h"

#include "tests/conformance/change_checks.h"

#include "tests/conformance/changed_choices.h"

#include "tests/conformance/logprob_checks.h"

namespace lowbit {
namespace {

/// Of which compute-sanitizer's racecheck sees each access.
TEST(SamplingOnADevice, FewTokens) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t seed = 1; seed < 9; ++seed) {
    check_choices(6, 9000, seed);
    check_changed_choices(6, 9000, seed);
    check_logprobs(6, 9000, seed);
  }
}

TEST(SamplingOnADevice, TheSamplersTokens) {
  LOWBIT_NEEDS_GPU();
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 31, 257, 1000, 1024, 1025, 2049, 8191, 8193, 32000, 49152, 128256, 151936})
    for (int round = 0; round < 30; ++round) check_choices(1 + round % 7, vocab, ++seed);
  check_choices(64, 5000, 999);
}

TEST(SamplingOnADevice, WithPenaltiesBiasesAndMasks) {
  LOWBIT_NEEDS_GPU();
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 31, 33, 257, 1000, 1025, 8191, 8193, 32000, 49152, 128256, 151936})
    for (int round = 0; round < 30; ++round) check_changed_choices(1 + round % 7, vocab, ++seed);
  check_changed_choices(64, 5000, 999);
}

TEST(SamplingOnADevice, LogprobsHaveTheBitsOfTheCpu) {
  LOWBIT_NEEDS_GPU();
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 19, 31, 1023, 1024, 1025, 8193, 32000, 49152, 128256, 151936})
    for (int round = 0; round < 20; ++round) check_logprobs(1 + round % 7, vocab, ++seed);
  check_logprobs(3, 2000003, 998);  // sums of more than kSumBlock blocks
  check_logprobs(64, 5000, 999);
}

}  // namespace
}  // namespace lowbit
