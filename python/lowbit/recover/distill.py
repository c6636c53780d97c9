"""Distillation: all trainable parts at once, against the KL divergence from the teacher's logits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .. import fake_quant
from ..llama import block, hidden_states

PASS = 4  # sequences of a pass of evaluation
LOGIT_ROWS = 4096  # positions whose logits are in memory at once
COMPILED = 64  # forms of a function, after which the compiler gives up: by default it is 8
SCORED = 8  # tokens whose log-probabilities are summed for the loss on scores
MOST = 8.0  # nats of such a sum's error, beyond which the loss is linear
RATES = ((3, 1e-3), (4, 7e-4), (8, 4e-4), (16, 1.2e-4), (256, 3e-5))  # as in blocks.py


def rate_of(grid) -> float:
    return next(rate for count, rate in RATES if grid.count <= count)


def rates(grids, lr: float | None, times: float = 1.0):
    """grid -> peak rate of latent weights: `lr` for those of the fewest levels among `grids`, less for others as in
    RATES; without `lr` RATES times `times`."""
    factor = lr / max(map(rate_of, grids), default=1.0) if lr else times
    return lambda grid: factor * rate_of(grid)


def kl_and_gradient(teacher_h, student_h, teacher_head, student_head, weight: float, of_head: bool, soft: float = 0.0, heat: float = 1.0,
                    score: float = 0.0, said=None):
    """Sum of KL(teacher || student) over rows [R, hidden], and the gradients of weight * loss for student_h and, where
    asked, for student_head. The loss is that sum, but for a part `soft` of it: heat^2 times the same at a temperature
    of `heat`, where unlikely tokens count for more.

    With `score`, that times Huber's loss of the scores' errors is added: of what the student's summed log-probabilities
    of every SCORED tokens in turn differ from the teacher's. said [R]: the tokens that follow the rows, -1 where none
    does; R is a multiple of SCORED.
    """
    a, b = F.linear(teacher_h, teacher_head).float(), F.linear(student_h, student_head).float()
    teacher, student = a.log_softmax(-1), b.log_softmax(-1)
    p = teacher.exp()
    kl = (p * (teacher - student)).sum()
    difference = student.exp() - p
    if soft:
        difference = (1 - soft) * difference + soft * heat * ((b / heat).softmax(-1) - (a / heat).softmax(-1))
    if score:
        known, at = said >= 0, said.clamp(min=0)[:, None]
        errors = ((student - teacher).gather(-1, at)[:, 0] * known).view(-1, SCORED).sum(-1)
        pull = (score * errors.clamp(-MOST, MOST).repeat_interleave(SCORED) * known)[:, None]
        difference = (difference - pull * student.exp()).scatter_add(-1, at, pull)
    gradient = (difference * weight).to(student_h.dtype)
    return kl, gradient @ student_head, gradient.T @ student_h if of_head else None


class Kernels:
    """The functions that a step is made of, compiled where asked; when compiling fails they run as they are.

    A mix of formats has banks of as many sizes as blocks have mixes: weights are compiled once for each grid and group,
    for any number of rows."""

    def __init__(self, compiled: bool, note):
        self.compiled, self.note = compiled, note
        self.block, self.kl = self._wrap(block), self._wrap(kl_and_gradient)
        self.fake_quant = tuple(self._wrap(function, any_rows=True) for function in (fake_quant._forward, fake_quant._backward))

    def _wrap(self, function, any_rows=False):
        if not self.compiled:
            return function
        torch._dynamo.config.cache_size_limit = COMPILED
        quick = torch.compile(function, dynamic=False)
        state = {"ok": True}

        def call(*arguments):
            if state["ok"]:
                for tensor in arguments if any_rows else ():
                    if isinstance(tensor, torch.Tensor):
                        torch._dynamo.maybe_mark_dynamic(tensor, 0)
                try:
                    return quick(*arguments)
                except Exception as error:  # any part of the compiler may be missing on a machine
                    state["ok"] = False
                    self.note(f"not compiled: {function.__name__}: {str(error).splitlines()[0][:120]}")
            return function(*arguments)

        return call


class Distillation:
    """compute(tokens [B, T]) -> mean KL per position; gradients are in the trainable's parameters."""

    def __init__(self, trainable, teacher: dict, teacher_head: str, dtype, kernels: Kernels, soft: float = 0.0, heat: float = 1.0,
                 score: float = 0.0):
        student, self.weighed = trainable.student, (soft, heat, score)
        self.trainable, self.config, self.dtype, self.kernels = trainable, student.config, dtype, kernels
        self.teacher = {n: w.to(dtype) for n, w in teacher.items() if w.ndim == 2}
        self.teacher |= {n: w for n, w in teacher.items() if w.ndim != 2}
        self.fixed = {n: student.tensor(n).to(dtype) for n in student.checkpoint.names if student.tensor(n).ndim == 2}
        self.teacher_head, self.student_head = self.teacher[teacher_head], self.fixed[student.head]

    def compute(self, tokens):
        with torch.no_grad():
            wanted = hidden_states(tokens, self.config, self.teacher.__getitem__, self.dtype, self.kernels.block).flatten(0, 1)
            said = F.pad(tokens[:, 1:], (0, 1), value=-1).flatten()
        weights = self.trainable.tensors(self.dtype)
        got = hidden_states(tokens, self.config, lambda n: weights[n] if n in weights else self.fixed[n], self.dtype,
                            self.kernels.block).flatten(0, 1)
        head = weights.get(self.trainable.student.head)
        trained, head = head is not None, self.student_head if head is None else head
        gradient = torch.empty_like(got)
        of_head = torch.zeros(head.shape, device=head.device) if trained else None
        total, rows = torch.zeros((), device=got.device), len(got)
        with torch.no_grad():
            for at in range(0, rows, LOGIT_ROWS):
                part = slice(at, at + LOGIT_ROWS)
                kl, gradient[part], more = self.kernels.kl(wanted[part], got[part], self.teacher_head, head, 1.0 / rows, trained, *self.weighed, said[part])
                total += kl
                if trained:
                    of_head += more
        if trained:
            torch.autograd.backward([got, head], [gradient, of_head.to(head.dtype)])
        else:
            got.backward(gradient)
        return total / rows


@torch.no_grad()
def evaluate(student, teacher: dict, teacher_head: str, sequences, device) -> dict:
    """Mean KL from the teacher, perplexity and top-1 agreement of the student as the runtime decodes it, f32, on
    sequences [n, T]."""
    weights = {n: student.tensor(n) for n in student.checkpoint.names}
    kl = nll = same = count = 0
    for row in torch.from_numpy(sequences).to(device).split(PASS):
        wanted = F.linear(hidden_states(row, student.config, teacher.__getitem__, torch.float32), teacher[teacher_head])
        got = F.linear(hidden_states(row, student.config, weights.__getitem__, torch.float32), weights[student.head])
        wanted, got = wanted.log_softmax(-1), got.log_softmax(-1)
        kl += float((wanted.exp() * (wanted - got)).sum(dtype=torch.float64))
        nll -= float(got[:, :-1].gather(-1, row[:, 1:, None]).sum())
        same += int((wanted.argmax(-1) == got.argmax(-1)).sum())
        count += row.numel()
    return {"kl": kl / count, "ppl": math.exp(min(700.0, nll / (count - len(sequences)))), "top1": same / count}
