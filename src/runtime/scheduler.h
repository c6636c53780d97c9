#pragma once
// Decides whose tokens form the next batch.

#include <cstdint>
#include <span>

namespace lowbit {

/// Rows of the next batch for each of the requests that wait, oldest first: rows[i] of left[i] tokens, their sum at
/// most `budget`. Requests of one token, sessions that generate, all join; what is left of the budget goes to prompts
/// in the order they came, the oldest of which gets a quarter of it at least, so that no crowd holds it up. Shapes:
/// left, rows [requests], left[i] >= 1.
void share_rows(std::span<const int64_t> left, int64_t budget, std::span<int64_t> rows);

}  // namespace lowbit
