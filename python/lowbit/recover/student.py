"""The model in training: latent weights, scales and norms of a checkpoint, and the checkpoint that they become."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from ..checkpoint import SCALE_DTYPES, SUPER_GROUP, Checkpoint, QuantizedWeight
from ..errors import LowbitError, WrongTeacher
from ..fake_quant import KERNELS, FakeQuantize, Grid, nearest_index, nearest_value, position, real, round_double, round_scale
from ..formats import code_values, find_format, pack
from ..llama import linear_names, norm_names
from ..safetensors_file import from_f32
from ..sources import LlamaConfig, Model

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
CELL = 0.49  # of the way to the neighbouring level: how far from its level a latent weight may start
HEADROOM = 1.2  # of super-scales, so that the largest scale under one may grow
COARSE = 15  # steps between the ends of the finest even grid that takes the rate of scales as it is
MIN_SCALE = 1e-5  # stands for a scale of 0, so that a group of zeros can come alive


def grid_of(weight: QuantizedWeight) -> Grid | None:
    """None for formats that are not trained (fp8)."""
    fmt, offset = find_format(weight.spec.format, "format"), weight.spec.zero_dtype == "offset"
    if fmt.kind == "table":
        return Grid(0.0, 0.0, len(weight.codebook), True, offset) if len(set(weight.codebook.tolist())) > 1 else None
    return Grid(float(fmt.first), float(fmt.step), fmt.count, False, offset) if fmt.kind == "uniform" else None


@dataclasses.dataclass
class Layer:
    """A quantized weight in training. latent [rows, g], scale and zero [rows, 1]; rows = N * groups of a row, the last
    group padded. levels [1, count]: the tensor's table, ascending, for such grids. super_scale [rows, 1]: the
    super-scale of each scale of kind `double`. original [rows, g]: the teacher's weight, where it is known. fixed
    [rows, g]: the values of codes that are not trained: those on a trellis, where a small step of one weight would move
    codes far along its row (docs/lab/trellis.md)."""

    name: str
    stored: QuantizedWeight
    grid: Grid
    latent: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    levels: torch.Tensor | None = None
    super_scale: torch.Tensor | None = None
    original: torch.Tensor | None = None
    fixed: torch.Tensor | None = None

    @property
    def trains_scale(self) -> bool:
        """Scales of tables of 256 levels are a hundredth of those that the rates are for, and stay."""
        return self.name not in TABLES and self.stored.spec.row_block == 1 and self.stored.spec.scale_dtype in (*TORCH_DTYPES, "double")

    @property
    def trains_zero(self) -> bool:
        return self.trains_scale and self.grid.offset

    @classmethod
    def start(cls, name, stored, grid, teacher: np.ndarray | None, device) -> Layer:
        """The latent weight is the teacher's, moved into the cell of the stored code; without a teacher, and where
        codes stay, it is the level itself."""
        n, k = stored.shape
        group = k if stored.spec.group_size == -1 else stored.spec.group_size
        columns = -(-k // group)

        def grouped(array):
            padded = np.zeros((n, columns * group), np.float32)
            padded[:, :k] = array
            return torch.from_numpy(padded).to(device).view(n * columns, group)

        def blocks(array):
            return torch.from_numpy(np.ascontiguousarray(stored.per_row(array), np.float32)).to(device).reshape(-1, 1)

        fmt = find_format(stored.spec.format, name)
        value = grouped(code_values(fmt, stored.codebook)[stored.code_array()])
        fixed = value if fmt.trellis else None
        scale = blocks(stored.scale_array())
        scale = torch.where(scale == 0, torch.full_like(scale, MIN_SCALE), scale)
        zero = None if stored.zeros is None else blocks(stored.zero_array())
        levels = torch.from_numpy(np.sort(np.array(stored.codebook, np.float32))).to(device)[None] if grid.table else None
        u, original = value, None
        if teacher is not None and fixed is None:
            below, above = _gaps(value, grid, levels)
            original = grouped(teacher)
            wanted = position(original, scale, zero, grid)
            u = torch.maximum(torch.minimum(wanted, value + CELL * above), value - CELL * below)
        layer = cls(name, stored, grid, real(u, scale, zero, grid), scale, zero, levels, original=original, fixed=fixed)
        if layer.trains_scale and stored.spec.scale_dtype == "double":
            supers = (stored.super_scales.astype(np.float32) * HEADROOM).astype(np.float16).astype(np.float32)
            supers = np.where(supers == 0, np.float32(MIN_SCALE), supers).astype(np.float16).astype(np.float32)
            layer.super_scale = torch.from_numpy(np.repeat(supers, SUPER_GROUP, axis=1)[:, :columns].copy()).to(device).reshape(-1, 1)
        return layer

    def stored_scale(self):
        if not self.trains_scale:
            return self.scale
        return rounded(self.scale, TORCH_DTYPES.get(self.stored.spec.scale_dtype), self.super_scale)

    def stored_zero(self):
        if self.zero is None or not self.trains_zero:
            return self.zero
        return self.zero if self.stored.spec.scale_dtype == "float32" else self.zero.half().float()

    def value(self):
        """The levels that the file will hold, in steps of the grid."""
        if self.fixed is not None:
            return self.fixed
        return nearest_value(position(self.latent, self.stored_scale(), self.stored_zero(), self.grid), self.grid, self.levels)

    def decoded(self):
        """[rows, g], as the runtime will decode it."""
        return real(self.value(), self.stored_scale(), self.stored_zero(), self.grid)

    def shrink_latent(self, part: float) -> None:
        """Leaves the latent weight `part` of its distance to its level: away from the borders of its cell, where error
        feedback and training by blocks leave many."""
        self.latent = torch.lerp(self.decoded(), self.latent, part)

    def to_weight(self) -> QuantizedWeight:
        """The checkpoint's content: codes of the latent weight under the scales as they are stored."""
        n, _ = self.stored.shape
        scale, zero = self.stored_scale(), self.stored_zero()
        scales, zeros, supers = self.stored.scales, self.stored.zeros, self.stored.super_scales
        if self.super_scale is not None:
            scales = (scale / self.super_scale).round().view(n, -1).cpu().numpy().astype(np.int8)
            supers = self.super_scale.view(n, -1)[:, ::SUPER_GROUP].cpu().numpy().astype(np.float16)
        elif self.trains_scale:
            scales = from_f32(scale.view(n, -1).cpu().numpy(), SCALE_DTYPES[self.stored.spec.scale_dtype])
        if self.trains_zero:
            zeros = zero.view(n, -1).cpu().numpy().astype(zeros.dtype)
        return dataclasses.replace(self.stored, codes=self._packed_codes(scale, zero), scales=scales, zeros=zeros, super_scales=supers)

    def _packed_codes(self, scale, zero) -> np.ndarray:
        if self.fixed is not None:
            return self.stored.codes
        n, k = self.stored.shape
        fmt = find_format(self.stored.spec.format, self.name)
        index = nearest_index(position(self.latent, scale, zero, self.grid), self.grid, self.levels).to(torch.uint8)
        index = index.view(n, -1)[:, :k].cpu().numpy()
        return pack(fmt, np.argsort(self.stored.codebook, kind="stable").astype(np.uint8)[index] if self.grid.table else fmt.indices_to_codes(index))


def rounded(scale, dtype, super_scale):
    """Scales as they are stored: in a float type, or as multiples of their super-scales."""
    return round_scale(scale, dtype) if super_scale is None else round_double(scale, super_scale)


def _gaps(value, grid: Grid, levels):
    """Distances from each value to the levels below and above it; at the ends, as on the other side."""
    if not grid.table:
        return grid.step, grid.step
    gaps = levels[0].diff()
    i = nearest_index(value, grid, levels).long()
    return gaps[(i - 1).clamp(min=0)], gaps[i.clamp(max=len(gaps) - 1)]


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum(dtype=np.float64) / max((a**2).sum(dtype=np.float64), 1e-30))


class Student:
    """`layers`: what is trained; `dense`: all other tensors in f32 (norms are trained too); `config`: the architecture.
    `tables`: the embedding and a head of its own where they are among the layers: asked for by `embedding`, and
    quantized to a grid."""

    def __init__(self, checkpoint: Checkpoint, teacher: Model, device, embedding=False):
        self.checkpoint, self.device = checkpoint, device
        self.config = LlamaConfig.parse(checkpoint.config, checkpoint.path)
        self.same_basis = check_teacher(checkpoint, self.config, teacher)
        self.layers, self.dense, self.trained_norms = {}, {}, set()
        wanted = {name for i in range(self.config.layers) for name in linear_names(i)} | set(TABLES if embedding else ())
        for name in checkpoint.names:
            stored = checkpoint.weight(name) if name in checkpoint.layers and name in wanted else None
            grid = grid_of(stored) if stored is not None else None
            if grid is None:
                self.dense[name] = torch.from_numpy(np.array(checkpoint.tensor(name))).to(device)
                continue
            self.layers[name] = Layer.start(name, stored, grid, self._original(stored, teacher.tensor(name)), device)
        self.tables = [name for name in TABLES if name in self.layers]
        missing = [n for i in range(self.config.layers) for n in (*linear_names(i), *norm_names(i)) if n not in self]
        if missing:
            raise LowbitError(checkpoint.path, f"no tensor '{missing[0]}'", "a llama's tensors")
        self.head = "lm_head.weight" if "lm_head.weight" in checkpoint.names else "model.embed_tokens.weight"

    def _original(self, stored: QuantizedWeight, teacher: np.ndarray) -> np.ndarray | None:
        """The teacher's weight, where the checkpoint has the same one."""
        near = self.same_basis and "smooth" not in self.checkpoint.fit and relative_error(teacher, stored.dequantize()) < 1.0
        return teacher if near else None

    def begin(self, weights: dict[str, QuantizedWeight], teacher: dict) -> None:
        """Layers anew, in other formats than the checkpoint has them in."""
        for name, stored in weights.items():
            self.layers[name] = Layer.start(name, stored, grid_of(stored), self._original(stored, teacher[name].cpu().numpy()), self.device)

    def __contains__(self, name):
        return name in self.layers or name in self.dense

    @property
    def norms(self) -> list[str]:
        return [n for i in range(self.config.layers) for n in norm_names(i)] + ["model.norm.weight"]

    def tensor(self, name):
        """Any tensor as the runtime will decode it, f32."""
        if name not in self.layers:
            return self.dense[name]
        layer = self.layers[name]
        with torch.no_grad():
            weight = layer.decoded()
        return weight.view(layer.stored.shape[0], -1)[:, :layer.stored.shape[1]]

    def tensors_to_write(self) -> dict:
        """For write_checkpoint: trained tensors anew, all others as they were."""
        out = {}
        for name in self.checkpoint.names:
            if name in self.layers:
                out[name] = self.layers[name].to_weight()
            elif name in self.checkpoint.layers:
                out[name] = self.checkpoint.weight(name)
            elif name in self.trained_norms:
                out[name] = ("F32", self.dense[name].cpu().numpy())
            else:
                out[name] = self.checkpoint.dense(name)
        return out

    def state(self) -> dict:
        return {"layers": {n: (x.latent, x.scale, x.zero) for n, x in self.layers.items()},
                "norms": {n: self.dense[n] for n in self.norms}, "trained_norms": sorted(self.trained_norms)}

    def load_state(self, state: dict) -> None:
        for name, (latent, scale, zero) in state["layers"].items():
            layer = self.layers[name]
            layer.latent, layer.scale, layer.zero = latent, scale, zero
        self.dense.update(state["norms"])
        self.trained_norms = set(state["trained_norms"])


def check_teacher(checkpoint: Checkpoint, config: LlamaConfig, teacher: Model) -> bool:
    """Whether the embeddings are one another's: not so for a rotated checkpoint, which computes the same with other
    weights.

    Errors: WrongTeacher when the architectures differ, or the embeddings without a rotation that explains it.
    """
    for field in dataclasses.fields(LlamaConfig):
        got, wanted = getattr(teacher.config, field.name), getattr(config, field.name)
        if field.name != "context" and not math.isclose(got, wanted, rel_tol=1e-5):
            raise WrongTeacher(f"teacher {teacher.path}", f"{field.name} {got}", f"{wanted}, as in {checkpoint.path}",
                               "the teacher is the model that the checkpoint was quantized from")
    name = "model.embed_tokens.weight"
    error = relative_error(teacher.tensor(name), checkpoint.tensor(name))
    if error > 0.5 and "rotation" not in checkpoint.fit:
        raise WrongTeacher(f"teacher {teacher.path}", f"an embedding that differs from the checkpoint's by {100 * error:.0f} %",
                           f"the model that {checkpoint.path} was quantized from")
    return error <= 0.5


class Trainable:
    """The parameters of a student that one stage trains: layers by bank (same grid and group: one tensor), scales,
    zeros and norms.

    mode: full (latent weights), lora (a low-rank addition to them), scales (codes stay as they are); of embedding and
    head always full, of layers whose codes are fixed always scales. trains_double: scales of kind `double` too, which
    otherwise are trained where codes stay.
    """

    def __init__(self, student: Student, names, norms, mode="full", rank=16, kernels=KERNELS, seed=0, trains_double=True):
        self.student, self.mode, self.kernels = student, mode, kernels
        self.banks, self.rank = [], rank
        keyed = {}
        for name in names:
            if name in student.layers:
                layer = student.layers[name]
                key = (layer.grid, layer.latent.shape[1], layer.zero is not None, layer.trains_scale, layer.stored.spec.scale_dtype, name in TABLES,
                       layer.fixed is not None)
                keyed.setdefault(key, []).append(layer)
        generator = torch.Generator().manual_seed(seed)
        for (*_, table, fixed), layers in keyed.items():
            own = "full" if table else "scales" if fixed else mode
            self.banks.append(Bank(layers, own, rank, generator, trains_double or own == "scales"))
        self.norms = {n: torch.nn.Parameter(student.dense[n].clone()) for n in norms}

    def groups(self, lr_of, lr_scale: float, lr_norm: float, lr_tables: float = 0.0, decay: float = 0.0) -> list[dict]:
        """Optimizer groups; lr_of(grid) is the rate of latent weights, lr_tables that of embedding and head. decay: of
        latent weights, towards the teacher's."""
        out = []
        for bank in self.banks:
            if bank.weights:
                rate = lr_tables if bank.layers[0].name in TABLES else lr_of(bank.grid)
                out.append({"params": bank.weights, "lr": rate, "decay": decay, "towards": bank.original() if decay else None})
            if bank.scales:
                out.append({"params": bank.scales, "lr": lr_scale * bank.scale_rate})
        if self.norms:
            out.append({"params": list(self.norms.values()), "lr": lr_norm})
        return out

    def tensors(self, dtype) -> dict:
        """name -> weight in `dtype`, as the graph of this step; norms in f32."""
        out = dict(self.norms)
        for bank in self.banks:
            out.update(bank.tensors(dtype, self.kernels))
        return out

    def store(self) -> None:
        """Back into the student: from here on its tensors are what was trained."""
        with torch.no_grad():
            for bank in self.banks:
                bank.store()
            for name, value in self.norms.items():
                self.student.dense[name] = value.detach().clone()
                self.student.trained_norms.add(name)


class Bank:
    """Layers with the same grid, group and kind of scale as one tensor of group rows."""

    def __init__(self, layers, mode, rank, generator, trains_double=True):
        self.layers, self.mode, first = layers, mode, layers[0]
        self.grid, self.storage = first.grid, TORCH_DTYPES.get(first.stored.spec.scale_dtype)
        # Tables count to 127 and int8 has 16 times the levels of int4: their scales are as much smaller than those of
        # other grids, and so must their steps be.
        tables = [(float(x.levels[0, -1] - x.levels[0, 0]) / (x.grid.count - 1)) for x in layers if x.grid.table]
        self.scale_rate = len(tables) / sum(tables) if tables else min(1.0, COARSE / (self.grid.count - 1))
        self.rows = [len(x.latent) for x in layers]
        device = first.latent.device

        def joined(part, trained):
            tensor = torch.cat([getattr(x, part) for x in layers])
            return torch.nn.Parameter(tensor) if trained else tensor

        self.scale = joined("scale", first.trains_scale and (trains_double or first.super_scale is None))
        if not isinstance(self.scale, torch.nn.Parameter):
            self.scale = torch.cat([x.stored_scale() for x in layers]).detach()
        self.latent = joined("latent", mode == "full")
        self.zero = joined("zero", first.trains_zero) if first.zero is not None else None
        self.super_scale = joined("super_scale", False) if first.super_scale is not None else None
        self.levels = torch.cat([x.levels.expand(rows, -1) for x, rows in zip(layers, self.rows)]) if self.grid.table else None
        self.weights = [self.latent] if mode == "full" else []
        self.scales = [x for x in (self.scale, self.zero) if isinstance(x, torch.nn.Parameter)]
        self.factors = []
        if mode == "lora":
            for x in layers:
                n, k = x.stored.shape
                down = torch.randn(rank, k, generator=generator) / math.sqrt(k)
                self.factors.append([torch.nn.Parameter(down.to(device)), torch.nn.Parameter(torch.zeros(n, rank, device=device))])
            self.weights = [p for pair in self.factors for p in pair]
        if mode == "scales":
            self.value = torch.cat([x.value() for x in layers]).detach()

    def original(self):
        """The teacher's weights as the latent ones lie; None where they are not known or not what is trained."""
        known = self.mode == "full" and all(x.original is not None for x in self.layers)
        return torch.cat([x.original for x in self.layers]) if known else None

    def merged(self):
        """Latent weights with the low-rank additions."""
        if not self.factors:
            return self.latent
        additions = []
        for x, (down, up) in zip(self.layers, self.factors):
            n, k = x.stored.shape
            addition = up @ down
            additions.append(torch.nn.functional.pad(addition, (0, x.latent.numel() // n - k)).view(x.latent.shape))
        return self.latent + torch.cat(additions)

    def scale_and_zero(self):
        scale = rounded(self.scale, self.storage, self.super_scale) if isinstance(self.scale, torch.nn.Parameter) else self.scale
        zero = self.zero
        if isinstance(zero, torch.nn.Parameter) and self.storage != torch.float32:
            zero = zero.half().float().detach() + (zero - zero.detach())
        return scale, zero

    def tensors(self, dtype, kernels) -> dict:
        scale, zero = self.scale_and_zero()
        if self.mode == "scales":
            weight = real(self.value, scale, zero, self.grid)
        else:
            weight = FakeQuantize.apply(self.merged(), scale, zero, self.levels, self.grid, kernels)
        out = {}
        for x, rows in zip(self.layers, torch.split(weight.to(dtype), self.rows)):
            n, k = x.stored.shape
            full = rows.view(n, -1)
            out[x.name] = full if full.shape[1] == k else full[:, :k]
        return out

    def store(self):
        scale, zero = self.scale_and_zero()
        latent = self.merged()
        if self.mode == "scales":
            latent = real(self.value, scale, zero, self.grid)  # in the middle of its cell
        for i, x in enumerate(self.layers):
            part = slice(sum(self.rows[:i]), sum(self.rows[:i + 1]))
            x.latent, x.scale = latent[part].detach().clone(), self.scale[part].detach().clone()
            x.zero = None if zero is None else self.zero[part].detach().clone()
