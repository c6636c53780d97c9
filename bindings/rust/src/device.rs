//! The operators on device memory: the structs of include/lowbit/lowbit.h and a CUDA stream (null: the default one).
//! docs/operators.md#on-a-gpu.
//!
//! Set all of a struct to zero, then what a call needs; `struct_size` is set here. Calls enqueue work: they allocate
//! nothing, wait for nothing and may be captured into a graph. Errors: those of lowbit.h, `unsupported` without a GPU
//! among them.

pub use crate::sys::{BinarizeArgs, BinaryMatmulArgs, BitlinearArgs, Fp8DequantArgs, Fp8GemmArgs, Fp8GroupedGemmArgs, Fp8QuantArgs, Int8QuantArgs};

use crate::{check, sys, Result};
use std::ffi::c_void;
use std::mem;

/// A struct that may be all zero, as its caller begins with.
///
/// # Safety
/// Only structs of integers and pointers, which all of these are.
pub unsafe trait Args: Sized {
    /// All zero: no pointer, no row.
    fn zeroed() -> Self {
        unsafe { mem::zeroed() }
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($args:ident) = $function:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// All pointers are device memory as large as shapes and strides say, valid until the stream has done the work.
        pub unsafe fn $name(mut args: $args, stream: *mut c_void) -> Result<()> {
            args.struct_size = mem::size_of::<$args>();
            check(sys::$function(&args, stream))
        }
    )*};
}

unsafe impl Args for Int8QuantArgs {}
unsafe impl Args for BitlinearArgs {}
unsafe impl Args for BinarizeArgs {}
unsafe impl Args for BinaryMatmulArgs {}
unsafe impl Args for Fp8QuantArgs {}
unsafe impl Args for Fp8DequantArgs {}
unsafe impl Args for Fp8GemmArgs {}
unsafe impl Args for Fp8GroupedGemmArgs {}

calls! {
    /// Rows of activations as int8 codes and scales that divide.
    quantize_activations_int8(Int8QuantArgs) = lb_quantize_activations_int8;
    /// int8 activations times 2-bit weights.
    bitlinear_int8xint2(BitlinearArgs) = lb_bitlinear_int8xint2;
    /// Rows of activations as bits and scales.
    binarize_activations(BinarizeArgs) = lb_binarize_activations;
    /// Bits times bits.
    binary_matmul(BinaryMatmulArgs) = lb_binary_matmul;
    /// Activations in E4M3, blocks of 1 x 128.
    act_quant_fp8(Fp8QuantArgs) = lb_act_quant_fp8;
    /// Weights in E4M3, blocks of 128 x 128.
    weight_quant_fp8(Fp8QuantArgs) = lb_weight_quant_fp8;
    /// Codes and scales back to floats.
    weight_dequant_fp8(Fp8DequantArgs) = lb_weight_dequant_fp8;
    /// Codes times codes.
    fp8_gemm(Fp8GemmArgs) = lb_fp8_gemm;
    /// Groups of rows, each times codes of its own.
    fp8_grouped_gemm(Fp8GroupedGemmArgs) = lb_fp8_grouped_gemm;
}
