"""Language models run by liblowbit.so, through its C ABI (include/lowbit/lowbit.h): text in, text out, or logits as
NumPy arrays."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, NoReturn

import numpy as np

from .errors import LowbitError
from .generate_options import ON_LOGPROBS, ON_TEXT, GenerateOptions, TokenLogprobs, c_text, set_sampling_arrays, token_ids, whole_number
from .library import Count, ModelOptions, RuntimeFailure, Tokens, fail, library
from .signals import DeferredSignals

__all__ = ["Model", "RuntimeFailure", "Session", "append_together", "library"]


_sequences: weakref.WeakSet[_Sequence] = weakref.WeakSet()
_ending = False  # the interpreter: generations stop at their next token


@atexit.register
def _stop_generations(patience_s: float = 10) -> None:
    """A daemon thread must not be inside the library when the process tears it down."""
    global _ending
    _ending = True
    until = time.monotonic() + patience_s
    while any(sequence._busy_elsewhere() for sequence in list(_sequences)) and time.monotonic() < until:
        time.sleep(0.002)


def _drop_broken_models() -> None:
    """In a child of fork(): what another thread was in the middle of stays unfinished, and all sequences of a model
    depend on that."""
    sequences = list(_sequences)
    broken = {id(sequence._opened) for sequence in sequences if sequence._opened and sequence._busy_elsewhere()}
    for sequence in sequences:
        if sequence._opened and id(sequence._opened) in broken:
            sequence._opened.handle = c_void_p()  # nobody closes it
            sequence._handle, sequence._opened = c_void_p(), None
            sequence._why_none = "a call in a child of a fork that came while another thread was in a call"
            sequence._free[:] = [None]


os.register_at_fork(after_in_child=_drop_broken_models)


class _Opened:
    """An lb_model, for as long as its Model, a Session of it or a call needs it."""

    def __init__(self, path: bytes, options: ModelOptions) -> None:
        self.handle = c_void_p()
        self.inside: list[int] = []  # threads that are in a call which several may make at once
        if status := library().lb_model_open(path, byref(options), byref(self.handle)):
            fail(status)

    def __del__(self) -> None:
        if self.handle:
            library().lb_model_close(self.handle)

    def call(self, name: str, *arguments: object) -> None:
        """One that several threads may make at once."""
        thread = threading.get_ident()
        try:
            self.inside.append(thread)
            status = getattr(library(), name)(self.handle, *arguments)
            if status:
                fail(status)
        finally:
            with contextlib.suppress(ValueError):  # a signal came before the first line
                self.inside.remove(thread)


class _Sequence:
    """Shared by Model and Session: one sequence of tokens, and one call at a time with it."""

    _what, _prefix, _instead = "", "", ""  # for errors; of C's functions; what to do instead of two calls at once
    _opened: _Opened | None = None

    def __init__(self) -> None:
        self._handle, self._length, self._why_none = c_void_p(), 0, "a call after close()"
        # One element while no call runs: taking it out is one step, between whose halves no signal's handler and no
        # thread gets in.
        self._free: list[None] = [None]
        self._owner = 0
        _sequences.add(self)

    def close(self) -> None:
        """Gives the memory back; of no use afterwards. Happens by itself when the object dies."""
        with self._alone():
            if self._handle:
                handle, self._handle, self._length = self._handle, c_void_p(), 0
                self._release(handle)
                self._opened = None

    def _release(self, handle: c_void_p) -> None:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # also what the copy module asks
        raise LowbitError(self._what, "a copy or a pickle", f"an open {self._what} where it is", self._instead)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            del self._free[0]
        except IndexError:
            raise LowbitError(self._what, "a call while another one runs", "one call at a time", self._instead) from None
        try:
            self._owner = threading.get_ident()
            yield
        finally:
            self._owner = 0
            self._free.append(None)

    def _busy_elsewhere(self) -> bool:
        thread, opened = threading.get_ident(), self._opened
        return (not self._free and self._owner != thread) or (opened is not None and any(i != thread for i in list(opened.inside)))

    def _in_use(self) -> _Opened:
        if _ending and threading.current_thread() is not threading.main_thread():
            raise SystemExit  # ends this thread, and says nothing
        if (opened := self._opened) is None:
            raise LowbitError(self._what, self._why_none, f"an open {self._what}")
        return opened

    def _run(self, name: str, *arguments: object) -> None:
        """Inside _alone()."""
        self._in_use()
        status = getattr(library(), self._prefix + name)(self._handle, *arguments)
        self._length = self._length_now()
        if status:
            fail(status)

    def _length_now(self) -> int:
        return getattr(library(), self._prefix + "length")(self._handle)

    def _call(self, name: str, *arguments: object) -> None:
        with self._alone():
            self._run(name, *arguments)

    @property
    def length(self) -> int:
        """Tokens in the sequence; while a call runs, those there were before it or at the text last heard."""
        return self._length

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        opened, raw, count = self._in_use(), text.encode(), c_size_t()
        room = (c_int32 * (len(raw) + 8))()  # no tokenizer makes more tokens than bytes, but for bos and eos
        opened.call("lb_model_tokenize", raw, len(raw), add_special, parse_special, room, len(room), byref(count))
        if count.value > len(room):
            room = (c_int32 * count.value)()
            opened.call("lb_model_tokenize", raw, len(raw), add_special, parse_special, room, len(room), byref(count))
        return room[:count.value]

    def append(self, tokens: Iterable[int]) -> np.ndarray:
        """Appends tokens to the sequence; f32 [vocab_size], the logits after the last one."""
        ids = token_ids(tokens)
        with self._alone():  # the copy too: the next call writes over the logits
            self._run("prefill", ids, len(ids))
            return self._last_logits()

    def _last_logits(self) -> np.ndarray:
        """A copy, inside _alone()."""
        logits, count = POINTER(c_float)(), c_size_t()
        self._run("logits", byref(logits), byref(count))
        return np.ctypeslib.as_array(logits, (count.value,)).copy()

    def truncate(self, length: int = 0) -> None:
        """Forgets all but the first `length` tokens."""
        self._call("truncate", whole_number("length", length, 64))

    def _generate(self, prompt: str | Iterable[int], keep: bool, on_text: Callable[[str], object] | None, max_tokens: int,
                  temperature: float, top_k: int, top_p: float, min_p: float, repeat_penalty: float, seed: int, ignore_eos: bool, *,
                  frequency_penalty: float = 0, presence_penalty: float = 0, repeat_window: int = 64,
                  logit_bias: Mapping[int, float] | None = None, allowed_tokens: Iterable[int] | None = None,
                  stop: str | Sequence[str] = (), top_logprobs: int = 0,
                  on_logprobs: Callable[[TokenLogprobs], object] | None = None) -> str:
        ids = token_ids(self._tokenize(prompt, not (keep and self.length), False) if isinstance(prompt, str) else prompt)
        pieces: list[str] = []
        raised: list[BaseException] = []

        signals = DeferredSignals(raised)

        def listen(_: object, text: ctypes._Pointer, size: int) -> int:
            try:
                signals.listening = True
                self._length = self._length_now()
                if size:
                    pieces.append(ctypes.string_at(text, size).decode(errors="replace"))
                    if on_text:
                        on_text(pieces[-1])
                signals.listening = False
            except BaseException as error:  # must not pass through C; raised again below
                signals.listening = False
                raised.append(error)
            return bool(raised) or _ending

        def listen_logprobs(_: object, heard: ctypes._Pointer) -> None:
            try:
                signals.listening = True
                one = heard.contents
                top = [(one.top_tokens[i], one.top_logprobs[i]) for i in range(one.top_count)]
                if on_logprobs and not raised:
                    on_logprobs(TokenLogprobs(one.token, one.logprob, top))
                signals.listening = False
            except BaseException as error:  # as above; the token's listen() ends the generation
                signals.listening = False
                raised.append(error)

        options = GenerateOptions(ctypes.sizeof(GenerateOptions), whole_number("max_tokens", max_tokens, 64), temperature, top_p, min_p,
                                   repeat_penalty, whole_number("top_k", top_k, 64), whole_number("seed", seed, 64, signed=False), ignore_eos,
                                   ON_TEXT(listen), None, frequency_penalty, presence_penalty, whole_number("repeat_window", repeat_window, 64))
        set_sampling_arrays(options, logit_bias, allowed_tokens, stop)
        if on_logprobs:
            options.top_logprobs, options.on_logprobs = whole_number("top_logprobs", top_logprobs, 64), ON_LOGPROBS(listen_logprobs)
        if not keep:
            self.truncate()
        with signals:
            try:
                self._call("generate", ids, len(ids), byref(options), None, 0, None)
            except LowbitError:
                if not raised:
                    raise
        if raised:
            raise raised[0]
        if _ending and threading.current_thread() is not threading.main_thread():
            raise SystemExit
        return "".join(pieces)


class Model(_Sequence):
    """A model and one sequence of tokens; session() makes more of them.

    path: a checkpoint, a Hugging Face directory, a GGUF file, or "default". activation: as `lowbit run --act`. context:
    positions of a sequence, 0 for the model's own (at most 4096). threads: 0 for the physical cores. kv_positions:
    positions that all sequences have together, 0 for as many as there is memory for. kv: how keys and values are kept,
    "f16" or quantized as `lowbit run --kv`; the newest kv_residual positions stay f16, and all of the layers kv_keep:
    "first", "last" and numbers, with commas between them. kv_refresh: each so many positions are computed once more, 0
    for never. kv_demote: "4096:int2", what lies so far behind is kept with fewer bits. exact: a GPU's attention and
    16-bit activations have the CPU's bits. Results do not depend on threads. Its own sequence is not for two
    threads at once: a call while another one runs is an error. tokenize(), detokenize(), chat_text() and session()
    may be called in any thread at any time. It cannot be copied or pickled. A child of os.fork() has a copy of it
    and of its sessions, unless another thread was in a call with one of them just then. Errors: LowbitError.
    """

    _what, _prefix, _instead = "model", "lb_model_", "open the model twice, or take a session() for each sequence"

    def __init__(self, path: str | os.PathLike[str] = "default", *, activation: str = "auto", device: str = "auto", context: int = 0,
                 threads: int = 0, kv_positions: int = 0, kv: str = "f16", kv_residual: int = 128,
                 kv_keep: str = "", kv_refresh: int = 0, kv_demote: str = "", exact: bool = False) -> None:
        super().__init__()
        self._vocab_size = 0
        raw = os.fsencode(path)
        if b"\0" in raw:  # C would take what is before it
            raise ValueError("embedded null byte")
        options = ModelOptions(ctypes.sizeof(ModelOptions), c_text("activation", activation), c_text("device", device), whole_number("context", context, 64),
                                whole_number("threads", threads, 32), whole_number("kv_positions", kv_positions, 64), c_text("kv", kv),
                                whole_number("kv_residual", kv_residual, 63, signed=False) or -1,
                                c_text("kv_keep", kv_keep), whole_number("kv_refresh", kv_refresh, 64), c_text("kv_demote", kv_demote), exact)
        self._opened = _Opened(raw, options)
        self._handle = self._opened.handle
        self._vocab_size = library().lb_model_vocab_size(self._handle)

    def _release(self, handle: c_void_p) -> None:
        self._vocab_size = 0
        library().lb_model_truncate(handle, 0)  # where sessions keep the rest

    def __enter__(self) -> Model:
        return self

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def session(self) -> Session:
        """An empty sequence of its own."""
        opened = self._in_use()
        session = Session(opened)
        opened.call("lb_session_open", byref(session._handle))
        return session

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """add_special: begin and end as the model wants it. parse_special: "<|im_end|>" becomes the token; not for text
        from users."""
        return self._tokenize(text, add_special, parse_special)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Without special tokens; bytes that are no UTF-8 become U+FFFD."""
        ids = token_ids(tokens)
        return self._text("lb_model_detokenize", ids, len(ids))

    def chat_text(self, messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        """A conversation as the model's own template writes it: [{"role": "user", "content": "Hi"}]. Other variables go
        to the template, such as add_generation_prompt (true unless given) or tools. Tokenize it with add_special=False,
        parse_special=True."""
        raw = json.dumps({"messages": list(messages), **variables}).encode()
        return self._text("lb_model_chat_text", raw, len(raw))

    def _text(self, name: str, *arguments: object) -> str:
        """The text of a call that says how long it is."""
        opened, size = self._in_use(), c_size_t()
        opened.call(name, *arguments, None, 0, byref(size))
        text = ctypes.create_string_buffer(size.value + 1)
        opened.call(name, *arguments, text, size.value, byref(size))
        return text.raw[:size.value].decode(errors="replace")

    def generate(self, prompt: str | Iterable[int], *, max_tokens: int = 128, temperature: float = 0.8, top_k: int = 40,
                 top_p: float = 0.95, min_p: float = 0.05, repeat_penalty: float = 1, seed: int = 0, ignore_eos: bool = False,
                 keep: bool = False, on_text: Callable[[str], object] | None = None, **more: Any) -> str:
        """The text that the model writes after `prompt` (a text, or token ids); equal seeds give equal texts.

        More options: `stop`, a text or several, the first of which ends the generation and is not returned;
        `frequency_penalty`, `presence_penalty` and `repeat_window` (64); `logit_bias`, by token id, -inf for never;
        `allowed_tokens`, ids; `on_logprobs`, called with a TokenLogprobs for each token, of it and of the
        `top_logprobs` likeliest. A new sequence begins, unless `keep` says to go on from the one there is. on_text gets
        the text as it comes. What a signal's handler raises (Ctrl-C) and what on_text raises ends the generation at
        that token and reaches the caller. At the end of the interpreter it ends by itself.
        """
        return self._generate(prompt, keep, on_text, max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, seed, ignore_eos, **more)

    def chat(self, messages: Sequence[Mapping[str, object]], **options: Any) -> str:
        """The model's answer to a conversation, [{"role": "user", "content": "Hi"}]; options as for generate()."""
        return self.generate(self.tokenize(self.chat_text(messages), add_special=False, parse_special=True), **options)


class Session(_Sequence):
    """One sequence of tokens of a model, made by Model.session() or fork().

    Not for two threads at once, but sessions of one model may run in different threads: what they ask for meanwhile is
    computed together, each with the bits that it would have alone. It needs no open Model: close() of that leaves it as
    it is. Else as Model.
    """

    _what, _prefix, _instead = "session", "lb_session_", "use a fork() for each thread"

    def __init__(self, opened: _Opened) -> None:
        super().__init__()
        self._opened = opened

    def _release(self, handle: c_void_p) -> None:
        library().lb_session_close(handle)

    def __enter__(self) -> Session:
        return self

    def fork(self) -> Session:
        """A second session with this sequence. Memory is shared until one of the two goes on otherwise."""
        with self._alone():
            other = Session(self._in_use())
            self._run("fork", byref(other._handle))
            other._length = self._length
            return other

    def wait_for_pages(self, seconds: float) -> None:
        """How long calls with this session, and with forks made of it later, wait for memory that other sessions hold
        (kv_positions) before they are an error. Not at all, as it begins. Ctrl-C is heard after the wait."""
        if not 0 <= seconds:
            raise LowbitError("seconds", str(seconds), "0 or more")
        self._call("wait_for_pages", int(min(seconds * 1000, 2**62)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the sequence to a file: tokens, logits, keys and values, and of which model they are. It appears whole
        or not at all."""
        self._call("save", c_text("path", os.fsencode(path)))

    def load(self, path: str | os.PathLike[str]) -> None:
        """In place of this sequence the one that was saved, with the same bits. A file of another model or KV format is
        an error."""
        self._call("load", c_text("path", os.fsencode(path)))

    @property
    def tokens(self) -> list[int]:
        """The tokens of the sequence."""
        count = c_size_t()
        with self._alone():
            room = (c_int32 * max(self._length, 1))()
            self._run("tokens", room, self._length, byref(count))
            return room[:count.value]

    def generate(self, prompt: str | Iterable[int], *, max_tokens: int = 128, temperature: float = 0.8, top_k: int = 40,
                 top_p: float = 0.95, min_p: float = 0.05, repeat_penalty: float = 1, seed: int = 0, ignore_eos: bool = False,
                 on_text: Callable[[str], object] | None = None, **more: Any) -> str:
        """Appends `prompt` (a text, or token ids) to the sequence, and what the model writes after it, which it
        returns. The last token may not be in the sequence. Else as Model.generate()."""
        return self._generate(prompt, True, on_text, max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, seed, ignore_eos, **more)


def append_together(parts: Iterable[tuple[Session, Iterable[int]]]) -> np.ndarray:
    """Session.append() of several sessions of one model in one call: they read the weights together. f32 [sessions,
    vocab_size], each row the logits that its session would have alone. After an error all sequences are as they
    were."""
    sessions, ids = [], []
    for session, tokens in parts:
        sessions.append(session)
        ids.append(token_ids(tokens))
    n = len(sessions)
    if len({id(session) for session in sessions}) < n:
        raise LowbitError("append_together", "a session twice", "each once", "append all of its tokens at once")
    if not sessions:
        return np.empty((0, 0), np.float32)
    with contextlib.ExitStack() as calls:
        for session in sessions:
            calls.enter_context(session._alone())
            session._in_use()
        pointers = (Tokens * n)(*(ctypes.cast(i, Tokens) for i in ids))
        status = library().lb_session_prefill_together((c_void_p * n)(*(s._handle for s in sessions)), pointers, (c_size_t * n)(*map(len, ids)), n)
        for session in sessions:
            session._length = session._length_now()
        if status:
            fail(status)
        return np.stack([session._last_logits() for session in sessions])
