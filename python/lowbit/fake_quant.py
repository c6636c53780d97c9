"""Quantization inside a training graph: forward gives the weights that the file will hold, backward is the
straight-through estimator.

A latent weight w lies in group rows [G, g] with scales [G, 1]. Its value is the level nearest to w / scale; the
gradient passes to w where w / scale lies within the grid (half a step beyond its ends included), and to the scale as in
LSQ (Esser et al., 2019).
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Grid:
    """Levels first, first + step, .. (count of them). table: they are not evenly spread, but an ascending f32 tensor
    [rows or 1, count] that goes with the weight. offset: real = value * scale + zero."""

    first: float
    step: float
    count: int
    table: bool = False
    offset: bool = False


def nearest_index(u, grid: Grid, levels=None):
    """Indices of the levels nearest to u [rows, g], as floats for even grids."""
    if not grid.table:
        return ((u - grid.first) / grid.step).round().clamp(0, grid.count - 1)
    index = torch.zeros_like(u, dtype=torch.uint8)
    for i in range(grid.count - 1):
        index = index + (u > (levels[:, i:i + 1] + levels[:, i + 1:i + 2]) / 2)
    return index


def nearest_value(u, grid: Grid, levels=None):
    if not grid.table:
        return nearest_index(u, grid) * grid.step + grid.first
    value = levels[:, :1].expand_as(u)
    for i in range(grid.count - 1):  # element by element: one kernel when compiled, and no gather from a table per row
        value = torch.where(u > (levels[:, i:i + 1] + levels[:, i + 1:i + 2]) / 2, levels[:, i + 1:i + 2], value)
    return value


def limits(grid: Grid, levels=None):
    """Half a step beyond the outermost levels: outside, the gradient stops."""
    if not grid.table:
        return grid.first - grid.step / 2, grid.first + grid.step * (grid.count - 0.5)
    return 1.5 * levels[:, :1] - 0.5 * levels[:, 1:2], 1.5 * levels[:, -1:] - 0.5 * levels[:, -2:-1]


def position(w, scale, zero, grid: Grid):
    """w in steps of the grid. Points (grid.offset false, zero given) count in value steps."""
    if zero is None:
        return w / scale
    return (w - zero) / scale if grid.offset else w / scale + zero


def real(value, scale, zero, grid: Grid):
    """The f32 operations of docs/numerics.md#weights, one rounding each."""
    if zero is None:
        return value * scale
    return value * scale + zero if grid.offset else (value - zero) * scale


def _forward(w, scale, zero, levels, grid: Grid):
    return real(nearest_value(position(w, scale, zero, grid), grid, levels), scale, zero, grid)


def _backward(gradient, w, scale, zero, levels, grid: Grid):
    u = position(w, scale, zero, grid)
    low, high = limits(grid, levels)
    inside = (u >= low) & (u <= high)
    value = nearest_value(u, grid, levels)
    shift = zero if zero is not None and not grid.offset else 0.0
    d_scale = (gradient * torch.where(inside, value - u, value - shift)).sum(-1, keepdim=True)
    d_zero = (gradient * ~inside).sum(-1, keepdim=True) if grid.offset and zero is not None else None
    return gradient * inside, d_scale, d_zero


class FakeQuantize(torch.autograd.Function):
    """apply(w, scale, zero or None, levels or None, grid, kernels): kernels are _forward and _backward or compiled
    forms of them."""

    @staticmethod
    def forward(ctx, w, scale, zero, levels, grid, kernels):
        ctx.save_for_backward(w, scale, zero, levels)
        ctx.grid, ctx.kernel = grid, kernels[1]
        return kernels[0](w, scale, zero, levels, grid)

    @staticmethod
    def backward(ctx, gradient):
        return *ctx.kernel(gradient, *ctx.saved_tensors, ctx.grid), None, None, None


KERNELS = (_forward, _backward)


def round_scale(scale, dtype: torch.dtype):
    """The nearest storable scale in f32; one that is finite and not zero never becomes 0 or infinite. The gradient
    passes."""
    if dtype == torch.float32:
        return scale
    info = torch.finfo(dtype)
    tiny = 2.0**-24 if dtype == torch.float16 else info.tiny
    rounded = torch.sign(scale) * scale.abs().clamp(tiny, info.max)
    return rounded.to(dtype).to(torch.float32).detach() + (scale - scale.detach())


def round_double(scale, super_scale):
    """The nearest of super_scale * (1..127), either sign, as an int8 code times its super-scale can hold it. The
    gradient passes."""
    u = scale / super_scale
    code = u.abs().round().clamp(1, 127)
    return (torch.where(u < 0, -code, code) * super_scale).detach() + (scale - scale.detach())
