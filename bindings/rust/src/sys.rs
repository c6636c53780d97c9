//! The C ABI, as far as it is used here: include/lowbit/lowbit.h.

use std::ffi::{c_char, c_int, c_void};


#[repr(C)]
pub struct Model {
    _private: [u8; 0],
}
#[repr(C)]
pub struct Session {
    _private: [u8; 0],
}
#[repr(C)]
pub struct ModelOptions {
    pub struct_size: usize,
    pub activation: *const c_char,
    pub device: *const c_char,
    pub context: i64,
    pub threads: i32,
    pub kv_positions: i64,
    pub kv: *const c_char,
    pub kv_residual: i64,
    pub kv_keep: *const c_char,
    pub kv_refresh: i64,
    pub kv_demote: *const c_char,
    pub exact: i32,
}
#[repr(C)]
pub struct TokenLogprobs {
    pub struct_size: usize,
    pub token: i32,
    pub logprob: f32,
    pub top_tokens: *const i32,
    pub top_logprobs: *const f32,
    pub top_count: usize,
}
#[repr(C)]
pub struct GenerateOptions {
    pub struct_size: usize,
    pub max_tokens: i64,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub repeat_penalty: f32,
    pub top_k: i64,
    pub seed: u64,
    pub ignore_eos: i32,
    pub on_text: Option<extern "C" fn(*mut c_void, *const c_char, usize) -> i32>,
    pub user: *mut c_void,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repeat_window: i64,
    pub bias_tokens: *const i32,
    pub bias_values: *const f32,
    pub bias_count: usize,
    pub token_mask: *const u32,
    pub token_mask_words: usize,
    pub stop_texts: *const *const c_char,
    pub stop_count: usize,
    pub top_logprobs: i64,
    pub on_logprobs: Option<extern "C" fn(*mut c_void, *const TokenLogprobs)>,
}
#[repr(C)]
pub struct Int8QuantArgs {
    pub struct_size: usize,
    pub input: *const c_void,
    pub m: i64,
    pub k: i64,
    pub input_stride: i64,
    pub codes: *mut i8,
    pub codes_stride: i64,
    pub scales: *mut c_void,
    pub input_type: c_int,
    pub scale_type: c_int,
}
#[repr(C)]
pub struct BitlinearArgs {
    pub struct_size: usize,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub x: *const i8,
    pub x_stride: i64,
    pub x_scales: *const c_void,
    pub weight: *const u8,
    pub weight_stride: i64,
    pub weight_scales: *const c_void,
    pub row_ends: *const i32,
    pub ranges: i64,
    pub output: *mut c_void,
    pub output_stride: i64,
    pub scale_type: c_int,
    pub output_type: c_int,
    pub weight_order: c_int,
    pub x_scales_multiply: i32,
}
#[repr(C)]
pub struct BinarizeArgs {
    pub struct_size: usize,
    pub input: *const c_void,
    pub m: i64,
    pub k: i64,
    pub input_stride: i64,
    pub bits: *mut u8,
    pub bits_stride: i64,
    pub scales: *mut f32,
    pub input_type: c_int,
}
#[repr(C)]
pub struct BinaryMatmulArgs {
    pub struct_size: usize,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub x: *const u8,
    pub x_stride: i64,
    pub weight: *const u8,
    pub weight_stride: i64,
    pub x_scales: *const f32,
    pub weight_scales: *const f32,
    pub bias: *const f32,
    pub output: *mut c_void,
    pub output_stride: i64,
    pub output_type: c_int,
}
#[repr(C)]
pub struct Fp8QuantArgs {
    pub struct_size: usize,
    pub input: *const c_void,
    pub rows: i64,
    pub columns: i64,
    pub input_stride: i64,
    pub block_rows: i64,
    pub block_columns: i64,
    pub codes: *mut u8,
    pub scales: *mut f32,
    pub codes_stride: i64,
    pub scale_stride: i64,
    pub input_type: c_int,
    pub scale_order: c_int,
    pub power_of_two: i32,
    pub norm_eps: f32,
    pub norm_weight: *const f32,
    pub up: *const c_void,
    pub up_stride: i64,
}
#[repr(C)]
pub struct Fp8DequantArgs {
    pub struct_size: usize,
    pub codes: *const u8,
    pub scales: *const f32,
    pub rows: i64,
    pub columns: i64,
    pub codes_stride: i64,
    pub scale_stride: i64,
    pub block_rows: i64,
    pub block_columns: i64,
    pub output: *mut c_void,
    pub output_stride: i64,
    pub output_type: c_int,
}
#[repr(C)]
pub struct Fp8GroupedGemmArgs {
    pub struct_size: usize,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub groups: i64,
    pub a: *const u8,
    pub b: *const u8,
    pub a_scales: *const f32,
    pub b_scales: *const f32,
    pub a_stride: i64,
    pub b_stride: i64,
    pub a_scale_stride: i64,
    pub b_scale_stride: i64,
    pub b_block_rows: i64,
    pub output_stride: i64,
    pub rows_of_group: i64,
    pub group_ends: *const i32,
    pub group_rows: *const i32,
    pub output: *mut c_void,
    pub output_type: c_int,
    pub a_scale_order: c_int,
}
#[repr(C)]
pub struct Fp8GemmArgs {
    pub struct_size: usize,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub a: *const u8,
    pub b: *const u8,
    pub a_stride: i64,
    pub b_stride: i64,
    pub a_scales: *const f32,
    pub b_scales: *const f32,
    pub a_scale_stride: i64,
    pub b_scale_stride: i64,
    pub b_block_rows: i64,
    pub output: *mut c_void,
    pub output_stride: i64,
    pub output_type: c_int,
    pub a_scale_order: c_int,
}
extern "C" {
    pub fn lb_version() -> *const c_char;
    pub fn lb_last_error() -> *const c_char;
    pub fn lb_quantized_mm(
        input: *const f32, weight: *const u8, scale: f32, bias: *const f32, output: *mut f32, m: u32, n: u32, k: u32,
        bits: u32, input_stride: u32, weight_stride: u32, output_stride: u32, stream: *mut c_void,
    ) -> c_int;
    pub fn lb_quantized_mm_host(
        input: *const f32, weight: *const u8, scale: f32, bias: *const f32, output: *mut f32, m: u32, n: u32, k: u32,
        bits: u32, input_stride: u32, weight_stride: u32, output_stride: u32,
    ) -> c_int;
    pub fn lb_quantize_activations_int8(args: *const Int8QuantArgs, stream: *mut c_void) -> c_int;
    pub fn lb_bitlinear_int8xint2(args: *const BitlinearArgs, stream: *mut c_void) -> c_int;
    pub fn lb_binarize_activations(args: *const BinarizeArgs, stream: *mut c_void) -> c_int;
    pub fn lb_binary_matmul(args: *const BinaryMatmulArgs, stream: *mut c_void) -> c_int;
    pub fn lb_act_quant_fp8(args: *const Fp8QuantArgs, stream: *mut c_void) -> c_int;
    pub fn lb_weight_quant_fp8(args: *const Fp8QuantArgs, stream: *mut c_void) -> c_int;
    pub fn lb_weight_dequant_fp8(args: *const Fp8DequantArgs, stream: *mut c_void) -> c_int;
    pub fn lb_fp8_grouped_gemm(args: *const Fp8GroupedGemmArgs, stream: *mut c_void) -> c_int;
    pub fn lb_fp8_gemm(args: *const Fp8GemmArgs, stream: *mut c_void) -> c_int;
    pub fn lb_quantize_activations_int8_host(args: *const Int8QuantArgs) -> c_int;
    pub fn lb_bitlinear_int8xint2_host(args: *const BitlinearArgs) -> c_int;
    pub fn lb_int2_to_tiles(rows: *const u8, row_stride: i64, n: i64, k: i64, tiles: *mut u8) -> c_int;
    pub fn lb_int2_from_tiles(tiles: *const u8, n: i64, k: i64, rows: *mut u8, row_stride: i64) -> c_int;
    pub fn lb_binarize_activations_host(args: *const BinarizeArgs) -> c_int;
    pub fn lb_binary_matmul_host(args: *const BinaryMatmulArgs) -> c_int;
    pub fn lb_weight_quant_fp8_host(args: *const Fp8QuantArgs) -> c_int;
    pub fn lb_weight_dequant_fp8_host(args: *const Fp8DequantArgs) -> c_int;
    pub fn lb_fp8_gemm_host(args: *const Fp8GemmArgs) -> c_int;
    pub fn lb_model_open(path: *const c_char, options: *const ModelOptions, model: *mut *mut Model) -> c_int;
    pub fn lb_model_close(model: *mut Model);
    pub fn lb_model_vocab_size(model: *const Model) -> i64;
    pub fn lb_model_length(model: *const Model) -> i64;
    pub fn lb_model_prefill(model: *mut Model, tokens: *const i32, count: usize) -> c_int;
    pub fn lb_model_logits(model: *const Model, logits: *mut *const f32, count: *mut usize) -> c_int;
    pub fn lb_model_truncate(model: *mut Model, length: i64) -> c_int;
    pub fn lb_model_tokenize(
        model: *const Model, text: *const c_char, text_size: usize, add_special: i32, parse_special: i32, tokens: *mut i32,
        capacity: usize, count: *mut usize,
    ) -> c_int;
    pub fn lb_model_detokenize(
        model: *const Model, tokens: *const i32, count: usize, text: *mut c_char, capacity: usize, size: *mut usize,
    ) -> c_int;
    pub fn lb_model_chat_text(
        model: *const Model, variables: *const c_char, variables_size: usize, text: *mut c_char, capacity: usize, size: *mut usize,
    ) -> c_int;
    pub fn lb_model_generate(
        model: *mut Model, prompt: *const i32, prompt_count: usize, options: *const GenerateOptions, tokens: *mut i32,
        capacity: usize, count: *mut usize,
    ) -> c_int;

    pub fn lb_session_open(model: *const Model, session: *mut *mut Session) -> c_int;
    pub fn lb_session_fork(from: *const Session, session: *mut *mut Session) -> c_int;
    pub fn lb_session_close(session: *mut Session);
    pub fn lb_session_save(session: *const Session, path: *const c_char) -> c_int;
    pub fn lb_session_load(session: *mut Session, path: *const c_char) -> c_int;
    pub fn lb_session_tokens(session: *const Session, tokens: *mut i32, capacity: usize, count: *mut usize) -> c_int;
    pub fn lb_session_length(session: *const Session) -> i64;
    pub fn lb_session_wait_for_pages(session: *mut Session, milliseconds: i64) -> c_int;
    pub fn lb_session_prefill(session: *mut Session, tokens: *const i32, count: usize) -> c_int;
    pub fn lb_session_prefill_together(
        session: *const *mut Session, tokens: *const *const i32, counts: *const usize, sessions: usize,
    ) -> c_int;
    pub fn lb_session_logits(session: *const Session, logits: *mut *const f32, count: *mut usize) -> c_int;
    pub fn lb_session_truncate(session: *mut Session, length: i64) -> c_int;
    pub fn lb_session_generate(
        session: *mut Session, prompt: *const i32, prompt_count: usize, options: *const GenerateOptions, tokens: *mut i32,
        capacity: usize, count: *mut usize,
    ) -> c_int;
}
