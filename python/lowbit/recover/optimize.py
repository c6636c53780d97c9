"""The loop that all stages share: AdamW under a cosine schedule, one CUDA graph per step where there is a GPU, a watch
on the loss."""

from __future__ import annotations

import math
import time

import torch

from ..errors import Diverged

WARM_UP_STEPS = 20
EAGER_STEPS = 4  # before a graph is captured; they are ordinary steps
LOG_POINTS = 200


def rate(step: int, steps: int, end: float) -> float:
    """Part of the peak rate: linear to 1 over the first steps, then a cosine down to `end`."""
    return min(1.0, (step + 1) / WARM_UP_STEPS) * (end + (1 - end) * 0.5 * (1 + math.cos(math.pi * step / steps)))


class Watch:
    """Raises Diverged when the loss is no number, or stays at twice the level where it began."""

    def __init__(self, stage: str):
        self.stage, self.first, self.bad = stage, None, 0

    def see(self, step: int, loss: float) -> None:
        hint = "lower --lr and --lr-scales; the checkpoint is untouched"
        if not math.isfinite(loss):
            raise Diverged(f"{self.stage} step {step}", f"a loss of {loss}", "a finite loss", hint)
        self.first = loss if self.first is None else self.first
        self.bad = self.bad + 1 if loss > 2 * self.first + 1e-6 else 0
        if self.bad >= 3:
            raise Diverged(f"{self.stage} step {step}", f"a loss of {loss:.4g}", f"one that falls from {self.first:.4g}", hint)


class Optimizer:
    """compute(*inputs) -> loss runs forward and backward. groups: dicts of params and lr; with `towards` (a tensor as
    the group's one parameter) and `decay`, that parameter is drawn there by lr * decay of its distance in each step:
    decoupled weight decay, but not to zero.

    On CUDA with graph=True the whole step (gradients, clipping, AdamW) is captured once and replayed.
    """

    def __init__(self, compute, groups, steps: int, stage: str, graph=False, clip=1.0, end=0.05):
        self.end = end
        self.compute, self.steps, self.stage, self.clip = compute, steps, stage, clip
        self.parameters = [p for group in groups for p in group["params"]]
        self.device = self.parameters[0].device
        drawn = [(at, group.pop("decay", 0.0), group.pop("towards", None)) for at, group in enumerate(groups)]
        self.drawn = [entry for entry in drawn if entry[2] is not None and entry[1]]
        self.peaks = [group["lr"] for group in groups]
        cuda = self.device.type == "cuda"
        if cuda:
            groups = [{**group, "lr": torch.tensor(float(group["lr"]), device=self.device)} for group in groups]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda, capturable=cuda)
        self.graph = self.static = None
        self.use_graph = graph and cuda
        self.stream = torch.cuda.Stream() if cuda else None
        self.total = torch.zeros((), device=self.device, dtype=torch.float64)
        self.step_number, self.counted, self.eager, self.curve = 0, 0, 0, []
        self.watch = Watch(stage)

    def _set_rate(self):
        for group, peak in zip(self.adam.param_groups, self.peaks):
            value = peak * rate(self.step_number, self.steps, self.end)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def _run(self, *inputs):
        self.adam.zero_grad(set_to_none=True)
        loss = self.compute(*inputs)
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.adam.step()
        with torch.no_grad():
            for at, decay, towards in self.drawn:
                group = self.adam.param_groups[at]
                group["params"][0].add_((towards - group["params"][0]) * (group["lr"] * decay))
        self.total += loss.detach()

    def step(self, *inputs) -> None:
        self._set_rate()
        if self.stream is None:
            self._run(*inputs)
        else:
            self._cuda_step(inputs)
        self.step_number += 1
        self.counted += 1
        if self.step_number % max(1, self.steps // LOG_POINTS) == 0 or self.step_number == self.steps:
            loss = float(self.total) / self.counted
            self.total.zero_()
            self.counted = 0
            self.curve.append([self.step_number, loss])
            self.watch.see(self.step_number, loss)

    def _cuda_step(self, inputs):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if not self.use_graph or self.eager < EAGER_STEPS:
                self._run(*inputs)
                self.eager += 1
            else:
                if self.graph is None:
                    self.static = [x.clone() for x in inputs]
                    self.graph = torch.cuda.CUDAGraph()
                    self.adam.zero_grad(set_to_none=True)
                    torch.cuda.synchronize()
                    with torch.cuda.graph(self.graph, stream=self.stream):
                        self._run(*self.static)
                for static, x in zip(self.static, inputs):
                    static.copy_(x)
                self.graph.replay()
        torch.cuda.current_stream().wait_stream(self.stream)

    def state(self) -> dict:
        return {"adam": self.adam.state_dict(), "parameters": [p.detach() for p in self.parameters], "step": self.step_number,
                "counted": self.counted, "total": self.total, "curve": self.curve, "first": self.watch.first, "bad": self.watch.bad}

    def load_state(self, state: dict) -> None:
        rates = [group["lr"] for group in self.adam.param_groups]
        self.adam.load_state_dict(state["adam"])
        for group, lr in zip(self.adam.param_groups, rates):
            group["lr"] = lr
        with torch.no_grad():
            for p, value in zip(self.parameters, state["parameters"]):
                p.copy_(value)
        self.total.copy_(state["total"])
        self.step_number, self.counted, self.curve = state["step"], state["counted"], list(state["curve"])
        self.watch.first, self.watch.bad = state["first"], state["bad"]


class Clock:
    """Seconds since it was made, for reports."""

    def __init__(self):
        self.start = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self.start
