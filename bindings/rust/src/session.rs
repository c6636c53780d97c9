//! Sequences of a model, and how they are sampled.

use std::ffi::{c_char, c_int, c_void, CString};
use std::time::Duration;

use crate::{check, invalid, sys, Result};

/// How text is sampled; the defaults are those of `lowbit run`.
#[derive(Clone, Debug, PartialEq)]
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
    /// From the logits of recent tokens, for each time that they are there.
    pub frequency_penalty: f32,
    /// From the logits of recent tokens, once.
    pub presence_penalty: f32,
    /// How many tokens are recent, those of the prompt too.
    pub repeat_window: i64,
    /// Added to the logits of these tokens; minus infinity: never that one.
    pub logit_bias: Vec<(i32, f32)>,
    /// The tokens that may be chosen. None: all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// The first of these texts that is complete ends the generation, whatever tokens spell it, and is not heard.
    pub stop: Vec<String>,
    /// Equal seeds give equal texts.
    pub seed: u64,
    /// Goes on after the end of the text.
    pub ignore_eos: bool,
}

impl Default for Generate {
    fn default() -> Self {
        Generate {
            max_tokens: 128, temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repeat_penalty: 1.0, frequency_penalty: 0.0,
            presence_penalty: 0.0, repeat_window: 64, logit_bias: Vec::new(), allowed_tokens: None, stop: Vec::new(), seed: 0,
            ignore_eos: false,
        }
    }
}

/// How likely the model held a token for, and others in its place: natural logarithms, before bias, penalties and
/// temperature.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// The one that was chosen.
    pub token: i32,
    /// Of it.
    pub logprob: f32,
    /// The likeliest tokens, the likeliest first.
    pub top: Vec<(i32, f32)>,
}

/// How many of the likeliest tokens to name, and who hears of them.
pub(crate) type Logprobs<'a> = (usize, &'a mut dyn FnMut(&TokenLogprobs));

/// The closure that C's callbacks call, and its panic, which must not unwind through C.
struct Listener<'a, 'b> {
    on_text: &'a mut dyn FnMut(&str) -> bool,
    logprobs: Option<Logprobs<'b>>,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

extern "C" fn listen(user: *mut c_void, text: *const c_char, size: usize) -> i32 {
    // `user` is the Listener that generate() lends for the time of the call.
    let (listener, text) = unsafe { (&mut *user.cast::<Listener>(), std::slice::from_raw_parts(text.cast::<u8>(), size)) };
    let text = String::from_utf8_lossy(text);
    if listener.panic.is_some() {
        return 1;
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (listener.on_text)(&text))) {
        Ok(go_on) => i32::from(!go_on),
        Err(panic) => {
            listener.panic = Some(panic);
            1
        }
    }
}

extern "C" fn listen_logprobs(user: *mut c_void, heard: *const sys::TokenLogprobs) {
    // As in listen(); arrays of `heard` are valid for the time of the call.
    let (listener, heard) = unsafe { (&mut *user.cast::<Listener>(), &*heard) };
    let (Some((_, on_logprobs)), None) = (&mut listener.logprobs, &listener.panic) else { return };
    let top = (0..heard.top_count).map(|i| unsafe { (*heard.top_tokens.add(i), *heard.top_logprobs.add(i)) }).collect();
    let token = TokenLogprobs { token: heard.token, logprob: heard.logprob, top };
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_logprobs(&token))) {
        listener.panic = Some(panic); // the token's listen() ends the generation
    }
}

/// Bit i % 32 of word i / 32 for each id.
fn mask_of(ids: &[u32]) -> Vec<u32> {
    let mut mask = vec![0; ids.iter().max().map_or(0, |id| *id as usize / 32) + 1];
    for id in ids {
        mask[*id as usize / 32] |= 1 << (id % 32);
    }
    mask
}

/// One call that generates; a panic of a callback goes on here.
pub(crate) fn generate(
    how: &Generate, mut on_text: impl FnMut(&str) -> bool, logprobs: Option<Logprobs>,
    call: impl FnOnce(*const sys::GenerateOptions) -> c_int,
) -> Result<()> {
    let (bias_tokens, bias_values): (Vec<i32>, Vec<f32>) = how.logit_bias.iter().copied().unzip();
    let mask = how.allowed_tokens.as_deref().map(mask_of).unwrap_or_default();
    let stops = how.stop.iter().map(|text| CString::new(text.as_str())).collect::<std::result::Result<Vec<_>, _>>();
    let stops = stops.map_err(|_| invalid("a stop text with a zero character"))?;
    let stop_texts: Vec<*const c_char> = stops.iter().map(|text| text.as_ptr()).collect();
    let mut listener = Listener { on_text: &mut on_text, logprobs, panic: None };
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
        frequency_penalty: how.frequency_penalty,
        presence_penalty: how.presence_penalty,
        repeat_window: how.repeat_window,
        bias_tokens: bias_tokens.as_ptr(),
        bias_values: bias_values.as_ptr(),
        bias_count: bias_tokens.len(),
        token_mask: mask.as_ptr(),
        token_mask_words: mask.len(),
        stop_texts: stop_texts.as_ptr(),
        stop_count: stop_texts.len(),
        top_logprobs: listener.logprobs.as_ref().map_or(0, |(count, _)| *count as i64),
        on_logprobs: listener.logprobs.as_ref().map(|_| listen_logprobs as extern "C" fn(_, _)),
        user: (&mut listener as *mut Listener).cast(),
    };
    let status = call(&options);
    match listener.panic {
        Some(panic) => std::panic::resume_unwind(panic),
        None => check(status),
    }
}

/// The array that `call` finds.
///
/// # Safety
/// It stays valid for as long as the caller says.
pub(crate) unsafe fn logits<'a>(call: impl FnOnce(*mut *const f32, *mut usize) -> c_int) -> Result<&'a [f32]> {
    let (mut found, mut count) = (std::ptr::null(), 0);
    check(call(&mut found, &mut count))?;
    Ok(std::slice::from_raw_parts(found, count))
}

/// One sequence of tokens of a model. Cheap, and its own owner: it outlives the [`Model`](crate::Model) if need be.
///
/// Sessions of one model may run in different threads at once: what they ask for meanwhile is computed together, each
/// with the bits that it would have alone, and the weights are read once for all.
///
/// ```no_run
/// let model = lowbit::Model::open("smol-int4", 0)?;
/// let mut prefix = model.session()?;
/// prefix.append(&model.tokenize("The three largest cities", true, false)?)?;
/// let are = model.tokenize(" are", false, false)?;
/// std::thread::scope(|threads| {
///     for seed in 0..8 {
///         let (mut session, are) = (prefix.fork().unwrap(), &are);
///         threads.spawn(move || {
///             let mut text = String::new();
///             let options = lowbit::Generate { seed, ..Default::default() };
///             session.generate(are, &options, |piece| { text += piece; true }).unwrap();
///             println!("{seed}: {text}");
///         });
///     }
/// });
/// # Ok::<(), lowbit::Error>(())
/// ```
///
/// It may be sent to another thread, but not used by two:
///
/// ```compile_fail
/// fn share<T: Sync>() {}
/// share::<lowbit::Session>();
/// ```
pub struct Session {
    handle: *mut sys::Session,
}

// One thread at a time is the library's only condition; the pointer keeps it from being Sync.
unsafe impl Send for Session {}

impl Session {
    pub(crate) fn from_handle(handle: *mut sys::Session) -> Self {
        Session { handle }
    }

    /// A second session with this sequence and its logits. Memory is shared until one of the two goes on otherwise.
    pub fn fork(&self) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        check(unsafe { sys::lb_session_fork(self.handle, &mut handle) })?;
        Ok(Session { handle })
    }

    /// How long calls with this session, and with forks made of it later, wait for memory that other sessions hold
    /// before they are an error. Not at all, as it begins. See
    /// [`ModelOptions::kv_positions`](crate::ModelOptions::kv_positions).
    pub fn wait_for_pages(&mut self, most: Duration) -> Result<()> {
        let milliseconds = i64::try_from(most.as_millis()).unwrap_or(i64::MAX);
        check(unsafe { sys::lb_session_wait_for_pages(self.handle, milliseconds) })
    }

    /// Writes the sequence to a file: tokens, logits, keys and values, and of which model they are. It appears whole or
    /// not at all.
    pub fn save(&self, path: &str) -> Result<()> {
        let path = CString::new(path).map_err(|_| invalid("a path with a zero byte"))?;
        check(unsafe { sys::lb_session_save(self.handle, path.as_ptr()) })
    }

    /// In place of this sequence the one that was saved: it goes on with the bits of one that never was. A file of
    /// another model, activation or KV format is an error that leaves this sequence as it was.
    pub fn load(&mut self, path: &str) -> Result<()> {
        let path = CString::new(path).map_err(|_| invalid("a path with a zero byte"))?;
        check(unsafe { sys::lb_session_load(self.handle, path.as_ptr()) })
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> Vec<i32> {
        let (mut tokens, mut count) = (vec![0; self.len()], 0);
        // It fits: nobody else has this session.
        let status = unsafe { sys::lb_session_tokens(self.handle, tokens.as_mut_ptr(), tokens.len(), &mut count) };
        debug_assert_eq!((status, count), (0, tokens.len()));
        tokens
    }

    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        unsafe { sys::lb_session_length(self.handle) as usize }
    }

    /// No tokens in the sequence, as at first and after `truncate(0)`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends tokens; the logits after the last one.
    pub fn append(&mut self, tokens: &[i32]) -> Result<&[f32]> {
        check(unsafe { sys::lb_session_prefill(self.handle, tokens.as_ptr(), tokens.len()) })?;
        // Valid until the next call that changes this session, which needs it mutably.
        unsafe { logits(|found, count| sys::lb_session_logits(self.handle, found, count)) }
    }

    /// `append` for several sessions of one model in one call, which read the weights together; each has the logits
    /// that it would have alone. After an error all are as they were, but have no logits.
    pub fn append_together(parts: &mut [(&mut Session, &[i32])]) -> Result<()> {
        let handles: Vec<_> = parts.iter().map(|(session, _)| session.handle).collect();
        let tokens: Vec<_> = parts.iter().map(|(_, tokens)| tokens.as_ptr()).collect();
        let counts: Vec<_> = parts.iter().map(|(_, tokens)| tokens.len()).collect();
        check(unsafe { sys::lb_session_prefill_together(handles.as_ptr(), tokens.as_ptr(), counts.as_ptr(), parts.len()) })
    }

    /// The logits of the last `append`, also of the session that this one was forked from. None before it, and after
    /// `truncate` and `generate`.
    pub fn logits(&self) -> Option<&[f32]> {
        unsafe { logits(|found, count| sys::lb_session_logits(self.handle, found, count)) }.ok()
    }

    /// Appends the prompt and samples what follows it. `on_text` gets the text as it comes and returns whether to go
    /// on. After an error the sequence keeps what was appended.
    pub fn generate(&mut self, prompt: &[i32], how: &Generate, on_text: impl FnMut(&str) -> bool) -> Result<()> {
        self.generate_logprobs(prompt, how, on_text, None)
    }

    /// `generate`; before each text `on_logprobs` hears how likely its token was, and the `top` likeliest.
    pub fn generate_with_logprobs(
        &mut self, prompt: &[i32], how: &Generate, top: usize, mut on_logprobs: impl FnMut(&TokenLogprobs),
        on_text: impl FnMut(&str) -> bool,
    ) -> Result<()> {
        self.generate_logprobs(prompt, how, on_text, Some((top, &mut on_logprobs)))
    }

    fn generate_logprobs(
        &mut self, prompt: &[i32], how: &Generate, on_text: impl FnMut(&str) -> bool, logprobs: Option<Logprobs>,
    ) -> Result<()> {
        generate(how, on_text, logprobs, |options| unsafe {
            sys::lb_session_generate(
                self.handle, prompt.as_ptr(), prompt.len(), options, std::ptr::null_mut(), 0, std::ptr::null_mut(),
            )
        })
    }

    /// Forgets all but the first `length` tokens.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        check(unsafe { sys::lb_session_truncate(self.handle, length as i64) })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        unsafe { sys::lb_session_close(self.handle) }
    }
}
