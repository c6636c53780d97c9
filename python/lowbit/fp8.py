"""FP8 in blocks: E4M3 codes with a float32 scale per block, by liblowbit.so on the CPU or a GPU (docs/fp8.md).

Arrays are NumPy's, torch's on the CPU or a CUDA device, or another library's that has __dlpack__; what comes back is of
the kind that was given and where that was. On a GPU work goes to torch's current stream, and nothing waits for it.
NumPy has no bf16 and no FP8: codes are uint8 there, and bf16 is a uint16 array with `bf16=True`. torch's codes are
float8_e4m3fn tensors.
"""

from __future__ import annotations

from ctypes import c_float, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

from .arrays import Arguments, Arrays
from .errors import LowbitError

BLOCK = 128
_ORDERS = {"row": 0, "column": 1}


class _QuantArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("input", c_void_p), ("rows", c_int64), ("columns", c_int64), ("input_stride", c_int64),
                ("block_rows", c_int64), ("block_columns", c_int64), ("codes", c_void_p), ("scales", c_void_p), ("codes_stride", c_int64),
                ("scale_stride", c_int64), ("input_type", c_int32), ("scale_order", c_int32), ("power_of_two", c_int32),
                ("norm_eps", c_float), ("norm_weight", c_void_p), ("up", c_void_p), ("up_stride", c_int64)]


class _DequantArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("codes", c_void_p), ("scales", c_void_p), ("rows", c_int64), ("columns", c_int64),
                ("codes_stride", c_int64), ("scale_stride", c_int64), ("block_rows", c_int64), ("block_columns", c_int64),
                ("output", c_void_p), ("output_stride", c_int64), ("output_type", c_int32)]


class _GemmArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("m", c_int64), ("n", c_int64), ("k", c_int64), ("a", c_void_p), ("b", c_void_p),
                ("a_stride", c_int64), ("b_stride", c_int64), ("a_scales", c_void_p), ("b_scales", c_void_p), ("a_scale_stride", c_int64),
                ("b_scale_stride", c_int64), ("b_block_rows", c_int64), ("output", c_void_p), ("output_stride", c_int64),
                ("output_type", c_int32), ("a_scale_order", c_int32)]


class _GroupedGemmArgs(Arguments):
    _fields_ = [("struct_size", c_size_t), ("m", c_int64), ("n", c_int64), ("k", c_int64), ("groups", c_int64), ("a", c_void_p),
                ("b", c_void_p), ("a_scales", c_void_p), ("b_scales", c_void_p), ("a_stride", c_int64), ("b_stride", c_int64),
                ("a_scale_stride", c_int64), ("b_scale_stride", c_int64), ("b_block_rows", c_int64), ("output_stride", c_int64),
                ("rows_of_group", c_int64), ("group_ends", c_void_p), ("group_rows", c_void_p), ("output", c_void_p),
                ("output_type", c_int32), ("a_scale_order", c_int32)]


def _blocks(extent: int, block: int) -> int:
    return -(-extent // block)


def _quantize(name: str, x: Any, block: tuple[int, int], scale_order: str, power_of_two: bool, bf16: bool, **steps: Any) -> tuple[Any, Any]:
    arrays = Arrays(x)
    x, rows, columns, apart = arrays.rows("x", x)
    if min(block) < 1:
        raise LowbitError("x", f"blocks of {block[0]} x {block[1]}", "blocks of 1 x 1 or more")
    if scale_order not in _ORDERS:
        raise LowbitError("scale_order", scale_order, "row or column")
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
    args = _QuantArgs(0, arrays.address(x), rows, columns, apart, *block, arrays.address(codes), arrays.address(scales), 0, 0,
                      arrays.float_type("x", x, bf16), _ORDERS[scale_order], int(power_of_two), steps.get("norm_eps", 0.0),
                      arrays.address(weight), arrays.address(up), 0)
    if rows and columns:
        arrays.call(name, args)
    return arrays.given_back(codes, scales)


def act_quant(x: Any, block: int = BLOCK, *, power_of_two: bool = False, scale_order: str = "row", bf16: bool = False,
              norm_weight: Any = None, norm_eps: float = 1e-5, up: Any = None) -> tuple[Any, Any]:
    """Activations [..., K] to codes [..., K] and scales [..., ceil(K / block)], one per row and block of columns: scale
    = max |x| / 448.

    scale_order "column": scales are [ceil(K / block), rows rounded up to 4], as the GPU's copy engine wants them.
    power_of_two: scales are rounded up to powers of two. norm_weight [K]: RMS norm first. up [..., K]: silu(x) * up
    first. Errors: LowbitError.
    """
    return _quantize("lb_act_quant_fp8", x, (1, block), scale_order, power_of_two, bf16, norm_weight=norm_weight, norm_eps=norm_eps, up=up)


def weight_quant(w: Any, block: tuple[int, int] = (BLOCK, BLOCK), *, power_of_two: bool = False, bf16: bool = False) -> tuple[Any, Any]:
    """Weights [N, K] to codes [N, K] and scales [ceil(N / rows), ceil(K / columns)] of blocks of rows x columns."""
    if getattr(w, "ndim", 0) != 2:
        raise LowbitError("w", f"{getattr(w, 'ndim', 'no')} dimensions", "2: outputs and columns")
    return _quantize("lb_weight_quant_fp8", w, block, "row", power_of_two, bf16)


def weight_dequant(codes: Any, scales: Any, block: tuple[int, int] = (BLOCK, BLOCK), *, dtype: str = "f32") -> Any:
    """value * scale [N, K], as "f32", "f16" or "bf16" (uint16 with NumPy)."""
    arrays = Arrays(codes)
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
        arrays.call("lb_weight_dequant_fp8", args)
    return arrays.given_back(output)


def gemm(a: Any, a_scales: Any, b: Any, b_scales: Any, *, scale_order: str = "row", dtype: str = "f32") -> Any:
    """a [..., K] times b [N, K] transposed: [..., N]. a's blocks are 1 x 128; b's are 128 x 128, or 1 x 128 where
    b_scales has N rows.

    Sums are f32 over 128 columns and then take the scales in (docs/numerics.md#fp8-in-blocks). Errors: LowbitError.
    """
    arrays = Arrays(a)
    (a, m, _, apart), b = arrays.rows("a", a, arrays.codes()), arrays.of("b", b, arrays.codes())
    a_scales, b_scales = arrays.of("a_scales", a_scales, arrays.f32()), arrays.of("b_scales", b_scales, arrays.f32())
    if b.ndim != 2 or a.shape[-1] != b.shape[1]:
        raise LowbitError("gemm", f"a {tuple(a.shape)} and b {tuple(b.shape)}", "[..., K] and [N, K]")
    if scale_order not in _ORDERS:
        raise LowbitError("scale_order", scale_order, "row or column")
    n, k = map(int, b.shape)
    blocks = _blocks(k, BLOCK)
    wanted = (blocks, _blocks(m, 4) * 4) if scale_order == "column" else (*a.shape[:-1], blocks)
    if tuple(a_scales.shape) != wanted:
        raise LowbitError("a_scales", f"shape {tuple(a_scales.shape)}", str(wanted))
    b_rows = 1 if tuple(b_scales.shape) == (n, blocks) else BLOCK
    if tuple(b_scales.shape) != (_blocks(n, b_rows), blocks):
        raise LowbitError("b_scales", f"shape {tuple(b_scales.shape)}", f"({_blocks(n, BLOCK)}, {blocks}) or ({n}, {blocks})")
    output, number = arrays.output((*a.shape[:-1], n), dtype)
    args = _GemmArgs(0, m, n, k, arrays.address(a), arrays.address(b), apart, 0, arrays.address(a_scales), arrays.address(b_scales), 0, 0,
                     b_rows, arrays.address(output), 0, number, _ORDERS[scale_order])
    if m and n:
        arrays.call("lb_fp8_gemm", args)
    return arrays.given_back(output)


def grouped_gemm(a: Any, a_scales: Any, b: Any, b_scales: Any, *, group_ends: Any = None, group_rows: Any = None, dtype: str = "f32") -> Any:
    """Rows of a, each group of them times a b of its own, transposed: b [G, N, K], as experts of a mixture have it,
    blocks of 128 x 128.

    group_ends int32 [G]: a [M, K], group i has rows from group_ends[i - 1], or 0, to group_ends[i] (contiguous form):
    [M, N]. group_rows int32 [G]: a [G, R, K], the first group_rows[i] of each group's rows (masked form): [G, R, N].
    Rows of no group are 0. On a GPU neither is read by the host, so that a graph may be captured. Errors: LowbitError.
    """
    arrays = Arrays(a)
    a, b = arrays.of("a", a, arrays.codes()), arrays.of("b", b, arrays.codes())
    a_scales, b_scales = arrays.of("a_scales", a_scales, arrays.f32()), arrays.of("b_scales", b_scales, arrays.f32())
    masked = group_rows is not None
    if masked == (group_ends is not None):
        raise LowbitError("grouped_gemm", "group_ends and group_rows" if masked else "neither group_ends nor group_rows", "one of the two")
    if b.ndim != 3 or a.ndim != (3 if masked else 2) or a.shape[-1] != b.shape[2] or (masked and a.shape[0] != b.shape[0]):
        raise LowbitError("grouped_gemm", f"a {tuple(a.shape)} and b {tuple(b.shape)}", f"{'[G, R, K]' if masked else '[M, K]'} and [G, N, K]")
    groups, n, k = map(int, b.shape)
    blocks, m = _blocks(k, BLOCK), int(a.shape[0]) * (int(a.shape[1]) if masked else 1)
    for where, x, wanted in (("a_scales", a_scales, (*a.shape[:-1], blocks)), ("b_scales", b_scales, (groups, _blocks(n, BLOCK), blocks))):
        if tuple(x.shape) != tuple(wanted):
            raise LowbitError(where, f"shape {tuple(x.shape)}", str(tuple(wanted)))
    name = "group_rows" if masked else "group_ends"
    counts = arrays.of(name, group_rows if masked else group_ends, (arrays.kind("int32"),))
    if tuple(counts.shape) != (groups,):
        raise LowbitError(name, f"shape {tuple(counts.shape)}", f"({groups},)")
    output, number = arrays.output((*a.shape[:-1], n), dtype)
    output[...] = 0
    at = arrays.address(counts)
    args = _GroupedGemmArgs(0, m, n, k, groups, arrays.address(a), arrays.address(b), arrays.address(a_scales), arrays.address(b_scales), 0, 0, 0, 0, 0, 0,
                            int(a.shape[1]) if masked else 0, None if masked else at, at if masked else None, arrays.address(output), number, 0)
    if m and n:
        arrays.call("lb_fp8_grouped_gemm", args)
    return arrays.given_back(output)
