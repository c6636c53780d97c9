//! Safe bindings to lowbit's C ABI (`include/lowbit/lowbit.h`): quantized matrix products and language models.
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

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;

mod sys {
    use super::*;

    #[repr(C)]
    pub struct Model {
        _private: [u8; 0],
    }
    #[repr(C)]
    pub struct ModelOptions {
        pub struct_size: usize,
        pub activation: *const c_char,
        pub device: *const c_char,
        pub context: i64,
        pub threads: i32,
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
    }
}

/// What a call of lowbit said when it failed.
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

/// What every call here gives.
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
/// Weights are packed least significant bits first, each row in whole bytes. The error is at most 1e-6 times the sum of the terms' magnitudes.
/// Scales per row, group or row range and 16-bit types are in the C ABI alone (`lb_quantized_mm_args`).
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

    /// Computes on the CPU: `input` [m, k], `weight` [n, k] packed, `bias` [n], `output` [m, n]. Slices shorter than shapes and strides say are an error, not undefined behaviour.
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
    /// All pointers are device memory as large as shapes and strides say, valid until the stream has done the work; `bias`
    /// may be null. `weight` must be complete before the kernel in front of this one in the stream starts.
    pub unsafe fn run_on_device(
        &self, input: *const f32, weight: *const u8, scale: f32, bias: *const f32, output: *mut f32, stream: *mut c_void,
    ) -> Result<()> {
        check(sys::lb_quantized_mm(
            input, weight, scale, bias, output, self.m, self.n, self.k, self.bits as u32, self.input_stride,
            self.weight_stride, self.output_stride, stream,
        ))
    }
}

/// The text of a call that says how long it is when there is too little room.
fn text_of(call: impl Fn(*mut c_char, usize, *mut usize) -> c_int) -> Result<String> {
    let mut text: Vec<u8> = Vec::new();
    loop {
        let mut size = 0;
        check(call(text.as_mut_ptr().cast(), text.len(), &mut size))?;
        if size <= text.len() {
            return Ok(String::from_utf8_lossy(&text[..size]).into_owned());
        }
        text.resize(size, 0);
    }
}

/// How text is sampled; the defaults are those of `lowbit run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generate {
    /// Fewer come when the text ends or the context is full.
    pub max_tokens: i64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 0: all tokens.
    pub top_k: i64,
    /// 1: all tokens.
    pub top_p: f32,
    /// 0: all tokens.
    pub min_p: f32,
    /// Over 1: repeat less.
    pub repeat_penalty: f32,
    /// The same seed gives the same text.
    pub seed: u64,
    /// Goes on after the end of the text.
    pub ignore_eos: bool,
}

impl Default for Generate {
    fn default() -> Self {
        Generate {
            max_tokens: 128, temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repeat_penalty: 1.0, seed: 0, ignore_eos: false,
        }
    }
}

/// What `listen` calls, and a panic of it, which must not unwind through C.
struct Listener<'a> {
    on_text: &'a mut dyn FnMut(&str) -> bool,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

extern "C" fn listen(user: *mut c_void, text: *const c_char, size: usize) -> i32 {
    // `user` is the Listener that Model::generate lends for the time of the call.
    let (listener, text) = unsafe { (&mut *user.cast::<Listener>(), std::slice::from_raw_parts(text.cast::<u8>(), size)) };
    let text = String::from_utf8_lossy(text);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (listener.on_text)(&text))) {
        Ok(go_on) => i32::from(!go_on),
        Err(panic) => {
            listener.panic = Some(panic);
            1
        }
    }
}

/// A language model and one sequence of tokens.
///
/// ```no_run
/// let mut model = lowbit::Model::open("smol-int4", 0)?;
/// let prompt = model.tokenize("The three largest cities are", true, false)?;
/// model.generate(&prompt, &lowbit::Generate::default(), |text| { print!("{text}"); true })?;
/// # Ok::<(), lowbit::Error>(())
/// ```
pub struct Model {
    handle: *mut sys::Model,
}

// One thread at a time is the library's only condition.
unsafe impl Send for Model {}

impl Model {
    /// `path`: a checkpoint directory, a Hugging Face directory, a GGUF file, or "default". `context` 0: the model's own.
    pub fn open(path: &str, context: i64) -> Result<Self> {
        let path = CString::new(path).map_err(|_| invalid("a path with a zero byte"))?;
        let options = sys::ModelOptions {
            struct_size: std::mem::size_of::<sys::ModelOptions>(),
            activation: std::ptr::null(),
            device: std::ptr::null(),
            context,
            threads: 0,
        };
        let mut handle = std::ptr::null_mut();
        check(unsafe { sys::lb_model_open(path.as_ptr(), &options, &mut handle) })?;
        Ok(Model { handle })
    }

    /// How many logits there are.
    pub fn vocab_size(&self) -> usize {
        unsafe { sys::lb_model_vocab_size(self.handle) as usize }
    }

    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        unsafe { sys::lb_model_length(self.handle) as usize }
    }

    /// No tokens in the sequence, as after `truncate(0)`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends tokens; the logits after the last one.
    pub fn append(&mut self, tokens: &[i32]) -> Result<&[f32]> {
        check(unsafe { sys::lb_model_prefill(self.handle, tokens.as_ptr(), tokens.len()) })?;
        let (mut logits, mut count) = (std::ptr::null(), 0);
        check(unsafe { sys::lb_model_logits(self.handle, &mut logits, &mut count) })?;
        // Valid until the next call with this model, which needs it mutably.
        Ok(unsafe { std::slice::from_raw_parts(logits, count) })
    }

    /// Text to token ids. `add_special`: begin (and end) as the model wants it, for a whole prompt. `parse_special`: text such as
    /// "<|im_end|>" becomes the token; false for text from users.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<i32>> {
        let mut tokens = vec![0; text.len() + 8];
        loop {
            let mut count = 0;
            check(unsafe {
                sys::lb_model_tokenize(
                    self.handle, text.as_ptr().cast(), text.len(), add_special.into(), parse_special.into(), tokens.as_mut_ptr(),
                    tokens.len(), &mut count,
                )
            })?;
            let enough = count <= tokens.len();
            tokens.resize(count, 0);
            if enough {
                return Ok(tokens);
            }
        }
    }

    /// Token ids to text, without special tokens; bytes that are no UTF-8 become U+FFFD.
    pub fn detokenize(&self, tokens: &[i32]) -> Result<String> {
        text_of(|text, capacity, size| unsafe {
            sys::lb_model_detokenize(self.handle, tokens.as_ptr(), tokens.len(), text, capacity, size)
        })
    }

    /// A conversation as the model's own template writes it; tokenize it without special tokens added and with those in it parsed.
    /// `variables`: JSON, `{"messages": [{"role": "user", "content": "Hi"}]}` and what else the template may look at.
    pub fn chat_text(&self, variables: &str) -> Result<String> {
        text_of(|text, capacity, size| unsafe {
            sys::lb_model_chat_text(self.handle, variables.as_ptr().cast(), variables.len(), text, capacity, size)
        })
    }

    /// Appends the prompt and samples what follows it. `on_text` gets the text as it comes and returns whether to go on.
    pub fn generate(&mut self, prompt: &[i32], how: &Generate, mut on_text: impl FnMut(&str) -> bool) -> Result<()> {
        let mut listener = Listener { on_text: &mut on_text, panic: None };
        let options = sys::GenerateOptions {
            struct_size: std::mem::size_of::<sys::GenerateOptions>(),
            max_tokens: how.max_tokens,
            temperature: how.temperature,
            top_p: how.top_p,
            min_p: how.min_p,
            repeat_penalty: how.repeat_penalty,
            top_k: how.top_k,
            seed: how.seed,
            ignore_eos: how.ignore_eos.into(),
            on_text: Some(listen),
            user: (&mut listener as *mut Listener).cast(),
        };
        let status = unsafe {
            sys::lb_model_generate(
                self.handle, prompt.as_ptr(), prompt.len(), &options, std::ptr::null_mut(), 0, std::ptr::null_mut(),
            )
        };
        match listener.panic {
            Some(panic) => std::panic::resume_unwind(panic),
            None => check(status),
        }
    }

    /// Forgets all but the first `length` tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        check(unsafe { sys::lb_model_truncate(self.handle, length as i64) })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { sys::lb_model_close(self.handle) }
    }
}
