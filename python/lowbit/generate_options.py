"""Options of a generation, as liblowbit.so takes them."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from .errors import LowbitError

ON_TEXT = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(ctypes.c_char), c_size_t)


class TokenLogprobsStruct(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("token", c_int32), ("logprob", c_float), ("top_tokens", POINTER(c_int32)),
                ("top_logprobs", POINTER(c_float)), ("top_count", c_size_t)]


ON_LOGPROBS = ctypes.CFUNCTYPE(None, c_void_p, POINTER(TokenLogprobsStruct))


class TokenLogprobs(NamedTuple):
    """How likely the model held a token for, and the likeliest in its place: natural logarithms, before bias, penalties
    and temperature."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class GenerateOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("max_tokens", c_int64), ("temperature", c_float), ("top_p", c_float), ("min_p", c_float),
                ("repeat_penalty", c_float), ("top_k", c_int64), ("seed", c_uint64), ("ignore_eos", c_int32), ("on_text", ON_TEXT),
                ("user", c_void_p), ("frequency_penalty", c_float), ("presence_penalty", c_float), ("repeat_window", c_int64),
                ("bias_tokens", POINTER(c_int32)), ("bias_values", POINTER(c_float)), ("bias_count", c_size_t),
                ("token_mask", POINTER(c_uint32)), ("token_mask_words", c_size_t), ("stop_texts", POINTER(c_char_p)),
                ("stop_count", c_size_t), ("top_logprobs", c_int64), ("on_logprobs", ON_LOGPROBS)]


def token_ids(tokens: Iterable[int]) -> ctypes.Array:
    ids = [operator.index(token) for token in tokens]
    if not all(0 <= i < 2**31 for i in ids):  # ctypes would cut them to 32 bits
        raise LowbitError("tokens", f"token {next(i for i in ids if not 0 <= i < 2**31)}", "ids of the vocabulary")
    return (c_int32 * len(ids))(*ids)


def whole_number(where: str, value: int, bits: int, *, signed: bool = True) -> int:
    """ctypes would cut it to so many bits."""
    low = -(2 ** (bits - 1)) if signed else 0
    if not low <= operator.index(value) < low + 2**bits:
        raise LowbitError(where, str(value), f"a whole number of {bits} bits" + ("" if signed else ", 0 or more"))
    return value


def c_text(where: str, text: str | bytes) -> bytes:
    """For C, which would take what is before a zero."""
    raw = text.encode() if isinstance(text, str) else text
    if b"\0" in raw:
        raise LowbitError(where, "a zero character", "a text without")
    return raw


def set_sampling_arrays(options: GenerateOptions, logit_bias: Mapping[int, float] | None, allowed_tokens: Iterable[int] | None,
                        stop: str | Sequence[str]) -> None:
    """Lists as the library takes them; the struct keeps them alive."""
    if logit_bias:
        options.bias_tokens, options.bias_values = token_ids(logit_bias), (c_float * len(logit_bias))(*logit_bias.values())
        options.bias_count = len(logit_bias)
    if allowed_tokens is not None:
        ids = token_ids(allowed_tokens)
        mask = (c_uint32 * (max(ids, default=0) // 32 + 1))()
        for i in ids:
            mask[i // 32] |= 1 << i % 32
        options.token_mask, options.token_mask_words = mask, len(mask)
    texts = [c_text("stop", text) for text in ([stop] if isinstance(stop, str) else stop)]
    if texts:
        options.stop_texts, options.stop_count = (c_char_p * len(texts))(*texts), len(texts)
