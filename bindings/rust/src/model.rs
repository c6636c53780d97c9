//! A language model.

use std::ffi::{c_char, c_int, CString};

use crate::session::{generate, logits};
use crate::{check, invalid, sys, Generate, Result, Session};

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

/// How a model is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions<'a> {
    /// Positions of a sequence; 0: the model's own, at most 4096.
    pub context: i64,
    /// 0: the physical cores.
    pub threads: i32,
    /// Positions that all sequences of the model have together, in pages of 64; forks share theirs. 0: as many as there
    /// is memory for.
    pub kv_positions: i64,
    /// How keys and values are kept: "f16" or nothing, or quantized as "fp8", "int8", "int4", "int3", "int2" or "kXvY"
    /// with X and Y of 2, 3, 4 and 8.
    pub kv: &'a str,
    /// The newest positions, which stay f16 beside quantized ones, in whole pages of 64; None: 128.
    pub kv_residual: Option<u32>,
    /// Layers that stay f16: "first", "last" and numbers from 0 on, with commas between them.
    pub kv_keep: &'a str,
    /// Each so many positions are computed once more, in whole pages of 64, two or more above `kv_residual`; 0: never.
    pub kv_refresh: i64,
    /// "LENGTH:FORMAT": what lies LENGTH positions or more behind is kept with fewer bits, as "4096:int2".
    pub kv_demote: &'a str,
    /// A GPU's attention has the CPU's bits, and takes longer.
    pub exact: bool,
}

/// A language model and one sequence of tokens. More of them, for other threads too, are its [`Session`]s.
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
    /// `path`: a checkpoint directory, a Hugging Face directory, a GGUF file, or "default". `context` 0: the model's
    /// own.
    pub fn open(path: &str, context: i64) -> Result<Self> {
        Model::open_with(path, &ModelOptions { context, ..ModelOptions::default() })
    }

    /// Opens a model with all options.
    pub fn open_with(path: &str, options: &ModelOptions) -> Result<Self> {
        let path = CString::new(path).map_err(|_| invalid("a path with a zero byte"))?;
        let kv = CString::new(options.kv).map_err(|_| invalid("a kv format with a zero byte"))?;
        let kv_keep = CString::new(options.kv_keep).map_err(|_| invalid("layers with a zero byte"))?;
        let kv_demote = CString::new(options.kv_demote).map_err(|_| invalid("a kv format with a zero byte"))?;
        let options = sys::ModelOptions {
            struct_size: std::mem::size_of::<sys::ModelOptions>(),
            activation: std::ptr::null(),
            device: std::ptr::null(),
            context: options.context,
            threads: options.threads,
            kv_positions: options.kv_positions,
            kv: kv.as_ptr(),
            kv_residual: match options.kv_residual {
                None => 0,
                Some(0) => -1,
                Some(positions) => positions.into(),
            },
            kv_keep: kv_keep.as_ptr(),
            kv_refresh: options.kv_refresh,
            kv_demote: kv_demote.as_ptr(),
            exact: options.exact.into(),
        };
        let mut handle = std::ptr::null_mut();
        check(unsafe { sys::lb_model_open(path.as_ptr(), &options, &mut handle) })?;
        Ok(Model { handle })
    }

    /// An empty sequence of its own, which lives as long as it likes.
    pub fn session(&self) -> Result<Session> {
        let mut handle = std::ptr::null_mut();
        check(unsafe { sys::lb_session_open(self.handle, &mut handle) })?;
        Ok(Session::from_handle(handle))
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
        // Valid until the next call with this model, which needs it mutably.
        unsafe { logits(|found, count| sys::lb_model_logits(self.handle, found, count)) }
    }

    /// Text to token ids. `add_special`: begin (and end) as the model wants it, for a whole prompt. `parse_special`:
    /// text such as "<|im_end|>" becomes the token; false for text from users.
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

    /// A conversation as the model's own template writes it; tokenize it without special tokens added and with those in
    /// it parsed. `variables`: JSON, `{"messages": [{"role": "user", "content": "Hi"}]}` and what else the template may
    /// look at.
    pub fn chat_text(&self, variables: &str) -> Result<String> {
        text_of(|text, capacity, size| unsafe {
            sys::lb_model_chat_text(self.handle, variables.as_ptr().cast(), variables.len(), text, capacity, size)
        })
    }

    /// Appends the prompt and samples what follows it. `on_text` gets the text as it comes and returns whether to go
    /// on. [`Session::generate_with_logprobs`] also tells how likely each token was.
    pub fn generate(&mut self, prompt: &[i32], how: &Generate, on_text: impl FnMut(&str) -> bool) -> Result<()> {
        generate(how, on_text, None, |options| unsafe {
            sys::lb_model_generate(
                self.handle, prompt.as_ptr(), prompt.len(), options, std::ptr::null_mut(), 0, std::ptr::null_mut(),
            )
        })
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
