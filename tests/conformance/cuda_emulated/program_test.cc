// Whole models through backend/cuda, its kernels on fibers: the bits of the reference, without a GPU.

#include "runtime/program_checks.h"

#include "runtime/transformer.h"

namespace lowbit {
namespace {

using namespace program_checks;  // NOLINT

TEST(ProgramsOnFibers, GiveTheReferencesBits) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  for (const Variant& v : variants()) expect_reference(*cuda, v, pool);
  Variant v{"int4 codes of x", {}, {.group = 32, .rounding = {7, 0}}};
  v.model.format = FormatId::kInt4;
  expect_reference(*cuda, v, pool);
}

TEST(ProgramsOnFibers, SequencesThatShareAPool) {
  ThreadPool pool(2);
  const auto cuda = *make_cuda_backend(0, pool);
  for (const Variant& v : variants()) expect_reference_sessions(*cuda, v, pool, v.model.window > 0 ? 14 : 9);
}

}  // namespace
}  // namespace lowbit
