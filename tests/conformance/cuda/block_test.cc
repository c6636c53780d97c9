// Kernels of steps and of Gram matrices on the GPU against the CPU's, bit for bit.

#include <gtest/gtest.h>

#include "tests/conformance/cuda/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/block_checks.h"
#include "tests/conformance/exact_product_checks.h"
#include "tests/conformance/half_step_checks.h"
#include "tests/conformance/int8_step_checks.h"
#include "tests/conformance/packed_checks.h"
#include "tests/conformance/page_checks.h"
#include "tests/conformance/row_code_checks.h"
#include "tests/conformance/tensor_attention_checks.h"

namespace lowbit {
namespace {

TEST(Blocks, Products) {
  LOWBIT_NEEDS_GPU();
  check_matmuls(400, 1000);
}

TEST(Blocks, ExactProducts) {
  LOWBIT_NEEDS_GPU();
  check_exact_product_all(400, 1500);
}

TEST(Blocks, HalfSteps) {
  LOWBIT_NEEDS_GPU();
  check_half_step_all(400, 3000);
}

TEST(Blocks, FewHalfSteps) {  // racecheck has time for
  LOWBIT_NEEDS_GPU();
  check_half_step_all(16, 1500);
}

TEST(Blocks, Int8Steps) {
  LOWBIT_NEEDS_GPU();
  check_int8_step_all(300, 6000, false);
}

TEST(Blocks, CodesOfGatedProducts) {
  LOWBIT_NEEDS_GPU();
  check_int8_step_codes({2304, 4288, 14336},
                        {FormatId::kInt2, FormatId::kInt4, FormatId::kCodebook4, FormatId::kTrellis2});
}

TEST(Blocks, Int8StepsWithExactScales) {
  LOWBIT_NEEDS_GPU();
  check_int8_step_exact(300, 6000);
  check_int8_step({.k = 11008, .group = 128, .n = {4096}, .exact = true}, 300);
}

TEST(Blocks, TrellisSteps) {
  LOWBIT_NEEDS_GPU();
  check_int8_step_all(300, 6000, true);
  for (const int64_t m : {1, 3})  // of more there is no room for x
    check_int8_step({.m = m, .k = 14336, .group = 64, .n = {300}, .format = FormatId::kTrellis2}, 1);
}

TEST(Blocks, FewTrellisSteps) {  // racecheck has time for
  LOWBIT_NEEDS_GPU();
  check_int8_step_all(16, 1500, true);
}

TEST(Blocks, Gram) {
  LOWBIT_NEEDS_GPU();
  for (const auto& [rows, k, chunk] :
       {std::array<int64_t, 3>{1, 1, 64}, {70, 130, 32}, {257, 20, 64}, {5000, 300, 1024}, {2048, 576, 1024}})
    for (const int64_t n : {int64_t{0}, k, int64_t{40}, int64_t{140}}) check_gram(rows, n, k, chunk);
}

TEST(Blocks, Rows) {
  LOWBIT_NEEDS_GPU();
  check_rows();
}

TEST(Steps, AttentionOnPages) {
  LOWBIT_NEEDS_GPU();
  check_pages({.heads = 4, .kv_heads = 2, .head_dim = 16, .sequences = {{0, 5}, {30, 1}, {60, 9}}});
  check_pages({.heads = 3, .kv_heads = 1, .head_dim = 20, .sequences = {{255, 3}, {270, 1}}});
  check_pages({.heads = 9, .kv_heads = 3, .head_dim = 64, .sequences = {{0, 512}, {4000, 1}, {511, 100}}});
  check_pages({.heads = 32, .kv_heads = 1, .head_dim = 128, .sequences = {{700, 7}, {1, 1}}});
  check_pages({.heads = 32, .kv_heads = 8, .head_dim = 128, .sequences = {{9000, 1}}});
  check_pages({.heads = 6, .kv_heads = 2, .head_dim = 130, .sequences = {{256, 1}, {255, 1}}});
  check_pages({.heads = 2, .kv_heads = 1, .head_dim = 256, .sequences = {{300, 40}, {3, 1}}});
  for (const int64_t window : {1, 40, 256, 300, 1000})
    check_pages(
        {.heads = 6, .kv_heads = 2, .head_dim = 48, .window = window, .sequences = {{0, 20}, {290, 40}, {2600, 1}}});
}

/// Tiles of 64 queries and of 32, their borders inside rows and spans.
TEST(Steps, AttentionOfPrompts) {
  LOWBIT_NEEDS_GPU();
  for (const int64_t rows : {21, 22, 63, 64, 65, 300})
    check_pages({.heads = 9, .kv_heads = 3, .head_dim = 64, .sequences = {{200, rows}}});
  check_pages({.heads = 32, .kv_heads = 8, .head_dim = 128, .sequences = {{0, 700}, {1000, 1}, {250, 33}}});
  check_pages({.heads = 10, .kv_heads = 10, .head_dim = 96, .sequences = {{500, 300}}});
  check_pages({.heads = 64, .kv_heads = 64, .head_dim = 20, .sequences = {{120, 150}}});
  check_pages({.heads = 64, .kv_heads = 64, .head_dim = 250, .sequences = {{0, 200}}});
  for (const int64_t window : {1, 60, 256, 400}) {
    check_pages({.heads = 6, .kv_heads = 2, .head_dim = 64, .window = window, .sequences = {{290, 30}, {0, 700}}});
    check_pages({.heads = 66, .kv_heads = 33, .head_dim = 40, .window = window, .sequences = {{100, 300}}});
  }
}

/// Attention of single rows, with rotation and new rows in the same launch.
TEST(Steps, RowsThatDecode) {
  LOWBIT_NEEDS_GPU();
  for (const int64_t position : {0, 63, 64, 255, 256, 600, 9000})
    for (const auto& [heads, kv_heads, head_dim] : {std::array<int64_t, 3>{9, 3, 64},
                                                    {20, 5, 128},
                                                    {32, 8, 128},
                                                    {8, 1, 96},
                                                    {16, 1, 64},
                                                    {64, 64, 32},
                                                    {100, 100, 64},
                                                    {6, 2, 70}})
      check_pages({heads, kv_heads, head_dim, position == 600 ? 300 : 0, {{position, 1}, {position / 2, 1}}});
}

TEST(Steps, AttentionOnTensorCores) {
  LOWBIT_NEEDS_GPU();
  for (const int64_t group : {1, 2, 3, 7, 16, 20})
    check_tensor_attention({.heads = 2 * group, .kv_heads = 2, .head_dim = 64, .position = 240, .rows = 33});
  for (const int64_t head_dim : {8, 16, 40, 64, 80, 96, 128, 136, 192, 256})
    check_tensor_attention({.heads = 4, .kv_heads = 2, .head_dim = head_dim, .position = 500, .rows = 40});
  for (const int64_t window : {1, 60, 64, 256, 300})
    for (const int64_t head_dim : {64, 128})
      check_tensor_attention(
          {.heads = 6, .kv_heads = 2, .head_dim = head_dim, .window = window, .position = 290, .rows = 90});
  for (const int64_t position : {0, 1, 63, 64, 255, 256, 257, 511, 2050})
    check_tensor_attention({.heads = 8, .kv_heads = 2, .head_dim = 128, .position = position, .rows = 20});
  check_tensor_attention({.heads = 8, .kv_heads = 2, .head_dim = 128, .position = 0, .rows = 700});
  for (const int64_t window : {0, 3000})  // more spans than thread blocks: warps go from one to the next
    for (const auto& [heads, head_dim] : {std::pair<int64_t, int64_t>{8, 128}, {16, 128}, {6, 64}, {2, 64}, {14, 128}})
      check_tensor_attention(
          {.heads = heads, .kv_heads = 2, .head_dim = head_dim, .window = window, .position = 8150, .rows = 20});
  check_tensor_attention_of_no_numbers();
}

TEST(Steps, PackedPages) {
  LOWBIT_NEEDS_GPU();
  check_all_packing();
}

TEST(Steps, AttentionOnPackedPages) {
  LOWBIT_NEEDS_GPU();
  check_all_packed_attention(20000);
  check_packed_attention({{4, 4, 64}, 16, 4, 128, {{2000, 40}, {300, 3}}});  // more parts than run at once
  check_packed_attention({{2, 2, 64}, 32, 8, 128, {{2000, 9}, {1300, 9}, {1800, 9}}});
}

TEST(Steps, Codes) {
  LOWBIT_NEEDS_GPU();
  check_codes();
}

TEST(Steps, NormAndCodes) {
  LOWBIT_NEEDS_GPU();
  check_norm_codes();
}

TEST(Steps, RowsToCodes) {
  LOWBIT_NEEDS_GPU();
  check_all_row_codes();
}

TEST(Steps, RowsOfATable) {
  LOWBIT_NEEDS_GPU();
  check_gather();
}

}  // namespace
}  // namespace lowbit
