"""FP8 in blocks: E4M3 codes with a float32 scale per block, by liblowbit.so on the CPU (docs/fp8.md).

Arrays are NumPy's or torch's (on the CPU); what comes back is of the kind that was given. NumPy has no bf16 and no FP8: codes are uint8
there, and bf16 is a uint16 array with `bf16=True`. torch's codes are float8_e4m3fn tensors.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from .errors import LowbitError
from .runtime import _fail, library

BLOCK = 128
_F32, _F16, _BF16 = 0, 1, 2
_ORDERS = {"row": 0, "column": 1}


class _QuantArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("input", c_void_p), ("rows", c_int64), ("columns", c_int64), ("input_stride", c_int64),
                ("block_rows", c_int64), ("block_columns", c_int64), ("codes", c_void_p), ("scales", c_void_p), ("codes_stride", c_int64),
                ("scale_stride", c_int64), ("input_type", c_int32), ("scale_order", c_int32), ("power_of_two", c_int32),
                ("norm_eps", c_float), ("norm_weight", c_void_p), ("up", c_void_p), ("up_stride", c_int64)]


class _DequantArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("codes", c_void_p), ("scales", c_void_p), ("rows", c_int64), ("columns", c_int64),
                ("codes_stride", c_int64), ("scale_stride", c_int64), ("block_rows", c_int64), ("block_columns", c_int64),
                ("output", c_void_p), ("output_stride", c_int64), ("output_type", c_int32)]


class _GemmArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("m", c_int64), ("n", c_int64), ("k", c_int64), ("a", c_void_p), ("b", c_void_p),
                ("a_stride", c_int64), ("b_stride", c_int64), ("a_scales", c_void_p), ("b_scales", c_void_p), ("a_scale_stride", c_int64),
                ("b_scale_stride", c_int64), ("b_block_rows", c_int64), ("output", c_void_p), ("output_stride", c_int64),
                ("output_type", c_int32), ("a_scale_order", c_int32)]


class _Arrays:
    """What NumPy's arrays and torch's tensors differ in."""

    def __init__(self, example: Any) -> None:
        self.torch = None
        if type(example).__module__.split(".")[0] == "torch":
            import torch

            self.torch = torch

    def types(self) -> dict[Any, int]:
        if self.torch:
            return {self.torch.float32: _F32, self.torch.float16: _F16, self.torch.bfloat16: _BF16}
        return {np.dtype(np.float32): _F32, np.dtype(np.float16): _F16}

    def dense(self, where: str, x: Any) -> Any:
        if self.torch:
            if not isinstance(x, self.torch.Tensor) or x.device.type != "cpu":
                raise LowbitError(where, f"{type(x).__name__} on {getattr(x, 'device', 'the host')}", "a torch tensor on the CPU")
            return x.detach().contiguous()
        if not isinstance(x, np.ndarray):
            raise LowbitError(where, type(x).__name__, "a NumPy array")
        return np.ascontiguousarray(x)

    def of(self, where: str, x: Any, dtypes: tuple[Any, ...]) -> Any:
        x = self.dense(where, x)
        if x.dtype not in dtypes:
            raise LowbitError(where, str(x.dtype), " or ".join(map(str, dtypes)))
        return x

    def float_type(self, where: str, x: Any, bf16: bool) -> int:
        if bf16 and not self.torch and x.dtype == np.uint16:
            return _BF16
        kind = self.types().get(x.dtype)
        if kind is None or (bf16 and kind != _BF16):
            raise LowbitError(where, str(x.dtype), "float32 or float16; bf16 as torch's or as uint16 with bf16=True")
        return kind

    def codes(self) -> tuple[Any, ...]:
        return (self.torch.float8_e4m3fn, self.torch.uint8) if self.torch else (np.dtype(np.uint8),)

    def f32(self) -> tuple[Any, ...]:
        return (self.torch.float32,) if self.torch else (np.dtype(np.float32),)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.torch.empty(shape, dtype=dtype) if self.torch else np.empty(shape, dtype)

    def output(self, shape: tuple[int, ...], name: str) -> tuple[Any, int]:
        number = {"f32": _F32, "f16": _F16, "bf16": _BF16}.get(name)
        if number is None:
            raise LowbitError("dtype", name, "f32, f16 or bf16")
        if self.torch:
            return self.empty(shape, (self.torch.float32, self.torch.float16, self.torch.bfloat16)[number]), number
        return self.empty(shape, (np.float32, np.float16, np.uint16)[number]), number

    def address(self, x: Any) -> int | None:
        if x is None:
            return None
        return x.data_ptr() if self.torch else x.ctypes.data


def _blocks(extent: int, block: int) -> int:
    return -(-extent // block)


def _call(name: str, args: ctypes.Structure) -> None:
    args.struct_size = ctypes.sizeof(args)
    function = getattr(library(), name)
    function.restype, function.argtypes = c_int32, (c_void_p,)
    if status := function(byref(args)):
        _fail(status)


def _quantize(name: str, x: Any, block: tuple[int, int], scale_order: str, power_of_two: bool, bf16: bool, **steps: Any) -> tuple[Any, Any]:
    arrays = _Arrays(x)
    x = arrays.dense("x", x)
    if x.ndim < 1 or min(block) < 1:
        raise LowbitError("x", f"{x.ndim} dimensions in blocks of {block[0]} x {block[1]}", "1 or more, in blocks of 1 x 1 or more")
    if scale_order not in _ORDERS:
        raise LowbitError("scale_order", scale_order, "row or column")
    columns = int(x.shape[-1])
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    grid = (_blocks(rows, block[0]), _blocks(columns, block[1]))
    codes = arrays.empty(tuple(x.shape), arrays.codes()[0])
    if scale_order == "column":
        scales = arrays.empty((grid[1], _blocks(grid[0], 4) * 4), arrays.f32()[0])
    else:
        scales = arrays.empty((*x.shape[:-1], grid[1]) if block[0] == 1 else grid, arrays.f32()[0])
    weight, up = steps.get("norm_weight"), steps.get("up")
    if weight is not None:
        weight = arrays.of("norm_weight", weight, arrays.f32())
        if tuple(weight.shape) != (columns,):
            raise LowbitError("norm_weight", f"shape {tuple(weight.shape)}", f"({columns},)")
    if up is not None:
        up = arrays.of("up", up, (x.dtype,))
        if up.shape != x.shape:
            raise LowbitError("up", f"shape {tuple(up.shape)}", f"{tuple(x.shape)}, as x")
    args = _QuantArgs(0, arrays.address(x), rows, columns, 0, *block, arrays.address(codes), arrays.address(scales), 0, 0,
                      arrays.float_type("x", x, bf16), _ORDERS[scale_order], int(power_of_two), steps.get("norm_eps", 0.0),
                      arrays.address(weight), arrays.address(up), 0)
    if rows and columns:
        _call(name, args)
    return codes, scales


def act_quant(x: Any, block: int = BLOCK, *, power_of_two: bool = False, scale_order: str = "row", bf16: bool = False,
              norm_weight: Any = None, norm_eps: float = 1e-5, up: Any = None) -> tuple[Any, Any]:
    """Activations [..., K] to codes [..., K] and scales [..., ceil(K / block)], one per row and block of columns: scale = max |x| / 448.

    scale_order "column": scales are [ceil(K / block), rows rounded up to 4], as the GPU's copy engine wants them. power_of_two: scales are
    rounded up to powers of two. norm_weight [K]: RMS norm first. up [..., K]: silu(x) * up first. Errors: LowbitError.
    """
    return _quantize("lb_act_quant_fp8_host", x, (1, block), scale_order, power_of_two, bf16, norm_weight=norm_weight, norm_eps=norm_eps, up=up)


def weight_quant(w: Any, block: tuple[int, int] = (BLOCK, BLOCK), *, power_of_two: bool = False, bf16: bool = False) -> tuple[Any, Any]:
    """Weights [N, K] to codes [N, K] and scales [ceil(N / rows), ceil(K / columns)] of blocks of rows x columns."""
    if getattr(w, "ndim", 0) != 2:
        raise LowbitError("w", f"{getattr(w, 'ndim', 'no')} dimensions", "2: outputs and columns")
    return _quantize("lb_weight_quant_fp8_host", w, block, "row", power_of_two, bf16)


def weight_dequant(codes: Any, scales: Any, block: tuple[int, int] = (BLOCK, BLOCK), *, dtype: str = "f32") -> Any:
    """value * scale [N, K], as "f32", "f16" or "bf16" (uint16 with NumPy)."""
    arrays = _Arrays(codes)
    codes, scales = arrays.of("codes", codes, arrays.codes()), arrays.of("scales", scales, arrays.f32())
    if codes.ndim != 2 or min(block) < 1:
        raise LowbitError("codes", f"{codes.ndim} dimensions in blocks of {block[0]} x {block[1]}", "2, in blocks of 1 x 1 or more")
    rows, columns = map(int, codes.shape)
    wanted = (_blocks(rows, block[0]), _blocks(columns, block[1]))
    if tuple(scales.shape) != wanted:
        raise LowbitError("scales", f"shape {tuple(scales.shape)}", f"{wanted} for blocks of {block[0]} x {block[1]}")
    output, number = arrays.output((rows, columns), dtype)
    args = _DequantArgs(0, arrays.address(codes), arrays.address(scales), rows, columns, 0, 0, *block, arrays.address(output), 0, number)
    if rows and columns:
        _call("lb_weight_dequant_fp8_host", args)
    return output


def gemm(a: Any, a_scales: Any, b: Any, b_scales: Any, *, scale_order: str = "row", dtype: str = "f32") -> Any:
    """a [..., K] times b [N, K] transposed: [..., N]. a's blocks are 1 x 128; b's are 128 x 128, or 1 x 128 where b_scales has N rows.

    Sums are f32 over 128 columns and then take the scales in (docs/numerics.md#fp8-in-blocks). Errors: LowbitError.
    """
    arrays = _Arrays(a)
    a, b = arrays.of("a", a, arrays.codes()), arrays.of("b", b, arrays.codes())
    a_scales, b_scales = arrays.of("a_scales", a_scales, arrays.f32()), arrays.of("b_scales", b_scales, arrays.f32())
    if a.ndim < 1 or b.ndim != 2 or a.shape[-1] != b.shape[1]:
        raise LowbitError("gemm", f"a {tuple(a.shape)} and b {tuple(b.shape)}", "[..., K] and [N, K]")
    if scale_order not in _ORDERS:
        raise LowbitError("scale_order", scale_order, "row or column")
    n, k = map(int, b.shape)
    m, blocks = int(np.prod(a.shape[:-1], dtype=np.int64)), _blocks(k, BLOCK)
    wanted = (blocks, _blocks(m, 4) * 4) if scale_order == "column" else (*a.shape[:-1], blocks)
    if tuple(a_scales.shape) != wanted:
        raise LowbitError("a_scales", f"shape {tuple(a_scales.shape)}", str(wanted))
    b_rows = 1 if tuple(b_scales.shape) == (n, blocks) else BLOCK
    if tuple(b_scales.shape) != (_blocks(n, b_rows), blocks):
        raise LowbitError("b_scales", f"shape {tuple(b_scales.shape)}", f"({_blocks(n, BLOCK)}, {blocks}) or ({n}, {blocks})")
    output, number = arrays.output((*a.shape[:-1], n), dtype)
    args = _GemmArgs(0, m, n, k, arrays.address(a), arrays.address(b), 0, 0, arrays.address(a_scales), arrays.address(b_scales), 0, 0,
                     b_rows, arrays.address(output), 0, number, _ORDERS[scale_order])
    if m and n:
        _call("lb_fp8_gemm_host", args)
    return output
