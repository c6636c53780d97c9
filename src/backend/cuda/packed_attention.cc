// Attention of a program where old pages of the cache are packed.

#include "backend/cuda/program.h"
#include "base/try.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_packed_api.h"
#include "kernels/vector_math.h"
#include "ops/hadamard.h"

namespace lowbit {

Status CudaProgram::run_packed(const AttentionStep& step, Run& run) const {
  CudaWorkspace& work = run.work;
  const AttentionSpec& a = *step.spec;
  const CudaWorkspace::Rotation& r = *work.rotation_of(a);
  const int64_t block = hadamard_block(a.head_dim);
  cuda::AttendPacked call{attention_of(step, work), work.batch_.packed_pages(step.layer)};
  const cuda::StoreRows rows = {work.slot(step.q), work.slot(step.k),  work.slot(step.v), r.cos.as<float>(),
                                r.sin.as<float>(), work.batch_.rows(), call.kv.pages,     run.m,
                                a.heads,           work.stream()};
  LOWBIT_TRY(cuda::rotate_transform_and_store({rows, block, hadamard_scale(block)}));
  LOWBIT_TRY(cuda::pack_pages({call.kv, work.batch_.pack_tasks(), work.batch_.pack_count(), work.stream()}));
  LOWBIT_TRY(cuda::pack_pages({call.kv, work.batch_.demote_tasks(), work.batch_.demote_count(), work.stream(), true}));
  // There is room for the tiles of each row.
  if (work.batch_.single_rows() || !exact_) call.arrived = work.arrived_.as<uint32_t>();
  call.overlap = work.batch_.pack_count() + work.batch_.demote_count() == 0;
  call.room = work.results_.as<float>();
  call.room_floats = work.results_.size() / int64_t{sizeof(float)};
  call.hadamard = block == a.head_dim ? hadamard_scale(block) : 0;
  LOWBIT_TRY(cuda::attend_packed(call));
  if (call.hadamard != 0 && cuda::is_fast_packed(call)) return {};
  return cuda::hadamard_rows(work.slot(step.to), run.m, a.q_size(), block, hadamard_scale(block), work.stream());
}

}  // namespace lowbit
