"""Products of integers with few bits, by liblowbit.so on the CPU or a GPU (docs/operators.md).

Arrays are NumPy's, torch's on the CPU or a CUDA device, or another library's that has __dlpack__; what comes back is of
the kind that was given and where that was. On a GPU work goes to torch's current stream, and nothing waits for it.
NumPy has no bf16: such outputs are uint16 arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import numpy as np

from .arrays import BF16, F32, Arguments, Arrays
from .errors import LowbitError
from .library import fail, library

_ORDERS = {"rows": 0, "tiles": 1}


class _Int8QuantArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("input", c_void_p), ("m", c_int64), ("k", c_int64), ("input_stride", c_int64),
                ("codes", c_void_p), ("codes_stride", c_int64), ("scales", c_void_p), ("input_type", c_int32), ("scale_type", c_int32)]


class _BitlinearArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("m", c_int64), ("n", c_int64), ("k", c_int64), ("x", c_void_p), ("x_stride", c_int64),
                ("x_scales", c_void_p), ("weight", c_void_p), ("weight_stride", c_int64), ("weight_scales", c_void_p),
                ("row_ends", c_void_p), ("ranges", c_int64), ("output", c_void_p), ("output_stride", c_int64), ("scale_type", c_int32),
                ("output_type", c_int32), ("weight_order", c_int32), ("x_scales_multiply", c_int32)]


class _BinarizeArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("input", c_void_p), ("m", c_int64), ("k", c_int64), ("input_stride", c_int64),
                ("bits", c_void_p), ("bits_stride", c_int64), ("scales", c_void_p), ("input_type", c_int32)]


class _BinaryMatmulArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("m", c_int64), ("n", c_int64), ("k", c_int64), ("x", c_void_p), ("x_stride", c_int64),
                ("weight", c_void_p), ("weight_stride", c_int64), ("x_scales", c_void_p), ("weight_scales", c_void_p), ("bias", c_void_p),
                ("output", c_void_p), ("output_stride", c_int64), ("output_type", c_int32)]


class _QuantizedMmArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("input", c_void_p), ("weight", c_void_p), ("output", c_void_p), ("bias", c_void_p),
                ("m", c_int64), ("n", c_int64), ("k", c_int64), ("input_stride", c_int64), ("weight_stride", c_int64),
                ("output_stride", c_int64), ("bits", c_uint32), ("input_type", c_int32), ("output_type", c_int32), ("scale", c_float),
                ("scales", c_void_p), ("group", c_int64), ("row_ends", c_void_p), ("ranges", c_int64)]


def _vector(arrays: Arrays, where: str, x: Any, length: int | None, dtype: str = "float32") -> Any:
    if x is None:
        return None
    x = arrays.of(where, x, (arrays.kind(dtype),))
    if x.ndim != 1 or (length is not None and int(x.shape[0]) != length):
        raise LowbitError(where, f"shape {tuple(x.shape)}", f"({'ranges' if length is None else length},)")
    return x


def _matrix(arrays: Arrays, where: str, x: Any, dtype: str) -> Any:
    x = arrays.of(where, x, (arrays.kind(dtype),))
    if x.ndim != 2:
        raise LowbitError(where, f"{x.ndim} dimensions", "2")
    return x


def _row_ends(arrays: Arrays, given: Sequence[int], n: int) -> Any:
    """Where ranges of N rows end. A GPU does not look at them, so that this does."""
    ends = np.asarray(given)
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or not len(ends) or ends[-1] != n or (np.diff(ends.astype(np.int64), prepend=0) <= 0).any():
        raise LowbitError("row_ends", str(list(given)), f"ascending ends of ranges, the last {n}")
    return arrays.row_ends(ends)


def quantize_activations_int8(x: Any, *, scale_dtype: str = "f32", bf16: bool = False) -> tuple[Any, Any]:
    """x [..., K] to int8 codes [..., K] and s [...]: s = 127 / max(max |x|, 1e-5), code = round half to even(x * s). x
    is about code / s.

    scale_dtype "bf16": s is rounded to bf16, and codes are made with that. A row with a NaN or an infinity has s = NaN
    and codes 0.
    """
    arrays = Arrays(x)
    x, m, k, apart = arrays.rows("x", x)
    if scale_dtype not in ("f32", "bf16"):
        raise LowbitError("scale_dtype", scale_dtype, "f32 or bf16")
    scales, scale_type = arrays.output(tuple(x.shape[:-1]), scale_dtype)
    codes = arrays.empty(tuple(x.shape), arrays.kind("int8"))
    args = _Int8QuantArgs(0, arrays.address(x), m, k, apart, arrays.address(codes), 0, arrays.address(scales), arrays.float_type("x", x, bf16),
                          scale_type)
    if m:
        arrays.call("lb_quantize_activations_int8", args)
    return arrays.given_back(codes, scales)


def bitlinear_int8xint2(x: Any, weight: Any, s: Any, ws: Any, *, row_ends: Sequence[int] | None = None, weight_order: str = "rows",
                        s_multiplies: bool = False, dtype: str = "bf16") -> Any:
    """y [..., N] = x [..., K] times weight [N, K / 4] transposed, / s * ws: BitNet's W2A8 product.

    x: int8. weight: uint8 or int8, four codes a byte, value = code - 2; weight_order "tiles" as BitNet's GPU kernel has
    them. s [...]: the scale of each row of x, which divides, as quantize_activations_int8() makes it;
    s_multiplies=True: y = x * w * s * ws. ws [ranges]: of the rows of weight up to row_ends, such as [2560, 3200, 3840]
    of q, k and v; without row_ends one. s and ws are both float32 or both bf16 (uint16 with NumPy). dtype: "bf16",
    "f16" or "f32". The sum is exact. Errors: LowbitError.
    """
    arrays = Arrays(x)
    x, m, k, apart = arrays.rows("x", x, (arrays.kind("int8"),))
    weight = arrays.of("weight", weight, (arrays.kind("uint8"), arrays.kind("int8")))
    if weight.ndim != 2 or int(weight.shape[1]) != -(-k // 4):
        raise LowbitError("weight", f"shape {tuple(weight.shape)}", f"(N, {-(-k // 4)}) for {k} columns of x")
    if weight_order not in _ORDERS:
        raise LowbitError("weight_order", weight_order, "rows or tiles")
    half = arrays.kind("bfloat16" if arrays.torch else "uint16")
    s, ws = arrays.of("s", s, (arrays.kind("float32"), half)), arrays.of("ws", ws, (arrays.kind("float32"), half))
    if s.dtype != ws.dtype:
        raise LowbitError("ws", str(ws.dtype), f"{s.dtype}, as s")
    if int(np.prod(tuple(s.shape), dtype=np.int64)) != m:
        raise LowbitError("s", f"shape {tuple(s.shape)}", f"{tuple(x.shape[:-1])}, one for each row of x")
    n, ends = int(weight.shape[0]), None
    if row_ends is not None:
        ends = _row_ends(arrays, row_ends, n)
    _vector(arrays, "ws", ws, 1 if ends is None else len(ends), "float32" if ws.dtype != half else str(half).split(".")[-1])
    y, number = arrays.output((*x.shape[:-1], n), dtype)
    args = _BitlinearArgs(0, m, n, k, arrays.address(x), apart, arrays.address(s), arrays.address(weight), 0, arrays.address(ws),
                          arrays.address(ends), 1 if ends is None else len(ends), arrays.address(y), 0,
                          BF16 if s.dtype == half else F32, number, _ORDERS[weight_order], int(s_multiplies))
    if m and n:
        arrays.call("lb_bitlinear_int8xint2", args)
    return arrays.given_back(y)


def _reordered(name: str, given: Any, rows_first: bool) -> Any:
    arrays = Arrays(given)
    if arrays.on_gpu:
        raise LowbitError("codes", f"a tensor on {arrays.device}", "one on the CPU", "bring weights into their order once, then x.to('cuda')")
    given = _matrix(arrays, "codes", given, "uint8")
    n, k = int(given.shape[0]), 4 * int(given.shape[1])
    made = arrays.empty(tuple(given.shape), arrays.kind("uint8"))
    function = getattr(library(), name)
    a, b = c_void_p(arrays.address(given)), c_void_p(arrays.address(made))
    one, two = (c_int64(0), c_int64(n)), c_int64(k)
    status = function(a, *one, two, b) if rows_first else function(a, one[1], two, b, one[0])
    if status:
        fail(status)
    return arrays.given_back(made)


def int2_to_tiles(codes: Any) -> Any:
    """2-bit codes [N, K / 4], uint8, in the order of BitNet's GPU kernel; N a multiple of 16 and K of 32."""
    return _reordered("lb_int2_to_tiles", codes, True)


def int2_from_tiles(tiles: Any) -> Any:
    """The inverse."""
    return _reordered("lb_int2_from_tiles", tiles, False)


def binarize_activations(x: Any, *, bf16: bool = False) -> tuple[Any, Any]:
    """x [..., K] to bits [..., ceil(K / 8)], uint8, and scales [...]: bit 1 where x >= 0 or NaN, scale = mean |x|."""
    arrays = Arrays(x)
    x, m, k, apart = arrays.rows("x", x)
    bits = arrays.empty((*x.shape[:-1], -(-k // 8)), arrays.kind("uint8"))
    scales = arrays.empty(tuple(x.shape[:-1]), arrays.kind("float32"))
    args = _BinarizeArgs(0, arrays.address(x), m, k, apart, arrays.address(bits), 0, arrays.address(scales), arrays.float_type("x", x, bf16))
    if m:
        arrays.call("lb_binarize_activations", args)
    return arrays.given_back(bits, scales)


def binary_matmul(x: Any, weight: Any, k: int, *, x_scales: Any = None, weight_scales: Any = None, bias: Any = None,
                  dtype: str = "f32") -> Any:
    """y [..., N] of bits x [..., ceil(k / 8)] and weight [N, ceil(k / 8)]: a bit 1 is +1, a bit 0 is -1 (XNOR and a
    count).

    x_scales [...], weight_scales [N] and bias [N]: float32, or none. Bits behind column k do not count.
    """
    arrays = Arrays(x)
    x, m, row_bytes, apart = arrays.rows("x", x, (arrays.kind("uint8"),))
    weight = _matrix(arrays, "weight", weight, "uint8")
    n = int(weight.shape[0])
    if k < 0 or row_bytes != -(-k // 8) or int(weight.shape[1]) != row_bytes:
        raise LowbitError("binary_matmul", f"x {tuple(x.shape)} and weight {tuple(weight.shape)}", f"rows of {-(-k // 8)} bytes for k = {k}")
    if x_scales is not None:
        x_scales = arrays.of("x_scales", x_scales, arrays.f32())
        if int(np.prod(tuple(x_scales.shape), dtype=np.int64)) != m:
            raise LowbitError("x_scales", f"shape {tuple(x_scales.shape)}", f"{tuple(x.shape[:-1])}")
    weight_scales, bias = _vector(arrays, "weight_scales", weight_scales, n), _vector(arrays, "bias", bias, n)
    y, number = arrays.output((*x.shape[:-1], n), dtype)
    args = _BinaryMatmulArgs(0, m, n, k, arrays.address(x), apart, arrays.address(weight), 0, arrays.address(x_scales),
                             arrays.address(weight_scales), arrays.address(bias), arrays.address(y), 0, number)
    if m and n:
        arrays.call("lb_binary_matmul", args)
    return arrays.given_back(y)


def quantized_mm(x: Any, weight: Any, bits: int, *, scale: float = 1.0, scales: Any = None, group: int = 0,
                 row_ends: Sequence[int] | None = None, bias: Any = None, dtype: str = "f32", bf16: bool = False) -> Any:
    """y [..., N] = scale * x [..., K] times weight [N, ceil(K * bits / 8)] transposed + bias: float activations,
    weights of 1, 2, 4 or 8 bits.

    weight: uint8, codes packed least significant bits first; 8 and 4 bits: two's complement, 2: value = code - 2, 1:
    value = 2 code - 1. scales, float32: [N], or [N, groups] along K, or [ranges] with row_ends; they are multiplied by
    scale. group: columns of a group, the last of which may be short; 0: they are equal.
    """
    arrays = Arrays(x)
    x, m, k, apart = arrays.rows("x", x)
    weight = _matrix(arrays, "weight", weight, "uint8")
    n, ends = int(weight.shape[0]), None
    if bits not in (1, 2, 4, 8) or int(weight.shape[1]) != -(-k * bits // 8):
        raise LowbitError("weight", f"{bits} bits, shape {tuple(weight.shape)}", f"1, 2, 4 or 8 bits, rows of {-(-k * bits // 8)} bytes")
    if row_ends is not None:
        ends = _row_ends(arrays, row_ends, n)
        scales, group = _vector(arrays, "scales", scales, len(ends)), 0
    elif scales is not None and scales.ndim == 2:
        scales = arrays.of("scales", scales, arrays.f32())
        groups = int(scales.shape[1])
        if int(scales.shape[0]) != n or groups < 1 or -(-k // (group := group or -(-k // groups) or 1)) != groups:
            raise LowbitError("scales", f"shape {tuple(scales.shape)}", f"({n}, groups) for {k} columns in groups of {group}" if group else f"({n}, groups)")
    else:
        scales, group = _vector(arrays, "scales", scales, n), 0
    bias = _vector(arrays, "bias", bias, n)
    y, number = arrays.output((*x.shape[:-1], n), dtype)
    args = _QuantizedMmArgs(0, arrays.address(x), arrays.address(weight), arrays.address(y), arrays.address(bias), m, n, k, apart,
                            int(weight.shape[1]), n, bits, arrays.float_type("x", x, bf16), number, scale, arrays.address(scales), group,
                            arrays.address(ends), 0 if ends is None else len(ends))
    if m and n:
        arrays.call("lb_quantized_mm_args_run", args)
    return arrays.given_back(y)
