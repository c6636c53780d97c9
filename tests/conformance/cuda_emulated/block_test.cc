// Kernels of single steps on fibers against the CPU, bit for bit: needs no GPU.

// A namespace of its own: the program also holds what nvcc made of them.
#define cuda cuda_on_fibers
#include "tests/conformance/cuda_emulated/block_kernels.h"

#include "tests/conformance/cuda_emulated/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/block_checks.h"
#include "tests/conformance/exact_product_checks.h"
#include "tests/conformance/half_step_checks.h"
#include "tests/conformance/packed_checks.h"
#include "tests/conformance/page_checks.h"
#include "tests/conformance/row_code_checks.h"
#include "tests/conformance/tensor_attention_checks.h"

namespace lowbit {
namespace {

TEST(BlocksOnFibers, Products) { check_matmuls(60, 130); }

TEST(BlocksOnFibers, ExactProducts) { check_exact_product_all(120, 700); }

TEST(BlocksOnFibers, HalfSteps) { check_half_step_all(60, 700); }

TEST(BlocksOnFibers, Gram) {
  for (const auto& [rows, k, chunk] : {std::array<int64_t, 3>{1, 1, 64}, {70, 130, 32}, {257, 20, 64}, {64, 300, 64}})
    for (const int64_t n : {int64_t{0}, k, int64_t{40}, int64_t{140}}) check_gram(rows, n, k, chunk);
}

TEST(BlocksOnFibers, Rows) { check_rows(); }

TEST(StepsOnFibers, AttentionOnPages) {
  check_pages({.heads = 4, .kv_heads = 2, .head_dim = 16, .sequences = {{0, 5}, {30, 1}, {60, 9}}});
  check_pages({.heads = 3, .kv_heads = 1, .head_dim = 20, .sequences = {{255, 3}, {270, 1}}});
  check_pages({.heads = 2, .kv_heads = 2, .head_dim = 80, .sequences = {{250, 12}}});
  check_pages({.heads = 3, .kv_heads = 3, .head_dim = 128, .sequences = {{0, 5}, {0, 33}}});
  check_pages({.heads = 9, .kv_heads = 1, .head_dim = 6, .sequences = {{10, 3}}});     // a row in two tiles
  check_pages({.heads = 7, .kv_heads = 1, .head_dim = 130, .sequences = {{256, 1}}});  // eight queries at once
  check_pages({.heads = 2, .kv_heads = 1, .head_dim = 256, .sequences = {{0, 1}, {3, 1}}});
  check_pages({.heads = 8, .kv_heads = 4, .head_dim = 20, .sequences = {{200, 90}}});  // 64 queries of a block
  check_pages({.heads = 4, .kv_heads = 4, .head_dim = 72, .sequences = {{239, 65}}});
  check_pages({.heads = 12, .kv_heads = 4, .head_dim = 8, .window = 30, .sequences = {{250, 50}, {600, 22}}});
  check_pages({.heads = 2, .kv_heads = 1, .head_dim = 8, .window = 40, .sequences = {{290, 30}}});  // 32 of a block
  for (const int64_t window : {1, 40, 256, 300})
    check_pages(
        {.heads = 2, .kv_heads = 1, .head_dim = 8, .window = window, .sequences = {{0, 20}, {290, 40}, {600, 1}}});
}

/// Attention of single rows, with rotation and new rows in the same launch.
TEST(StepsOnFibers, RowsThatDecode) {
  check_pages({.heads = 3, .kv_heads = 1, .head_dim = 64, .sequences = {{20, 1}}});
  check_pages({.heads = 4, .kv_heads = 1, .head_dim = 128, .sequences = {{200, 1}}});
  check_pages({.heads = 16, .kv_heads = 1, .head_dim = 64, .sequences = {{256, 1}}});
  check_pages({.heads = 6, .kv_heads = 2, .head_dim = 64, .sequences = {{511, 1}}});
  check_pages({.heads = 6, .kv_heads = 2, .head_dim = 96, .sequences = {{300, 1}}});
  check_pages({.heads = 6, .kv_heads = 1, .head_dim = 32, .sequences = {{700, 1}, {30, 1}}});
  check_pages({.heads = 6, .kv_heads = 2, .head_dim = 64, .window = 100, .sequences = {{400, 1}}});
  check_pages({.heads = 3, .kv_heads = 1, .head_dim = 6, .sequences = {{9000, 1}}});
}

TEST(StepsOnFibers, AttentionOnTensorCores) {
  check_tensor_attention({.heads = 3, .kv_heads = 1, .head_dim = 64, .position = 250, .rows = 22});
  check_tensor_attention({.heads = 4, .kv_heads = 1, .head_dim = 128, .position = 0, .rows = 5});
  check_tensor_attention({.heads = 8, .kv_heads = 1, .head_dim = 128, .window = 600, .position = 2302, .rows = 3});
  check_tensor_attention({.heads = 6, .kv_heads = 2, .head_dim = 64, .position = 2303, .rows = 2});
  check_tensor_attention({.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 70, .position = 100, .rows = 9});
  check_tensor_attention({.heads = 1, .kv_heads = 1, .head_dim = 136, .position = 62, .rows = 3});
  check_tensor_attention({.heads = 2, .kv_heads = 1, .head_dim = 256, .position = 250, .rows = 9});
  check_tensor_attention_of_no_numbers();
}

TEST(StepsOnFibers, PackedPages) { check_all_packing(); }

TEST(StepsOnFibers, AttentionOnPackedPages) { check_all_packed_attention(5200); }

TEST(StepsOnFibers, Codes) { check_codes(); }

TEST(StepsOnFibers, NormAndCodes) { check_norm_codes(); }

TEST(StepsOnFibers, RowsToCodes) { check_all_row_codes(); }

TEST(StepsOnFibers, RowsOfATable) { check_gather(); }

}  // namespace
}  // namespace lowbit
