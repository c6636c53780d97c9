#pragma once
// Packs a page of keys and values: rows become codes of few bits.

#include <cstdint>

#include "kernels/packed_kv.h"

namespace lowbit {

/// Packs rows of f16, row r at rows + r * ld, to codes [shape.code_bytes()] and what stands beside them
/// [shape.side_bytes()]. Numerics (normative, f32, each operation rounded once): a row's range is from its least to its
/// most element; for 2, 3 and 4 bits it may shrink about its middle where that brings a smaller squared error.
/// super_least = max |least| / 127, leasts = floor(least / super_least); step = (most - real least) / (2^bits - 1),
/// super_scale = max step / 255, scales = ceil(step / super_scale); code = round-half-even((x - real least) * (1 / real
/// step)), within 0 to 2^bits - 1. With a NaN or infinity among the rows both super-scales are NaN, and so is the
/// matrix. Source: seed 003 section 3.3.
void pack_rows(const uint16_t* rows, int64_t ld, const PackedShape& shape, uint8_t* codes, uint8_t* side);
/// And back, row r at rows + r * ld: the nearest f16 of fma(super_scale * scales, code, super_least * leasts), at most
/// 65504; NaN where a super-scale is.
void unpack_rows(const PackedMatrix& matrix, const PackedShape& shape, int64_t ld, uint16_t* rows);

}  // namespace lowbit
