// Tokens that are chosen from the head's logits, and how likely they were.

#include <algorithm>

#include "backend/cuda/program.h"
#include "base/try.h"
#include "kernels/cuda_change_api.h"
#include "kernels/cuda_logprob_api.h"
#include "kernels/cuda_sample_api.h"

namespace lowbit {

/// Chooses the tokens of wanted rows [first, first + rows), whose logits are the first of the workspace.
Status CudaProgram::choose(int64_t vocab, int64_t first, int64_t rows, CudaWorkspace& work) {
  const CudaBatch& batch = work.batch_;
  if (!batch.chooses()) return {};
  auto* const logits = work.logits_.as<float>();
  auto* const chosen = work.chosen_.as<cuda::ChosenToken>() + first;
  const cuda::Logprobs logprobs{logits,
                                batch.logprobs_wanted() + first,
                                work.logprobs_.as<cuda::RowLogprobs>() + first,
                                rows,
                                vocab,
                                work.logprob_scratch_.as<uint8_t>(),
                                work.stream()};
  const cuda::ChangeLogits changes{logits,
                                   batch.row_changes() + first,
                                   batch.changes().recent(),
                                   work.chosen_before_.as<cuda::ChosenToken>() + first,
                                   work.rows_,
                                   rows,
                                   vocab,
                                   work.stream()};
  if (batch.wants_logprobs()) LOWBIT_TRY(cuda::sum_logprobs(logprobs));
  if (batch.changes().any()) LOWBIT_TRY(cuda::change_logits(changes));
  LOWBIT_TRY(cuda::choose_tokens({logits, batch.rules() + first, chosen, rows, vocab, batch.draws(),
                                  work.choose_scratch_.as<uint8_t>(), work.stream()}));
  if (batch.wants_logprobs()) LOWBIT_TRY(cuda::report_chosen(logprobs, chosen));
  return batch.changes().any() ? cuda::refuse_forbidden(changes, chosen) : Status{};
}

/// Enqueued with the same arguments for all passes of a call.
Status CudaProgram::feed_tokens(CudaWorkspace& work, int64_t rows) {
  cuda::FeedTokens feed = work.batch_.lists_to_feed();
  feed.chosen = work.chosen_.as<cuda::ChosenToken>();
  feed.rows = rows;
  feed.kept = work.pinned_chosen_.as<cuda::ChosenToken>();
  feed.rows_apart = work.rows_;
  feed.stream = work.stream();
  return cuda::feed_tokens(feed);
}

/// Tokens of the last pass, which no later one brings to the host (feed_tokens()), and log-probabilities of each.
Status CudaProgram::download_choices(CudaWorkspace& work, int64_t pass, int64_t passes) const {
  const int64_t at = pass * work.rows_, rows = work.batch_.wanted_rows();
  const int64_t bytes = rows * int64_t{sizeof(cuda::ChosenToken)};
  if (work.batch_.changes().any())  // later passes may penalize it
    LOWBIT_TRY(
        cuda::copy_on(work.stream(), work.chosen_before_.as<cuda::ChosenToken>() + at, work.chosen_.data(), bytes));
  if (work.batch_.wants_logprobs())
    LOWBIT_TRY(cuda::download_on(work.stream(), work.pinned_logprobs_.as<cuda::RowLogprobs>() + at,
                                 work.logprobs_.data(), rows * int64_t{sizeof(cuda::RowLogprobs)}));
  if (pass + 1 < passes) return {};
  return cuda::download_on(work.stream(), work.pinned_chosen_.as<cuda::ChosenToken>() + at, work.chosen_.data(), bytes);
}

namespace {

void hand_out(const cuda::ChosenToken& chosen, const cuda::RowLogprobs& logprobs, int64_t vocab, TokenChoice& to) {
  to.token = chosen.token;
  to.nan = chosen.nan;
  if (to.logits == nullptr) return;
  to.logits->chosen = logprobs.chosen;
  to.logits->largest = logprobs.largest;
  to.logits->sum = logprobs.sum;
  to.logits->top.clear();
  for (int64_t i = 0; i < std::min(to.logits->count, vocab); ++i)
    to.logits->top.emplace_back(logprobs.top[i].token, logprobs.top[i].logit);
}

}  // namespace

Status CudaProgram::fetch_choices(CudaWorkspace& work, const Batch& batch, int64_t vocab) const {
  LOWBIT_TRY(work.wait());
  for (int64_t pass = 0; pass < batch.passes; ++pass) {
    int64_t row = pass * work.rows_;
    for (const WantedRows& w : batch.wanted) {
      if (w.choice != nullptr)
        hand_out(work.pinned_chosen_.as<cuda::ChosenToken>()[row], work.pinned_logprobs_.as<cuda::RowLogprobs>()[row],
                 vocab, w.choice[pass]);
      row += w.rows;
    }
  }
  return {};
}

}  // namespace lowbit
