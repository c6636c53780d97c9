"""lowbit's products as operators of torch, for torch.compile and CUDA graphs, and a linear layer made of them
(docs/operators.md#torch).

`import lowbit.torch` registers torch.ops.lowbit.*; the functions here call them. Tensors lie on the CPU or on one CUDA
device, where work goes to torch's current stream. There are no gradients: weights of few bits are for inference.
"""

from typing import Any, Optional

import numpy as np
import torch

from . import fp8, operators
from .checkpoint import Checkpoint
from .errors import LowbitError, Unsupported

_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def _name(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        raise LowbitError("dtype", str(dtype), "float32, float16 or bfloat16")
    return _NAMES[dtype]


@torch.library.custom_op("lowbit::quantize_activations_int8", mutates_args=())
def quantize_activations_int8(x: torch.Tensor, scale_dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """As lowbit.operators.quantize_activations_int8."""
    return operators.quantize_activations_int8(x, scale_dtype=_name(scale_dtype))


@quantize_activations_int8.register_fake
def _(x, scale_dtype=torch.float32):
    return torch.empty(x.shape, dtype=torch.int8, device=x.device), x.new_empty(x.shape[:-1], dtype=scale_dtype)


@torch.library.custom_op("lowbit::bitlinear_int8xint2", mutates_args=())
def bitlinear_int8xint2(x: torch.Tensor, weight: torch.Tensor, s: torch.Tensor, ws: torch.Tensor, row_ends: Optional[list[int]] = None,
                        weight_order: str = "rows", s_multiplies: bool = False, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """As lowbit.operators.bitlinear_int8xint2."""
    return operators.bitlinear_int8xint2(x, weight, s, ws, row_ends=row_ends, weight_order=weight_order, s_multiplies=s_multiplies, dtype=_name(dtype))


@bitlinear_int8xint2.register_fake
def _(x, weight, s, ws, row_ends=None, weight_order="rows", s_multiplies=False, dtype=torch.bfloat16):
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=dtype, device=x.device)


@torch.library.custom_op("lowbit::binarize_activations", mutates_args=())
def binarize_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As lowbit.operators.binarize_activations."""
    return operators.binarize_activations(x)


@binarize_activations.register_fake
def _(x):
    return (torch.empty((*x.shape[:-1], (x.shape[-1] + 7) // 8), dtype=torch.uint8, device=x.device),
            torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device))


@torch.library.custom_op("lowbit::binary_matmul", mutates_args=())
def binary_matmul(x: torch.Tensor, weight: torch.Tensor, k: int, x_scales: Optional[torch.Tensor] = None, weight_scales: Optional[torch.Tensor] = None,
                  bias: Optional[torch.Tensor] = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """As lowbit.operators.binary_matmul."""
    return operators.binary_matmul(x, weight, k, x_scales=x_scales, weight_scales=weight_scales, bias=bias, dtype=_name(dtype))


@binary_matmul.register_fake
def _(x, weight, k, x_scales=None, weight_scales=None, bias=None, dtype=torch.float32):
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=dtype, device=x.device)


@torch.library.custom_op("lowbit::quantized_mm", mutates_args=())
def quantized_mm(x: torch.Tensor, weight: torch.Tensor, bits: int, scale: float = 1.0, scales: Optional[torch.Tensor] = None, group: int = 0,
                 row_ends: Optional[list[int]] = None, bias: Optional[torch.Tensor] = None, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """As lowbit.operators.quantized_mm; without dtype y has x's."""
    return operators.quantized_mm(x, weight, bits, scale=scale, scales=scales, group=group, row_ends=row_ends, bias=bias,
                                  dtype=_name(dtype or x.dtype))


@quantized_mm.register_fake
def _(x, weight, bits, scale=1.0, scales=None, group=0, row_ends=None, bias=None, dtype=None):
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=dtype or x.dtype, device=x.device)


@torch.library.custom_op("lowbit::act_quant_fp8", mutates_args=())
def act_quant_fp8(x: torch.Tensor, power_of_two: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """As lowbit.fp8.act_quant, in blocks of 1 x 128."""
    return fp8.act_quant(x, power_of_two=power_of_two)


@act_quant_fp8.register_fake
def _(x, power_of_two=False):
    return (torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device),
            torch.empty((*x.shape[:-1], (x.shape[-1] + 127) // 128), dtype=torch.float32, device=x.device))


@torch.library.custom_op("lowbit::weight_quant_fp8", mutates_args=())
def weight_quant_fp8(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As lowbit.fp8.weight_quant, in blocks of 128 x 128."""
    return fp8.weight_quant(w)


@weight_quant_fp8.register_fake
def _(w):
    return (torch.empty(w.shape, dtype=torch.float8_e4m3fn, device=w.device),
            torch.empty(((w.shape[0] + 127) // 128, (w.shape[1] + 127) // 128), dtype=torch.float32, device=w.device))


@torch.library.custom_op("lowbit::weight_dequant_fp8", mutates_args=())
def weight_dequant_fp8(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """As lowbit.fp8.weight_dequant, in blocks of 128 x 128."""
    return fp8.weight_dequant(codes, scales, dtype=_name(dtype))


@weight_dequant_fp8.register_fake
def _(codes, scales, dtype=torch.bfloat16):
    return torch.empty(codes.shape, dtype=dtype, device=codes.device)


@torch.library.custom_op("lowbit::fp8_gemm", mutates_args=())
def fp8_gemm(a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """As lowbit.fp8.gemm, scales by row."""
    return fp8.gemm(a, a_scales, b, b_scales, dtype=_name(dtype))


@fp8_gemm.register_fake
def _(a, a_scales, b, b_scales, dtype=torch.bfloat16):
    return torch.empty((*a.shape[:-1], b.shape[0]), dtype=dtype, device=a.device)


@torch.library.custom_op("lowbit::fp8_grouped_gemm", mutates_args=())
def fp8_grouped_gemm(a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor, group_ends: Optional[torch.Tensor] = None,
                     group_rows: Optional[torch.Tensor] = None, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """As lowbit.fp8.grouped_gemm: a mixture of experts."""
    return fp8.grouped_gemm(a, a_scales, b, b_scales, group_ends=group_ends, group_rows=group_rows, dtype=_name(dtype))


@fp8_grouped_gemm.register_fake
def _(a, a_scales, b, b_scales, group_ends=None, group_rows=None, dtype=torch.bfloat16):
    return torch.empty((*a.shape[:-1], b.shape[1]), dtype=dtype, device=a.device)


# ---- A linear layer

_BITS = {"int8": 8, "int4": 4, "int2": 2, "binary": 1}


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [N, K] of `bits`, least significant first."""
    per = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per)).to(torch.uint8).reshape(len(codes), -1, per)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (codes << shifts).sum(-1, dtype=torch.uint8)


def _quantized(weight: torch.Tensor, format: str, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed rows and scales [N, groups] of a float weight [N, K], to nearest, a group's largest magnitude at the end
    of the range."""
    n, k = weight.shape
    group = group or k
    blocks = torch.nn.functional.pad(weight.float(), (0, -k % group)).reshape(n, -1, group)
    if format == "binary":
        there = torch.nn.functional.pad(torch.ones(1, k, device=weight.device), (0, -k % group)).reshape(1, -1, group).sum(-1)
        scales = blocks.abs().sum(-1) / there
        codes = (blocks >= 0).to(torch.uint8)
    else:
        bits = _BITS[format]
        most = 2 ** (bits - 1) - 1 if bits > 2 else 1
        scales = blocks.abs().amax(-1) / most
        values = (blocks / scales.clamp(min=1e-30)[..., None]).round().clamp(-most, most).to(torch.int16)
        codes = values + 2 if bits == 2 else values & (2**bits - 1)
    return _packed(codes.reshape(n, -1)[:, :k], _BITS[format]), scales


def _ternary(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """2-bit codes and one scale, BitNet b1.58's: the mean magnitude, values -1, 0 and 1 to nearest."""
    scale = weight.float().abs().mean().clamp(min=1e-5)
    return _packed((weight.float() / scale).round().clamp(-1, 1).to(torch.int16) + 2, 2), scale.reshape(1)


class Linear(torch.nn.Module):
    """y = x W^T + bias with a weight of few bits, in place of torch.nn.Linear: for inference, on the CPU or a CUDA
    device.

    format: "int8", "int4", "int2" or "binary": float activations, scales per group of columns (lowbit::quantized_mm).
    "fp8": activations become E4M3 codes, too, blocks of 128 x 128 (lowbit::fp8_gemm). "ternary": BitNet's W2A8, int8
    activations (lowbit::bitlinear_int8xint2). y has x's type. from_float() and from_checkpoint() make one. codes,
    scales and bias are buffers, so that .to() and state_dict() take them along.
    """

    def __init__(self, format: str, shape: tuple[int, int], codes: torch.Tensor, scales: torch.Tensor, bias: Optional[torch.Tensor] = None,
                 group: int = 0) -> None:
        super().__init__()
        if format not in (*_BITS, "fp8", "ternary"):
            raise Unsupported("format", repr(format), " ".join((*_BITS, "fp8", "ternary")))
        self.format, self.group, (self.out_features, self.in_features) = format, group, shape
        self.register_buffer("codes", codes.view(torch.uint8))
        self.register_buffer("scales", scales.float())
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @classmethod
    def from_float(cls, linear: Any, format: str = "int4", group: int = 128) -> "Linear":
        """Of a torch.nn.Linear (or another module with weight and bias), rounded to nearest. group: columns that share
        a scale; 0: a row."""
        weight = linear.weight.detach()
        if weight.ndim != 2:
            raise LowbitError("weight", f"shape {tuple(weight.shape)}", "[outputs, inputs]")
        if format == "fp8":
            codes, scales = fp8.weight_quant(weight.contiguous())
        elif format == "ternary":
            codes, scales = _ternary(weight)
        elif format in _BITS:
            codes, scales = _quantized(weight, format, group)
        else:
            raise Unsupported("format", repr(format), " ".join((*_BITS, "fp8", "ternary")))
        return cls(format, tuple(weight.shape), codes, scales, getattr(linear, "bias", None), group)

    @classmethod
    def from_checkpoint(cls, checkpoint: Any, name: str, bias: Optional[torch.Tensor] = None) -> "Linear":
        """Weight `name` of a lowbit checkpoint (a lowbit.Checkpoint or its path), with its codes as they are. Formats:
        int8, int4, int2 and binary with scales per row or group, fp8 with blocks of 128 x 128, ternary with one scale.
        Errors: lowbit.Unsupported for others, by name.
        """
        weight = (checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)).weight(name)
        spec, (n, k) = weight.spec, weight.shape
        scales = torch.from_numpy(np.ascontiguousarray(weight.scale_array()))
        codes = torch.from_numpy(np.array(weight.codes))
        if spec.zero_dtype is None and spec.format in _BITS and spec.row_block == 1:
            return cls(spec.format, (n, k), codes, scales, bias, max(spec.group_size, 0))
        if spec.zero_dtype is None and spec.format == "fp8" and (spec.row_block, spec.group_size) == (128, 128):
            return cls("fp8", (n, k), codes, scales, bias)
        if spec.zero_dtype is None and spec.format == "ternary" and scales.numel() == 1:
            return cls("ternary", (n, k), _packed(torch.from_numpy(weight.code_array()).to(torch.int16) + 1, 2), scales.reshape(1), bias)
        raise Unsupported(name, spec.text(), "int8, int4, int2, binary with scales of rows or groups, fp8 128x128, ternary with one scale",
                          "`lowbit quantize --format int4 --group 128` makes one, `lowbit run` takes every format")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.format == "fp8":
            y = fp8_gemm(*act_quant_fp8(x), self.codes, self.scales, x.dtype)
        elif self.format == "ternary":
            codes, s = quantize_activations_int8(x)
            y = bitlinear_int8xint2(codes, self.codes, s, self.scales, dtype=x.dtype)
        else:
            return quantized_mm(x, self.codes, _BITS[self.format], scales=self.scales, group=self.group, bias=self.bias)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear":
        """.to() and its kind move, and do not round scales: .half() is about activations."""
        return super()._apply(lambda t: t.to(fn(t.new_empty(0)).device), recurse)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, format={self.format}, bias={self.bias is not None}"
