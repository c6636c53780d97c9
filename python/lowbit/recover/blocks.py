"""Block reconstruction: the latent weights, scales and norms of one block at a time, trained so that the block's output
on what the quantized blocks before it give is the one that the teacher's stream has there."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..errors import Diverged, LowbitError
from ..llama import block, linear_names, norm_names, rotation_table
from .data import random
from .optimize import Optimizer
from .student import Trainable

# Peak rates by the number of levels: few levels lie far apart, and latent weights must travel from one to the next.
RATES = ((3, 4e-3), (4, 2e-3), (8, 1e-3), (16, 5e-4), (256, 1e-4))
BATCH = 16  # sequences of a step
ATTEMPTS = 3
PASS = 16  # sequences of a pass without gradients


def rate_of(grid) -> float:
    return next(rate for count, rate in RATES if grid.count <= count)


def _forward(sequences, norms, linears, cos, sin, config):
    with torch.no_grad():
        return torch.cat([block(x, norms, linears, cos, sin, config.head_dim, config.eps) for x in sequences.split(PASS)])


def position_weights(x):
    """[B, T, 1], 1 / mean square of each position of the teacher's stream [B, T, hidden]. The next norm divides by that
    size; unweighted, the few positions that this kind of model makes hundreds of times larger than the rest (the sink
    of attention) would be all that counts."""
    return 1.0 / (x**2).mean(-1, keepdim=True).clamp(min=1e-12)


class BlockReconstruction:
    """Blocks 0, 1, .. of a student, each by train(); advance() passes one that is done already. sequences: tokens [n,
    T]."""

    def __init__(self, student, teacher: dict, sequences, steps: int, kernels, options, note):
        self.student, self.teacher, self.steps, self.kernels = student, teacher, steps, kernels
        self.options, self.note = options, note
        self.config = student.config
        device = student.device
        tokens = torch.from_numpy(sequences).to(device)
        self.cos, self.sin = rotation_table(self.config, tokens.shape[1], device, torch.float32)
        self.quantized = F.embedding(tokens, student.tensor("model.embed_tokens.weight"))
        self.original = F.embedding(tokens, teacher["model.embed_tokens.weight"])

    def _weights(self, tensor, layer):
        return [tensor(n) for n in norm_names(layer)], [tensor(n) for n in linear_names(layer)]

    def advance(self, layer: int) -> None:
        """Both streams through a block that is done."""
        for stream, tensor in (("quantized", self.student.tensor), ("original", self.teacher.__getitem__)):
            setattr(self, stream, _forward(getattr(self, stream), *self._weights(tensor, layer), self.cos, self.sin, self.config))

    def train(self, layer: int) -> dict:
        """Trains one block and moves both streams on. The loss is the error of the output relative to what the
        teacher's block adds, both in parts of each position's size.

        A block whose training diverges is trained again at a quarter of the rate, and left as it was when that fails
        twice.
        """
        wanted = _forward(self.original, *self._weights(self.teacher.__getitem__, layer), self.cos, self.sin, self.config)
        weight = position_weights(wanted)
        size = float((weight * (wanted - self.original) ** 2).mean())
        if not size > 0 or size == float("inf"):
            raise LowbitError(f"block {layer}", f"a teacher whose block adds {size}", "activations that are numbers and change")
        report = {"block": layer, "first": None, "last": None, "rate": 0.0}
        for attempt in range(ATTEMPTS):
            rate = 4.0**-attempt
            try:
                curve = self._attempt(layer, wanted, size, rate)
            except Diverged as error:
                self.note(f"{error.where}: {error.got}; rate {rate:g}")
                continue
            report |= {"first": curve[0][1], "last": curve[-1][1], "rate": rate}
            break
        norm, linear = self._weights(self.student.tensor, layer)
        self.quantized = _forward(self.quantized, norm, linear, self.cos, self.sin, self.config)
        self.original = wanted
        return report

    def _attempt(self, layer: int, wanted, size: float, rate: float) -> list:
        """The loss curve of one training, whose result is then in the student. Errors: Diverged, and the student is as
        before."""
        names, norms, options = linear_names(layer), norm_names(layer), self.options
        trainable = Trainable(self.student, names, norms, kernels=self.kernels.fake_quant)
        fixed = {n: self.student.tensor(n) for n in names}

        def compute(x, y):
            weights = trainable.tensors(torch.float32)
            linears = [weights[n] if n in weights else fixed[n] for n in names]
            got = self.kernels.block(x, [weights[n] for n in norms], linears, self.cos, self.sin, self.config.head_dim,
                                     self.config.eps)
            loss = (position_weights(y) * (got - y) ** 2).mean() / size
            loss.backward()
            return loss

        groups = trainable.groups(lambda grid: rate * (options.block_lr or rate_of(grid)), rate * options.block_lr_scales, rate * options.block_lr_scales,
                                  decay=options.decay)
        optimizer = Optimizer(compute, groups, self.steps, f"block {layer}", graph=options.graph, clip=None)
        batch = min(BATCH, len(wanted))
        for step in range(self.steps):
            pick = torch.from_numpy(random(options.seed, 4, layer, step).integers(0, len(wanted), batch)).to(wanted.device)
            optimizer.step(self.quantized[pick], wanted[pick])
        trainable.store()
        return optimizer.curve
