"""Quantization inside a training graph: forward gives the weights that the file will hold, backward is the straight-through estimator.

A latent weight w lies in group rows [G, g] with scales [G, 1]. Its value is the level nearest to w / scale; the gradient passes to w where
w / scale lies within the grid (half a step beyond its ends included), and to the scale as in LSQ (Esser et al., 2019).
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Grid:
    """Levels first, first + step, ..; or `table`, ascending, when they are not evenly spread. offset: real = value * scale + zero."""

    first: float
    step: float
    count: int
    table: tuple | None = None
    offset: bool = False

    @property
    def last(self) -> float:
        return self.table[-1] if self.table else self.first + self.step * (self.count - 1)

    @property
    def low(self) -> float:
        """Below this the gradient stops."""
        return self.first - (self.table[1] - self.table[0] if self.table else self.step) / 2

    @property
    def high(self) -> float:
        return self.last + (self.table[-1] - self.table[-2] if self.table else self.step) / 2


def nearest_index(u, grid: Grid):
    """Indices of the levels nearest to u, as floats for even grids."""
    if grid.table is None:
        return ((u - grid.first) / grid.step).round().clamp(0, grid.count - 1)
    table = torch.tensor(grid.table, device=u.device, dtype=u.dtype)
    return torch.bucketize(u, (table[1:] + table[:-1]) / 2)


def nearest_value(u, grid: Grid):
    if grid.table is None:
        return nearest_index(u, grid) * grid.step + grid.first
    return torch.tensor(grid.table, device=u.device, dtype=u.dtype)[nearest_index(u, grid)]


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


def _forward(w, scale, zero, grid: Grid):
    return real(nearest_value(position(w, scale, zero, grid), grid), scale, zero, grid)


def _backward(gradient, w, scale, zero, grid: Grid):
    u = position(w, scale, zero, grid)
    inside = (u >= grid.low) & (u <= grid.high)
    value = nearest_value(u, grid)
    shift = zero if zero is not None and not grid.offset else 0.0
    d_scale = (gradient * torch.where(inside, value - u, value - shift)).sum(-1, keepdim=True)
    d_zero = (gradient * ~inside).sum(-1, keepdim=True) if grid.offset and zero is not None else None
    return gradient * inside, d_scale, d_zero


class FakeQuantize(torch.autograd.Function):
    """apply(w, scale, zero or None, grid, kernels): kernels are _forward and _backward or compiled forms of them."""

    @staticmethod
    def forward(ctx, w, scale, zero, grid, kernels):
        ctx.save_for_backward(w, scale, zero)
        ctx.grid, ctx.kernel = grid, kernels[1]
        return kernels[0](w, scale, zero, grid)

    @staticmethod
    def backward(ctx, gradient):
        return *ctx.kernel(gradient, *ctx.saved_tensors, ctx.grid), None, None


KERNELS = (_forward, _backward)


def round_scale(scale, dtype: torch.dtype):
    """The nearest storable scale in f32; one that is finite and not zero never becomes 0 or infinite. The gradient passes."""
    if dtype == torch.float32:
        return scale
    info = torch.finfo(dtype)
    tiny = 2.0**-24 if dtype == torch.float16 else info.tiny
    rounded = torch.sign(scale) * scale.abs().clamp(tiny, info.max)
    return rounded.to(dtype).to(torch.float32).detach() + (scale - scale.detach())
