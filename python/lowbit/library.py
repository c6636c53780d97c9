"""liblowbit.so by ctypes: where it is found, the signatures of include/lowbit/lowbit.h that runtime.py calls, and its
errors.

The library is the file that LOWBIT_LIBRARY names, else the one that `pip install` put beside this file, else the one
last built in the checkout that this package lies in, else what the system's loader finds (an installed lowbit).
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import NoReturn

from .errors import LowbitError, parts_of_line
from .generate_options import GenerateOptions


class RuntimeFailure(LowbitError):
    """The error of a call of the library; `status` is the name of its lb_status ("not_found")."""

    def __init__(self, status: str, line: str) -> None:
        super().__init__(*(parts_of_line(line) or ("", line, "", "")))
        self.args, self.status = (line,), status


class ModelOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("activation", c_char_p), ("device", c_char_p), ("context", c_int64), ("threads", c_int32),
                ("kv_positions", c_int64), ("kv", c_char_p), ("kv_residual", c_int64), ("kv_keep", c_char_p),
                ("kv_refresh", c_int64), ("kv_demote", c_char_p), ("exact", c_int32)]


Tokens, Count = POINTER(c_int32), POINTER(c_size_t)
_SIGNATURES = {
    "lb_last_error": (c_char_p,), "lb_status_name": (c_char_p, c_int32), "lb_version": (c_char_p,),
    "lb_model_open": (c_int32, c_char_p, POINTER(ModelOptions), POINTER(c_void_p)), "lb_model_close": (None, c_void_p),
    "lb_model_vocab_size": (c_int64, c_void_p), "lb_model_length": (c_int64, c_void_p),
    "lb_model_prefill": (c_int32, c_void_p, Tokens, c_size_t),
    "lb_model_logits": (c_int32, c_void_p, POINTER(POINTER(c_float)), Count), "lb_model_truncate": (c_int32, c_void_p, c_int64),
    "lb_model_tokenize": (c_int32, c_void_p, c_char_p, c_size_t, c_int32, c_int32, Tokens, c_size_t, Count),
    "lb_model_detokenize": (c_int32, c_void_p, Tokens, c_size_t, c_char_p, c_size_t, Count),
    "lb_model_chat_text": (c_int32, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, Count),
    "lb_model_generate": (c_int32, c_void_p, Tokens, c_size_t, POINTER(GenerateOptions), Tokens, c_size_t, Count),
    "lb_session_open": (c_int32, c_void_p, POINTER(c_void_p)), "lb_session_fork": (c_int32, c_void_p, POINTER(c_void_p)),
    "lb_session_close": (None, c_void_p), "lb_session_length": (c_int64, c_void_p),
    "lb_session_wait_for_pages": (c_int32, c_void_p, c_int64), "lb_session_prefill": (c_int32, c_void_p, Tokens, c_size_t),
    "lb_session_save": (c_int32, c_void_p, c_char_p), "lb_session_load": (c_int32, c_void_p, c_char_p),
    "lb_session_tokens": (c_int32, c_void_p, Tokens, c_size_t, Count),
    "lb_session_logits": (c_int32, c_void_p, POINTER(POINTER(c_float)), Count), "lb_session_truncate": (c_int32, c_void_p, c_int64),
    "lb_session_prefill_together": (c_int32, POINTER(c_void_p), POINTER(Tokens), Count, c_size_t),
    "lb_session_generate": (c_int32, c_void_p, Tokens, c_size_t, POINTER(GenerateOptions), Tokens, c_size_t, Count),
}


def _installed_library() -> str | None:
    """Of this package, or of the checkout that it lies in."""
    here = Path(__file__).resolve().parent
    beside, builds = here / "liblowbit.so", here.parents[1] / "build"
    built = [builds / "cuda/lib/liblowbit.so", builds / "release/lib/liblowbit.so", builds / "wheel/lib/liblowbit.so"]
    found = [beside] if beside.is_file() else sorted((path for path in built if path.is_file()), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else None


@functools.cache
def library() -> ctypes.CDLL:
    """liblowbit.so, with its signatures. Errors: LowbitError when none is found or it is too old."""
    path = os.environ.get("LOWBIT_LIBRARY") or _installed_library() or "liblowbit.so.0"
    hint = "install lowbit with pip, or build it with scripts/build.sh and name the library in LOWBIT_LIBRARY"
    try:
        found = ctypes.CDLL(path)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LowbitError("liblowbit", str(error), "the library of this version of lowbit", hint) from None
    return found


def fail(status: int) -> NoReturn:
    raise RuntimeFailure(library().lb_status_name(status).decode(), library().lb_last_error().decode(errors="replace"))
