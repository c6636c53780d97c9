"""Arrays that the operators take: NumPy's arrays, torch's tensors on the CPU or a GPU, and other libraries' arrays by
DLPack."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
from collections.abc import Sequence
from ctypes import byref, c_int32, c_void_p
from typing import Any

import numpy as np

from .errors import LowbitError
from .library import fail, library

F32, F16, BF16 = 0, 1, 2
_CPU, _CUDA = 1, 2  # of DLPack


def _of_torch(x: Any) -> bool:
    return type(x).__module__ == "torch" or any(each.__module__.split(".")[0] == "torch" for each in type(x).__mro__)


def _dlpack_device(x: Any) -> int | None:
    """Where another library's array is; None: it is none."""
    return int(x.__dlpack_device__()[0]) if hasattr(x, "__dlpack_device__") and hasattr(x, "__dlpack__") else None


def _import_torch(where: str, x: Any) -> Any:
    try:
        import torch
    except ImportError as error:
        raise LowbitError(where, f"{type(x).__name__} on a GPU", "torch, whose memory results are in", "pip install torch") from error
    return torch


def _back_to(example: Any) -> Any:
    """The function that makes an array of the example's library of another one; None: nothing is to be done."""
    root = type(example).__module__.split(".")[0]
    root = "jax" if root == "jaxlib" else root
    for name in (root, f"{root}.dlpack"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(name).from_dlpack
    return None


class Arguments(ctypes.Structure):
    """The arguments of a call. A number that its field cannot hold is an error: ctypes would cut it, and the call would
    believe in other shapes than those of the arrays."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        for (name, kind), value in zip(self._fields_, values):
            if isinstance(value, int) and (getattr(self, name) or 0) != value:
                raise LowbitError(name, str(value), f"a number of {8 * ctypes.sizeof(kind)} bits")


class Arrays:
    """Operations in which libraries of arrays differ. All arguments of a call are of one kind and on one device, those
    of the first."""

    def __init__(self, example: Any) -> None:
        self.torch, self.device, self._back = None, None, None
        if _of_torch(example):
            import torch

            self.torch = torch
        elif not isinstance(example, np.ndarray) and (device := _dlpack_device(example)) is not None:
            self._back = _back_to(example)
            if device == _CUDA:
                self.torch = _import_torch("x", example)
                example = self.torch.from_dlpack(example)
        if self.torch and isinstance(example, self.torch.Tensor):
            if example.device.type not in ("cpu", "cuda"):
                raise LowbitError("x", f"a tensor on {example.device}", "one on the CPU or on a CUDA device")
            self.device = example.device

    @property
    def on_gpu(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def types(self) -> dict[Any, int]:
        if self.torch:
            return {self.torch.float32: F32, self.torch.float16: F16, self.torch.bfloat16: BF16}
        return {np.dtype(np.float32): F32, np.dtype(np.float16): F16}

    def _of_kind(self, where: str, x: Any) -> Any:
        """As a tensor or a NumPy array, on the device of the call."""
        other = not isinstance(x, np.ndarray) and not _of_torch(x) and _dlpack_device(x) is not None
        if self.torch:
            x = self.torch.from_dlpack(x) if other else x
            if not isinstance(x, self.torch.Tensor) or x.device != self.device:
                where_wanted = "the CPU" if not self.on_gpu else str(self.device)
                raise LowbitError(where, f"{type(x).__name__} on {getattr(x, 'device', 'the host')}", f"a torch tensor on {where_wanted}",
                                  f"x.to('{self.device}')" if isinstance(x, self.torch.Tensor) else "")
            return x.detach()
        x = np.from_dlpack(x) if other and _dlpack_device(x) == _CPU else x
        if not isinstance(x, np.ndarray):
            raise LowbitError(where, type(x).__name__, "a NumPy array")
        return x

    def dense(self, where: str, x: Any) -> Any:
        """Without gaps. On a GPU nothing is copied behind the caller's back: other layouts are refused."""
        x = self._of_kind(where, x)
        if not self.torch:
            return np.ascontiguousarray(x)
        if self.on_gpu and not x.is_contiguous():
            raise LowbitError(where, f"strides {x.stride()} of shape {tuple(x.shape)}", "rows without gaps", "x.contiguous() makes a copy")
        return x.contiguous()

    def rows(self, where: str, x: Any, dtypes: tuple[Any, ...] | None = None) -> tuple[Any, int, int, int]:
        """x [..., columns] as rows: x, how many, columns, and elements from one to the next. Rows of a matrix may be
        apart."""
        x = self._of_kind(where, x)
        if dtypes is not None and x.dtype not in dtypes:
            raise LowbitError(where, str(x.dtype), " or ".join(map(str, dtypes)))
        if x.ndim < 1:
            raise LowbitError(where, "no dimension", "[..., columns]")
        columns, apart = int(x.shape[-1]), 0
        if self.torch and x.ndim == 2 and x.shape[0] > 1 and x.stride(1) == 1 and x.stride(0) >= columns:
            apart = x.stride(0)
        else:
            x = self.dense(where, x)
        return x, math.prod(x.shape[:-1]), columns, apart or columns

    def of(self, where: str, x: Any, dtypes: tuple[Any, ...]) -> Any:
        x = self.dense(where, x)
        if x.dtype not in dtypes:
            raise LowbitError(where, str(x.dtype), " or ".join(map(str, dtypes)))
        return x

    def kind(self, name: str) -> Any:
        """A dtype of NumPy or torch by its name."""
        return getattr(self.torch, name) if self.torch else np.dtype(name)

    def float_type(self, where: str, x: Any, bf16: bool) -> int:
        if bf16 and not self.torch and x.dtype == np.uint16:
            return BF16
        kind = self.types().get(x.dtype)
        if kind is None or (bf16 and kind != BF16):
            raise LowbitError(where, str(x.dtype), "float32 or float16; bf16 as torch's or as uint16 with bf16=True")
        return kind

    def codes(self) -> tuple[Any, ...]:
        return (self.torch.float8_e4m3fn, self.torch.uint8) if self.torch else (np.dtype(np.uint8),)

    def f32(self) -> tuple[Any, ...]:
        return (self.torch.float32,) if self.torch else (np.dtype(np.float32),)

    def row_ends(self, ends: Sequence[int] | None) -> Any:
        """Where ranges of rows end, as int32 where a call reads it. One copy of each goes to a GPU and stays."""
        if ends is None:
            return None
        if self.on_gpu:
            return _ends_on(tuple(map(int, ends)), str(self.device))
        ends = np.ascontiguousarray(ends, np.int32)
        return self.torch.from_numpy(ends) if self.torch else ends

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.torch.empty(shape, dtype=dtype, device=self.device) if self.torch else np.empty(shape, dtype)

    def output(self, shape: tuple[int, ...], name: str) -> tuple[Any, int]:
        number = {"f32": F32, "f16": F16, "bf16": BF16}.get(name)
        if number is None:
            raise LowbitError("dtype", name, "f32, f16 or bf16")
        if self.torch:
            return self.empty(shape, (self.torch.float32, self.torch.float16, self.torch.bfloat16)[number]), number
        return self.empty(shape, (np.float32, np.float16, np.uint16)[number]), number

    def address(self, x: Any) -> int | None:
        if x is None:
            return None
        return x.data_ptr() if self.torch else x.ctypes.data

    def given_back(self, *results: Any) -> Any:
        """Of the library that the arguments came from."""
        if self._back:
            results = tuple(map(self._back, results))
        return results if len(results) > 1 else results[0]

    def call(self, name: str, args: Arguments) -> None:
        """`name`_host on the CPU; on a GPU `name`, on torch's current stream there."""
        args.struct_size = ctypes.sizeof(args)
        if not self.on_gpu:
            status = _function(f"{name}_host", 1)(byref(args))
        else:
            stream = self.torch.cuda.current_stream(self.device).cuda_stream
            with contextlib.nullcontext() if self.torch.cuda.current_device() == self.device.index else self.torch.cuda.device(self.device):
                status = _function(name, 2)(byref(args), stream)
        if status:
            fail(status)


@functools.cache
def _ends_on(ends: tuple[int, ...], device: str) -> Any:
    import torch

    return torch.tensor(ends, dtype=torch.int32, device=device)


@functools.cache
def _function(name: str, arguments: int) -> Any:
    found = library()
    if not hasattr(found, name):
        raise LowbitError(name, "a liblowbit.so without it", "a newer one", "build it again: scripts/build.sh")
    function = getattr(found, name)
    function.restype, function.argtypes = c_int32, (c_void_p,) * arguments
    return function
