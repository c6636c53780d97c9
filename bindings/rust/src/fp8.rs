//! FP8 in blocks: E4M3 codes with a scale per block of rows and columns, on the CPU.

use crate::{check, invalid, sys, Result};
use std::mem;

/// Columns of a block.
pub const BLOCK: usize = 128;

/// Codes and their scales: a matrix `[rows, columns]` in blocks of `block_rows` x 128.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8Matrix {
    /// E4M3, row by row.
    pub codes: Vec<u8>,
    /// `[ceil(rows / block_rows), ceil(columns / 128)]`: the real number is the code's value times its block's scale.
    pub scales: Vec<f32>,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Rows that share a scale: 1 for activations, 128 for weights.
    pub block_rows: usize,
}

fn elements(rows: usize, columns: usize) -> Result<usize> {
    rows.checked_mul(columns).ok_or_else(|| invalid(format!("{rows} x {columns} elements do not fit")))
}

impl Fp8Matrix {
    /// Activations: a scale for each row and 128 columns of `x`, [rows, columns].
    pub fn activations(x: &[f32], rows: usize, columns: usize) -> Result<Self> {
        Self::quantize(x, rows, columns, 1)
    }

    /// Weights: a scale for each 128 x 128 of `w`, [rows, columns].
    pub fn weights(w: &[f32], rows: usize, columns: usize) -> Result<Self> {
        Self::quantize(w, rows, columns, BLOCK)
    }

    fn quantize(x: &[f32], rows: usize, columns: usize, block_rows: usize) -> Result<Self> {
        let count = elements(rows, columns)?;
        if x.len() != count {
            return Err(invalid(format!("x: got {} elements, wanted {count}", x.len())));
        }
        let scales = rows.div_ceil(block_rows) * columns.div_ceil(BLOCK);
        let mut made = Fp8Matrix { codes: vec![0; count], scales: vec![0.0; scales], rows, columns, block_rows };
        // All of the struct may be zero, and the vectors are as long as rows and columns say.
        let mut args: sys::Fp8QuantArgs = unsafe { mem::zeroed() };
        args.struct_size = mem::size_of_val(&args);
        args.input = x.as_ptr().cast();
        (args.rows, args.columns) = (rows as i64, columns as i64);
        args.block_rows = block_rows as i64;
        (args.codes, args.scales) = (made.codes.as_mut_ptr(), made.scales.as_mut_ptr());
        check(unsafe { sys::lb_weight_quant_fp8_host(&args) })?;
        Ok(made)
    }

    fn check_lengths(&self) -> Result<()> {
        let count = elements(self.rows, self.columns)?;
        if self.block_rows == 0 || self.codes.len() != count || self.scales.len() != self.rows.div_ceil(self.block_rows) * self.columns.div_ceil(BLOCK) {
            return Err(invalid(format!("{} codes and {} scales for {} x {}", self.codes.len(), self.scales.len(), self.rows, self.columns)));
        }
        Ok(())
    }

    /// Value times scale, [rows, columns].
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        self.check_lengths()?;
        let mut y = vec![0.0f32; self.codes.len()];
        let mut args: sys::Fp8DequantArgs = unsafe { mem::zeroed() };
        args.struct_size = mem::size_of_val(&args);
        (args.codes, args.scales) = (self.codes.as_ptr(), self.scales.as_ptr());
        (args.rows, args.columns) = (self.rows as i64, self.columns as i64);
        args.block_rows = self.block_rows as i64;
        args.output = y.as_mut_ptr().cast();
        check(unsafe { sys::lb_weight_dequant_fp8_host(&args) })?;
        Ok(y)
    }

    /// self [m, k] times `weights` [n, k] transposed: [m, n]. self must be activations. Sums are f32 over 128 columns
    /// and then take the scales in.
    pub fn multiply(&self, weights: &Fp8Matrix) -> Result<Vec<f32>> {
        self.check_lengths()?;
        weights.check_lengths()?;
        if self.block_rows != 1 || self.columns != weights.columns {
            return Err(invalid(format!("{} columns in blocks of {} rows, wanted {} in blocks of 1", self.columns, self.block_rows, weights.columns)));
        }
        let mut y = vec![0.0f32; elements(self.rows, weights.rows)?];
        let mut args: sys::Fp8GemmArgs = unsafe { mem::zeroed() };
        args.struct_size = mem::size_of_val(&args);
        (args.m, args.n, args.k) = (self.rows as i64, weights.rows as i64, self.columns as i64);
        (args.a, args.a_scales) = (self.codes.as_ptr(), self.scales.as_ptr());
        (args.b, args.b_scales) = (weights.codes.as_ptr(), weights.scales.as_ptr());
        args.b_block_rows = weights.block_rows as i64;
        args.output = y.as_mut_ptr().cast();
        check(unsafe { sys::lb_fp8_gemm_host(&args) })?;
        Ok(y)
    }
}
