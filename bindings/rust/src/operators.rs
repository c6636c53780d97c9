//! Products of integers with few bits, on the CPU: docs/operators.md.

use crate::{check, invalid, sys, Result};
use std::mem;

fn wanted(name: &str, got: usize, wanted: Option<usize>) -> Result<()> {
    match wanted {
        Some(wanted) if got == wanted => Ok(()),
        Some(wanted) => Err(invalid(format!("{name}: got {got} elements, wanted {wanted}"))),
        None => Err(invalid(format!("{name}: a shape that does not fit"))),
    }
}

/// int8 codes of `x` [m, k] and a scale for each row: `s = 127 / max(max |x|, 1e-5)`, `code = round half to even(x *
/// s)`. x is about `code / s`. A row with a NaN or an infinity has s = NaN and codes 0.
pub fn quantize_activations_int8(x: &[f32], m: usize, k: usize) -> Result<(Vec<i8>, Vec<f32>)> {
    wanted("x", x.len(), m.checked_mul(k))?;
    let (mut codes, mut scales) = (vec![0i8; x.len()], vec![0f32; m]);
    // All of the struct may be zero, and the vectors are as long as m and k say.
    let mut args: sys::Int8QuantArgs = unsafe { mem::zeroed() };
    args.struct_size = mem::size_of_val(&args);
    (args.input, args.m, args.k) = (x.as_ptr().cast(), m as i64, k as i64);
    (args.codes, args.scales) = (codes.as_mut_ptr(), scales.as_mut_ptr().cast());
    check(unsafe { sys::lb_quantize_activations_int8_host(&args) })?;
    Ok((codes, scales))
}

/// A weight [n, k] of 2-bit codes, four a byte, value = code - 2.
#[derive(Clone, Copy, Debug)]
pub struct Int2Weight<'a> {
    /// `[n, ceil(k / 4)]`.
    pub codes: &'a [u8],
    /// In the order of BitNet's GPU kernel, blocks of 16 x 32; else rows.
    pub tiles: bool,
    /// One for each range of rows.
    pub scales: &'a [f32],
    /// Where the ranges end, ascending, the last is n. Empty: one range.
    pub row_ends: &'a [i32],
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
}

/// `y[m, n] = sum(x * w) / s * ws`, exact sums: BitNet's W2A8 product. `s` [m] divides, as
/// [`quantize_activations_int8`] makes it.
pub fn bitlinear_int8xint2(x: &[i8], s: &[f32], m: usize, weight: &Int2Weight) -> Result<Vec<f32>> {
    let (n, k) = (weight.n, weight.k);
    wanted("x", x.len(), m.checked_mul(k))?;
    wanted("s", s.len(), Some(m))?;
    wanted("codes", weight.codes.len(), n.checked_mul(k.div_ceil(4)))?;
    wanted("scales", weight.scales.len(), Some(weight.row_ends.len().max(1)))?;
    let size = m.checked_mul(n).ok_or_else(|| invalid(format!("{m} x {n} outputs do not fit")))?;
    let mut y = vec![0f32; size];
    let mut args: sys::BitlinearArgs = unsafe { mem::zeroed() };
    args.struct_size = mem::size_of_val(&args);
    (args.m, args.n, args.k) = (m as i64, n as i64, k as i64);
    (args.x, args.x_scales) = (x.as_ptr(), s.as_ptr().cast());
    (args.weight, args.weight_scales) = (weight.codes.as_ptr(), weight.scales.as_ptr().cast());
    if !weight.row_ends.is_empty() {
        (args.row_ends, args.ranges) = (weight.row_ends.as_ptr(), weight.row_ends.len() as i64);
    }
    args.weight_order = weight.tiles.into();
    args.output = y.as_mut_ptr().cast();
    check(unsafe { sys::lb_bitlinear_int8xint2_host(&args) })?;
    Ok(y)
}

/// 2-bit codes [n, k / 4] in the order of BitNet's GPU kernel; n a multiple of 16, k of 32.
pub fn int2_to_tiles(codes: &[u8], n: usize, k: usize) -> Result<Vec<u8>> {
    wanted("codes", codes.len(), n.checked_mul(k.div_ceil(4)))?;
    let mut tiles = vec![0; codes.len()];
    check(unsafe { sys::lb_int2_to_tiles(codes.as_ptr(), 0, n as i64, k as i64, tiles.as_mut_ptr()) })?;
    Ok(tiles)
}

/// The way back.
pub fn int2_from_tiles(tiles: &[u8], n: usize, k: usize) -> Result<Vec<u8>> {
    wanted("tiles", tiles.len(), n.checked_mul(k.div_ceil(4)))?;
    let mut codes = vec![0; tiles.len()];
    check(unsafe { sys::lb_int2_from_tiles(tiles.as_ptr(), n as i64, k as i64, codes.as_mut_ptr(), 0) })?;
    Ok(codes)
}

/// Bits [m, ceil(k / 8)] of `x` [m, k] and a scale for each row: bit 1 where x >= 0 or NaN, scale = mean |x|.
pub fn binarize_activations(x: &[f32], m: usize, k: usize) -> Result<(Vec<u8>, Vec<f32>)> {
    wanted("x", x.len(), m.checked_mul(k))?;
    let (mut bits, mut scales) = (vec![0u8; m * k.div_ceil(8)], vec![0f32; m]);
    let mut args: sys::BinarizeArgs = unsafe { mem::zeroed() };
    args.struct_size = mem::size_of_val(&args);
    (args.input, args.m, args.k) = (x.as_ptr().cast(), m as i64, k as i64);
    (args.bits, args.scales) = (bits.as_mut_ptr(), scales.as_mut_ptr());
    check(unsafe { sys::lb_binarize_activations_host(&args) })?;
    Ok((bits, scales))
}

/// Bits as -1 (0) and +1 (1), `[rows, ceil(k / 8)]`, and a scale for each row.
#[derive(Clone, Copy, Debug)]
pub struct BitRows<'a> {
    /// Bytes behind column k do not count.
    pub bits: &'a [u8],
    /// One for each row.
    pub scales: &'a [f32],
}

/// `y[m, n]` of `x` [m, k] and `weight` [n, k]: exact sums of +1 and -1, times the weight's scale, times x's.
pub fn binary_matmul(x: BitRows, weight: BitRows, m: usize, n: usize, k: usize) -> Result<Vec<f32>> {
    for (name, rows, count) in [("x", x, m), ("weight", weight, n)] {
        wanted(name, rows.bits.len(), count.checked_mul(k.div_ceil(8)))?;
        wanted(name, rows.scales.len(), Some(count))?;
    }
    let mut y = vec![0f32; m.checked_mul(n).ok_or_else(|| invalid(format!("{m} x {n} outputs do not fit")))?];
    let mut args: sys::BinaryMatmulArgs = unsafe { mem::zeroed() };
    args.struct_size = mem::size_of_val(&args);
    (args.m, args.n, args.k) = (m as i64, n as i64, k as i64);
    (args.x, args.x_scales) = (x.bits.as_ptr(), x.scales.as_ptr());
    (args.weight, args.weight_scales) = (weight.bits.as_ptr(), weight.scales.as_ptr());
    args.output = y.as_mut_ptr().cast();
    check(unsafe { sys::lb_binary_matmul_host(&args) })?;
    Ok(y)
}
