//! Safe bindings to lowbit's C ABI (`include/lowbit/lowbit.h`): quantized matrix products, FP8 in blocks, language
//! models, and many sequences of one at once.
//!
//! ```
//! // [1, 4] times one row of four 2-bit weights, all of them 1 (codes 3): value = code - 2.
//! let product = lowbit::QuantizedMm::new(lowbit::Bits::Two, 1, 1, 4);
//! let mut output = [0.0];
//! product.run(&[1.0, 2.0, 3.0, 4.0], &[0xff], 0.5, None, &mut output)?;
//! assert_eq!(output, [5.0]);
//! # Ok::<(), lowbit::Error>(())
//! ```

#![deny(missing_docs)]

use std::ffi::{c_int, c_void, CStr};
use std::fmt;

pub mod device;
mod fp8;
mod model;
mod operators;
mod session;
#[allow(missing_docs)] // lowbit.h has them
mod sys;

pub use fp8::Fp8Matrix;
pub use model::{Model, ModelOptions};
pub use operators::{
    binarize_activations, binary_matmul, bitlinear_int8xint2, int2_from_tiles, int2_to_tiles, quantize_activations_int8, BitRows, Int2Weight,
};
pub use session::{Generate, Session, TokenLogprobs};

/// The message of a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The number of an `lb_status`.
    pub status: i32,
    /// Where, what was got and what was wanted: one line.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for Error {}

/// The result of every call here.
pub type Result<T> = std::result::Result<T, Error>;

const INVALID_ARGUMENT: i32 = 1;

fn invalid(message: impl Into<String>) -> Error {
    Error { status: INVALID_ARGUMENT, message: message.into() }
}

fn check(status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // The text belongs to this thread and lives until its next call.
    let message = unsafe { CStr::from_ptr(sys::lb_last_error()) }.to_string_lossy().into_owned();
    Err(Error { status, message })
}

/// The library's version.
pub fn version() -> String {
    unsafe { CStr::from_ptr(sys::lb_version()) }.to_string_lossy().into_owned()
}

/// Width of a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// -1 and 1
    One = 1,
    /// code - 2: -2 to 1
    Two = 2,
    /// two's complement
    Four = 4,
    /// two's complement
    Eight = 8,
}

/// `output[m, n] = scale * input[m, k] * weight[n, k]^T + bias[n]`: shapes and strides of one product.
///
/// Weights are packed least significant bits first, each row in whole bytes. The error is at most 1e-6 times the sum of
/// the terms' magnitudes. Scales per row, group or row range and 16-bit types are in the C ABI alone
/// (`lb_quantized_mm_args`).
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMm {
    /// Of a weight.
    pub bits: Bits,
    /// Rows of the input and of the output.
    pub m: u32,
    /// Rows of the weights, columns of the output.
    pub n: u32,
    /// Columns of the input and of the weights.
    pub k: u32,
    /// Elements from one row of the input to the next.
    pub input_stride: u32,
    /// Bytes from one row of weights to the next.
    pub weight_stride: u32,
    /// Elements from one row of the output to the next.
    pub output_stride: u32,
}

impl QuantizedMm {
    /// Rows lie side by side; change the strides for others.
    pub fn new(bits: Bits, m: u32, n: u32, k: u32) -> Self {
        let row_bytes = (u64::from(k) * bits as u64).div_ceil(8) as u32;
        QuantizedMm { bits, m, n, k, input_stride: k, weight_stride: row_bytes, output_stride: n }
    }

    fn needed(rows: u32, stride: u32, row: u64) -> u64 {
        if rows == 0 { 0 } else { u64::from(rows - 1) * u64::from(stride) + row }
    }

    /// Computes on the CPU: `input` [m, k], `weight` [n, k] packed, `bias` [n], `output` [m, n]. Slices shorter than
    /// shapes and strides say are an error, not undefined behaviour.
    pub fn run(&self, input: &[f32], weight: &[u8], scale: f32, bias: Option<&[f32]>, output: &mut [f32]) -> Result<()> {
        let row_bytes = (u64::from(self.k) * self.bits as u64).div_ceil(8);
        if self.m > 1 && (self.input_stride < self.k || self.output_stride < self.n) {
            return Err(invalid("strides shorter than rows"));
        }
        if self.n > 1 && u64::from(self.weight_stride) < row_bytes {
            return Err(invalid("weight stride shorter than a row"));
        }
        for (name, got, wanted) in [
            ("input", input.len(), Self::needed(self.m, self.input_stride, u64::from(self.k))),
            ("weight", weight.len(), Self::needed(self.n, self.weight_stride, row_bytes)),
            ("output", output.len(), Self::needed(self.m, self.output_stride, u64::from(self.n))),
            ("bias", bias.map_or(self.n as usize, <[f32]>::len), u64::from(self.n)),
        ] {
            if (got as u64) < wanted {
                return Err(invalid(format!("{name}: got {got} elements, wanted {wanted}")));
            }
        }
        // The slices are as long as the library reads and writes, by the checks above.
        check(unsafe {
            sys::lb_quantized_mm_host(
                input.as_ptr(), weight.as_ptr(), scale, bias.map_or(std::ptr::null(), <[f32]>::as_ptr), output.as_mut_ptr(),
                self.m, self.n, self.k, self.bits as u32, self.input_stride, self.weight_stride, self.output_stride,
            )
        })
    }

    /// Enqueues the product on a CUDA stream (null: the default one).
    ///
    /// # Safety
    /// All pointers are device memory as large as shapes and strides say, valid until the stream has done the work;
    /// `bias` may be null. `weight` must be complete before the kernel in front of this one in the stream starts.
    pub unsafe fn run_on_device(
        &self, input: *const f32, weight: *const u8, scale: f32, bias: *const f32, output: *mut f32, stream: *mut c_void,
    ) -> Result<()> {
        check(sys::lb_quantized_mm(
            input, weight, scale, bias, output, self.m, self.n, self.k, self.bits as u32, self.input_stride,
            self.weight_stride, self.output_stride, stream,
        ))
    }
}
