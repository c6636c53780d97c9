"""One run of recovery: options in, a checkpoint and its loss curve out; what is under way is saved and continued."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch

from ..checkpoint import Checkpoint, side_files, write_checkpoint
from ..errors import LowbitError
from ..llama import linear_names
from ..replace_directory import check_replaceable
from ..sources import file_sha256, open_model
from ..tokens import Tokenizer
from .arguments import MIX, shares
from .blocks import BlockReconstruction
from .data import PROMPT, Texts, mixed_batch, random
from .distill import SCORED, Distillation, Kernels, evaluate, rates
from .optimize import Clock, Optimizer
from .plot import write_curve_png
from .sampling import BATCH, Samples, beginnings_of, sample
from .student import Student, Trainable, relative_error
from .tables import in_tables

# Options in which a saved state may differ and still be continued.
# Names of options in states of earlier versions.
SAVED_AS = {"sequence_length": "window", "latent_shrink": "settle", "swap_spans": "exchange", "block_sequences": "block_windows", "held_out": "held"}
NOT_OF_THE_RESULT = {"out", "lowbit", "threads", "force", "json", "quiet", "save_every", "stop_after", "samples", "keep_stages"}


@dataclasses.dataclass
class Options:
    """See `python -m lowbit.recover --help`."""

    checkpoint: str
    teacher: str
    data: list
    out: str
    tokens: int = 20_000_000
    method: tuple = ("blocks", "full")
    to_tables: str | None = None
    sample: int = 4_000_000
    sample_temperature: tuple = (1.0, 1.0)
    sample_min_p: tuple = (0.0, 0.06)
    sample_mix: dict = dataclasses.field(default_factory=lambda: shares(MIX))
    sample_openings: str | None = None
    sample_words: str | None = None
    text_share: float = 0.3
    sequence_length: int = 512
    batch: int = 16
    lr: float | None = None
    lr_times: float = 1.0
    lr_scales: float = 2e-5
    lr_norms: float = 2e-4
    lr_end: float = 0.0
    latent_shrink: float = 0.6
    decay: float = 0.0
    soft_share: float = 0.5
    soft_temperature: float = 4.0
    swap_spans: float = 0.0
    score_weight: float = 0.0
    train_embedding: bool = False
    lr_embedding: float = 3e-5
    rank: int = 16
    block_steps: int = 300
    block_sequences: int = 512
    block_text_share: float = 1.0
    block_lr: float | None = None
    block_lr_scales: float = 1e-4
    seed: int = 0
    device: str = "auto"
    graph: bool = True
    compile: bool = True
    samples: str | None = None
    held_out: str | None = None
    lowbit: str | None = None
    threads: int | None = None
    save_every: float = 120.0
    stop_after: int | None = None
    keep_stages: bool = False
    force: bool = False
    json: bool = False
    quiet: bool = False


class Stopped(Exception):
    """The run was asked to stop; its state is saved."""


class Session:
    def __init__(self, options: Options):
        self.options, self.clock = options, Clock()
        name = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        if name != "cpu" and not (name.startswith("cuda") and torch.cuda.is_available()):
            raise LowbitError("--device", f"'{name}' and no such device", "cpu, or cuda where torch finds one")
        self.device = torch.device(name)
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        torch.backends.cuda.matmul.allow_tf32 = False
        if options.threads:
            torch.set_num_threads(options.threads)
        check_replaceable(Path(options.out), options.force)
        self.checkpoint = Checkpoint(options.checkpoint)
        teacher = open_model(options.teacher)
        self.student = Student(self.checkpoint, teacher, self.device, options.train_embedding)
        if options.train_embedding and not self.student.tables:
            raise LowbitError(f"{self.checkpoint.path}: --train-embedding", "an embedding that is not quantized to a grid", "one in int8 or fewer bits")
        config = self.student.config
        needs_text = not all(str(f).endswith(".npy") for f in options.data)
        tokenizer = Tokenizer(options.checkpoint, options.lowbit) if needs_text else None
        self.sequence_length = min(options.sequence_length, config.context)
        if len(tokenizer.prefix if tokenizer else []) + PROMPT >= self.sequence_length:
            raise LowbitError("--sequence-length (--window)", self.sequence_length, f"more than {PROMPT} tokens")
        if options.score_weight and self.sequence_length % SCORED:
            raise LowbitError("--score-weight", f"sequences of {self.sequence_length} tokens", f"a multiple of {SCORED}", "--sequence-length")
        self.texts = Texts(options.data, tokenizer, self.sequence_length, config.vocab)
        self.sampled = None
        self.teacher_head, self.teacher_sha = teacher.head, teacher.sha256()
        wanted = set(self.checkpoint.names) | {teacher.head}
        self.teacher = {n: torch.from_numpy(np.array(teacher.tensor(n))).to(self.device) for n in teacher.names if n in wanted}
        self.kernels = Kernels(options.compile and self.device.type == "cuda", self.note)
        self.folder = Path(str(options.out).rstrip("/") + ".state")
        self.last_save, self.steps_run = time.monotonic(), 0
        self.report = {"stages": [], "device": self._device_name(), "seed": options.seed}

    def _device_name(self):
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"

    def note(self, text: str) -> None:
        if not self.options.quiet:
            print(f"[{self.clock.seconds():6.1f} s] {text}", file=sys.stderr, flush=True)

    # ---- saving and continuing ----

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of everything that the result depends on."""
        options = {SAVED_AS.get(k, k): v for k, v in dataclasses.asdict(self.options).items() if k not in NOT_OF_THE_RESULT}
        texts = hashlib.sha256(b"".join(p.tobytes() for p in (*self.texts.parts, self.texts.held))).hexdigest()
        weights = [file_sha256(f) for f in sorted(self.checkpoint.path.glob("*.safetensors"))]
        described = [options, texts, weights, self.teacher_sha, self.device.type]
        return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()

    def load_state(self) -> dict:
        file, nothing = self.folder / "state.pt", {"stage": 0, "block": 0, "optimizer": None}
        if not file.exists():
            return nothing
        try:
            state = torch.load(file, map_location=self.device, weights_only=True)
        except Exception as error:  # torch raises many kinds for a file that is not whole
            self.note(f"{file}: {str(error).splitlines()[0][:100]}: starting anew")
            return nothing
        if state["fingerprint"] != self.fingerprint:
            self.note(f"{self.folder} is of another run: starting anew")
            return nothing
        self.begin_tables()
        self.student.load_state(state["student"])
        self.report["stages"], self.report["before"] = state["stages"], state["before"]
        self.note(f"continuing {self.options.method[state['stage']]}" if state["stage"] < len(self.options.method) else "continuing")
        return state

    def save(self, stage: int, block: int = 0, optimizer: Optimizer | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"fingerprint": self.fingerprint, "stage": stage, "block": block, "student": self.student.state(),
                 "optimizer": optimizer.state() if optimizer else None, "stages": self.report["stages"],
                 "before": self.report["before"]}
        torch.save(state, self.folder / "state.tmp")
        (self.folder / "state.tmp").replace(self.folder / "state.pt")
        self.last_save = time.monotonic()

    def _between_steps(self, save) -> None:
        self.steps_run += 1
        stop = self.options.stop_after is not None and self.steps_run >= self.options.stop_after
        if stop or time.monotonic() - self.last_save > self.options.save_every:
            save()
        if stop:
            raise Stopped(f"stopped after {self.steps_run} steps; the same command continues")

    # ---- stages ----

    def begin_tables(self) -> None:
        """What --to-tables asks for, once."""
        options = self.options
        chosen = {n: x.stored for n, x in self.student.layers.items() if x.fixed is not None and x.trains_scale and options.to_tables and re.search(options.to_tables, n)}
        if not chosen:
            return
        if not self.student.same_basis or "smooth" in self.checkpoint.fit:
            raise LowbitError(f"{self.checkpoint.path}: --to-tables", "a checkpoint that was rotated or smoothed", "one whose layers are the teacher's")
        self.student.begin(in_tables(chosen, options.teacher, options.data, options.lowbit, options.threads), self.teacher)
        self.note(f"{len(chosen)} layers on a trellis begin anew in tables of the same bits")

    def samples(self):
        """Samples of the teacher, kept in a file; None where none are asked for."""
        count = self.options.sample // self.sequence_length
        if self.sampled is not None or not count:
            return self.sampled
        file = Path(self.options.samples) if self.options.samples else self.folder / "samples.npz"
        self.sampled = Samples.load(file, self.sequence_length, count)
        if self.sampled is None:
            self.sampled = self._sample(count)
            self.sampled.save(file)
        if self.options.held_out:
            held = Samples.load(Path(self.options.held_out), self.sequence_length)
            if held is None:
                raise LowbitError(self.options.held_out, f"no file of sequences of {self.sequence_length} tokens", "what `lowbit.sample --sequence-length` wrote")
            self.sampled.hold(held)
        return self.sampled

    def _sample(self, count: int):
        options, clock, student = self.options, Clock(), self.student
        beginnings = beginnings_of(options.sample_mix, self.checkpoint.path, self.texts, self.texts.prefix, student.config.vocab, options.lowbit,
                                   options.sample_openings, options.sample_words)
        sampled = sample(self.teacher.__getitem__, student.config, self.teacher_head, count, beginnings, self.sequence_length, options.seed,
                         options.sample_temperature, options.sample_min_p, self.dtype, self.device, BATCH[self.device.type], self.note)
        kinds = {kind: int((sampled.kinds == kind).sum()) for kind in beginnings.mix}
        self.report["sampling"] = {"tokens": int(sampled.sequences.size), "sequences": kinds, "windows": kinds, "seconds": clock.seconds()}
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return sampled

    def run_blocks(self, index: int, first: int) -> None:
        options, clock = self.options, Clock()
        if not self.student.same_basis:
            raise LowbitError(f"{self.checkpoint.path}: blocks", "a rotated checkpoint, whose blocks have no counterpart in the teacher",
                              "one that was not rotated", "--method full")
        available = max(1, sum(map(len, self.texts.parts)) // self.sequence_length)
        rng, count = random(options.seed, 5), options.block_sequences
        sampled = self.samples() if options.block_text_share < 1 else None
        written = 0 if sampled is None else min(len(sampled.train), round(count * (1 - options.block_text_share)))
        sequences = self.texts.train(rng, max(1, min(count - written, available)))
        if written:
            sequences = np.concatenate([sequences, sampled.train[rng.choice(len(sampled.train), written, replace=False)].astype(np.int64)])
        # of this stage alone: f32 weights, a tenth of a percent of noise in products
        torch.backends.cuda.matmul.allow_tf32 = True
        work = BlockReconstruction(self.student, self.teacher, sequences, options.block_steps, self.kernels, options,
                                   self.note)
        stage = self.report["stages"][index] if len(self.report["stages"]) > index else None
        if stage is None:
            stage = {"method": "blocks", "tokens": int(sequences.size), "steps": options.block_steps, "blocks": [], "seconds": 0.0}
            self.report["stages"].append(stage)
        before = stage["seconds"]
        for block in range(first):
            work.advance(block)
        for block in range(first, self.student.config.layers):
            stage["blocks"].append(work.train(block))
            stage["seconds"] = before + clock.seconds()
            done = stage["blocks"][-1]
            self.note(f"block {block}: " + (f"loss {done['first']:.4f} -> {done['last']:.4f}" if done["rate"] else "left as it was"))
            self._between_steps(lambda at=block + 1: self.save(index, at))
        torch.backends.cuda.matmul.allow_tf32 = False

    def run_distillation(self, index: int, method: str, saved) -> None:
        options, clock, student = self.options, Clock(), self.student
        samples = self.samples()
        if method == "full" and options.latent_shrink < 1 and not saved:
            for layer in student.layers.values():
                layer.shrink_latent(options.latent_shrink)
        names = [n for i in range(student.config.layers) for n in linear_names(i)] + student.tables
        trainable = Trainable(student, names, student.norms, method, options.rank, self.kernels.fake_quant, options.seed,
                              trains_double=False)
        work = Distillation(trainable, self.teacher, self.teacher_head, self.dtype, self.kernels, options.soft_share, options.soft_temperature,
                            options.score_weight)
        steps = max(1, options.tokens // (options.batch * self.sequence_length))
        lr_of = rates([bank.grid for bank in trainable.banks if bank.layers[0].name not in student.tables], options.lr, options.lr_times)
        groups = trainable.groups(lr_of, options.lr_scales, options.lr_norms, options.lr_embedding, options.decay)
        optimizer = Optimizer(work.compute, groups, steps, method, graph=options.graph, end=options.lr_end)
        if saved:
            optimizer.load_state(saved)
        first, last_note = optimizer.step_number, time.monotonic()
        for step in range(first, steps):
            batch = mixed_batch(self.texts, samples.train if samples else None, options.text_share, options.seed, step, options.batch, options.swap_spans)
            optimizer.step(torch.from_numpy(batch).to(self.device))
            if optimizer.curve and time.monotonic() - last_note > 5:
                last_note = time.monotonic()
                rate = (step + 1 - first) / clock.seconds()
                self.note(f"{method}: step {step + 1} of {steps}, KL {optimizer.curve[-1][1]:.4f}, "
                          f"{rate * options.batch * self.sequence_length:.0f} tokens/s, {(steps - step - 1) / rate:.0f} s left")
            self._between_steps(lambda: self.save(index, 0, optimizer))
        trainable.store()
        self.report["stages"].append({"method": method, "tokens": steps * options.batch * self.sequence_length, "steps": steps,
                                      "curve": optimizer.curve, "seconds": clock.seconds()})

    # ---- the whole ----

    def run(self) -> dict:
        options = self.options
        held = self.texts.held
        state = self.load_state()
        if set(options.method) != {"blocks"} or options.block_text_share < 1:
            self.samples()  # some are held out, and measured from the beginning
        if "before" not in self.report:
            self.report["before"] = self._measure("before")
        self.begin_tables()
        if fixed := sum(layer.fixed is not None for layer in self.student.layers.values()):
            self.note(f"{fixed} layers on a trellis: their codes stay, their scales are trained")
        for index in range(state["stage"], len(options.method)):
            method, here = options.method[index], index == state["stage"]
            if method == "blocks":
                self.run_blocks(index, state["block"] if here else 0)
            else:
                self.run_distillation(index, method, state["optimizer"] if here else None)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            stage = self.report["stages"][index]
            stage["after"] = self._measure(method)
            if index + 1 < len(options.method):
                self.save(index + 1)
                if options.keep_stages:
                    self.write_checkpoint(f"{str(options.out).rstrip('/')}-{method}", options.method[:index + 1])
        self.report["after"] = self.report["stages"][-1]["after"]
        self.report["held_windows"] = len(held)
        before = self.report["before"]
        if not options.force and not self.report["after"]["kl_mean"] <= before["kl_mean"]:
            raise LowbitError(options.out, f"a KL divergence of {self.report['after']['kl_mean']:.4g} on held-out sequences after training, "
                              f"{before['kl_mean']:.4g} before", "less than before", "lower --lr, more --tokens; --force writes it anyhow")
        self.write()
        return self.report

    def _measure(self, what: str) -> dict:
        """Of the held-out text; `kinds`: KL of held-out sampled sequences of each kind; `kl_mean`: of the text's and
        theirs."""

        def on(sequences):
            return evaluate(self.student, self.teacher, self.teacher_head, sequences, self.device)

        result = on(self.texts.held)
        kinds = {kind: on(sequences)["kl"] for kind, sequences in self.sampled.held.items()} if self.sampled else {}
        result |= {"kinds": kinds, "kl_mean": float(np.mean([result["kl"], *kinds.values()]))}
        others = "".join(f", {kind} {kl:.4f}" for kind, kl in kinds.items())
        self.note(f"{what}: held-out text: KL {result['kl']:.4f}, PPL {result['ppl']:.2f}, top-1 {100 * result['top1']:.1f} %"
                  + (f"; sampled: KL{others[1:]}; mean {result['kl_mean']:.4f}" if others else ""))
        return result

    def write_checkpoint(self, out: str, method: tuple) -> None:
        options, c = self.options, self.checkpoint
        tensors = self.student.tensors_to_write()
        quality = dict(c.quality)
        for name in self.student.layers:
            if name in self.teacher:
                error = relative_error(self.teacher[name].cpu().numpy(), tensors[name].dequantize())
                quality[name.removesuffix(".weight")] = {"rel_error": error}
        errors = [of["rel_error"] for of in quality.values() if "rel_error" in of]
        self.report["weight_error"] = float(np.mean(errors)) if errors else None
        begun = {} if options.to_tables is None else {"to_tables": options.to_tables}
        recovery = {"method": list(method), **begun, "tokens": options.tokens, "sampled": options.sample, "seed": options.seed,
                    "teacher_sha256": self.teacher_sha}
        write_checkpoint(out, c.config, tensors, fit={**c.fit, "recovery": recovery}, quality=quality, side_files=side_files(c.path),
                         overwrite=options.force)

    def write(self) -> None:
        options = self.options
        self.write_checkpoint(options.out, options.method)
        self.report["seconds"] = self.clock.seconds()
        base = str(options.out).rstrip("/")
        Path(base + ".loss.json").write_text(json.dumps(self.report, indent=1) + "\n")
        if not write_curve_png(base + ".loss.png", self.report):
            self.note("no loss curve as PNG: pip install matplotlib")
        shutil.rmtree(self.folder, ignore_errors=True)
