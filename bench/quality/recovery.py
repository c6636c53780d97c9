#!/usr/bin/env python3
"""The gain of recovery by training on the default model: quantizes, trains, measures, writes one JSON.

  recovery.py ROW... [--lowbit BIN] [--data DIR] [--work DIR] [--out bench/results/recovery.json] [--calib-tokens 64K]
      [--sample 10M] [--gpus 1] [--jobs 1]
  ROW: FORMAT:GROUP:TOKENS[:OPTION=VALUE...], e.g. int2odd:64:20M or bpw2.5:64:20M:lr=1e-3; options are those of
      lowbit.recover; calib-tokens, scale and fit of `lowbit quantize` (scale=double, fit=align; fit=noise-0.09 with
      format int8: noise of that size, as noise.py adds it); and mix (NAME of a --mix: what its sampled sequences begin
      with)

Calibrated and trained on WikiText-2's train text and on text sampled from the model itself, measured on WikiText-2's
test text (perplexity by llama.cpp's method with exact f32 activations, KL divergence and top-1 agreement against the
file's own weights) and on the TinyStories excerpt, which nothing was trained on. What the blocks of a row end with is
measured too, and what choices.py says of each row, right after its training. The host's cores quantize and measure
(`--jobs` at a time) while the GPUs train. Rows already in the JSON are kept.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from checkpoints import Checkpoints
from jobs import ROOT, Bench, Pool, count, gpu_environment, say
from noise import write_noisy

sys.path.insert(0, str(ROOT / "python"))
from lowbit.recover.arguments import KINDS  # noqa: E402

QUANTIZE, MEASURE_TRAINED, ANSWER, MEASURE_START = 1, 2, 3, 4  # what the host does first
SEQUENCE = 512
OF_THE_START = ("calib-tokens=", "scale=", "fit=", "recipe=")  # options of a row that `lowbit quantize` takes
HELD_OUT = 32  # sequences of each kind, sampled apart from all that is trained on, the same for all rows
HELD_SEED = 1000
# what choices.py makes its pseudo choices of, sampled apart too
CHOICES, CHOICE_SEQUENCE, CHOICE_MIX = 2048, 128, "word=3,chat=1,opening=1,begin=1"


class Recovery:
    def __init__(self, bench: Bench, host: Pool, gpus: int, per_gpu: int, out: Path, calib_tokens: int, sample: str,
                 mixes: dict, later: float = 0.0, tasks: Path | None = None, measures_starts: bool = True):
        self.bench, self.host, self.gpus, self.out, self.calib_tokens, self.sample = bench, host, gpus, out, calib_tokens, sample
        self.devices, self.lock, self.starts, self.jobs = [Pool(per_gpu, 1, later) for _ in range(gpus)], threading.Lock(), {}, []
        self.tasks = Checkpoints(bench, host, tasks) if tasks else None
        self.report = {**(json.loads(out.read_text()) if out.exists() else {"rows": []}), **bench.machine(), "text": "WikiText-2 train",
                       "sample": sample, "mixes": mixes}
        self.measures_starts, self.mixes = measures_starts, mixes
        self.teacher, self.held, self.choices = bench.work / "teacher", bench.work / "held.npz", bench.work / "choices.npz"

    def samples(self, mix: str) -> Path:
        return self.bench.work / f"samples-{mix}.npz"

    def on(self, place: int, number: int, call, *arguments):
        """call(GPU, ...) as one of its jobs; the GPU is `place`, counted around."""
        gpu = place % self.gpus
        return self.devices[gpu].submit(number, call, gpu, *arguments)

    def prepare(self) -> None:
        """Sequences sampled from the teacher by each mix, a part on each GPU, and those that all rows are compared
        on."""
        each, jobs = -(-count(self.sample) // SEQUENCE // self.gpus) * SEQUENCE, []
        wanted = [mix for mix in self.mixes if not self.samples(mix).exists()]
        if not self.held.exists():
            even = ",".join(f"{kind}=1" for kind in KINDS)
            jobs.append(self.on(0, 0, self.write_samples, self.held, HELD_OUT * SEQUENCE * len(KINDS), HELD_SEED, ["--sample-mix", even]))
        if not self.choices.exists():
            self.on(1, 0, self.write_choices)
        parts = {mix: [self.bench.work / f"samples-{mix}-{i}.npz" for i in range(self.gpus)] for mix in wanted}
        for mix in wanted:
            jobs += [self.on(i, 0, self.write_samples, part, each, i, self.mixes[mix].split()) for i, part in enumerate(parts[mix])]
        for job in jobs:
            job.result()
        for mix in wanted:
            loaded = [np.load(part) for part in parts[mix]]
            whole = self.samples(mix).with_suffix(".tmp.npz")
            np.savez(whole, **{key: np.concatenate([part[key] for part in loaded]) for key in ("sequences", "kinds")})
            whole.replace(self.samples(mix))
            say(f"sampled {each * self.gpus} tokens ({mix})")

    def run(self, gpu: int, name: str, module: str, *options) -> str:
        """python -m MODULE on one GPU; its progress goes to NAME.log. Gives stdout."""
        command = [sys.executable, "-m", module, *options, "--lowbit", self.bench.program, "--data", self.bench.texts / "wikitext2_raw_train_part.txt"]
        with open(self.bench.work / f"{name}.log", "w") as log:
            done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=log, text=True, env=gpu_environment(gpu))
        if done.returncode != 0:
            raise RuntimeError(f"{name}: " + (self.bench.work / f"{name}.log").read_text().strip().splitlines()[-1])
        return done.stdout

    def choose(self, gpu: int, model: Path) -> dict:
        """Scores of a checkpoint by choices.py."""
        out = model.with_name(model.name + ".choices.json")
        questions = [self.bench.texts.parent / f"eval/{name}.jsonl" for name in ("arc_easy", "winogrande")]
        command = [sys.executable, Path(__file__).with_name("choices.py"), model, "--teacher", self.teacher, "--sequences", self.choices, "--questions", *questions,
                   "--keep", self.bench.work / "scores", "--lowbit", self.bench.program, "--out", out]
        done = subprocess.run(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=gpu_environment(gpu))
        if done.returncode != 0:
            raise RuntimeError(f"choices.py {model.name}: {done.stderr.strip().splitlines()[-1]}")
        say(done.stderr.strip().replace("\n", "; "))
        return json.loads(out.read_text())

    def write_choices(self, gpu: int) -> None:
        self.write_samples(gpu, self.choices, CHOICES * CHOICE_SEQUENCE, HELD_SEED + 1, ["--sequence-length", CHOICE_SEQUENCE, "--sample-mix", CHOICE_MIX])
        self.choose(gpu, self.teacher)  # keeps the teacher's own scores

    def write_samples(self, gpu: int, part: Path, tokens: int, seed: int, options: list) -> None:
        self.run(gpu, part.stem, "lowbit.sample", self.teacher, "-o", part, "--tokens", tokens, "--seed", seed, "--force", *options)

    def train(self, gpu: int, start, name: str, options: list) -> tuple:
        target = self.bench.work / f"recovered-{name}"
        report = self.run(gpu, name, "lowbit.recover", start, "--teacher", self.teacher, "-o", target, "--save-every", "100000", "--force", "--json", *options)
        return target, json.loads(report)

    def measured(self, row: dict, key: str, model, gpu: int) -> None:
        row[key] = self.bench.measure(model, gpu)
        self.report["base"] = self.bench.base()
        self.bench.save(self.out, self.report)

    def key(self, text: str) -> tuple:
        """The start of a row: a step of ladder.py and the tokens of its calibration."""
        fmt, group, _, *rest = text.split(":")
        given = dict(option.split("=", 1) for option in rest if option.startswith(OF_THE_START))
        step = f"{fmt}:{given.get('fit', 'refit')}:group={group}" + "".join(f",{option}={given[option]}" for option in ("scale", "recipe") if option in given)
        return step, count(given["calib-tokens"]) if "calib-tokens" in given else self.calib_tokens

    def start(self, key: tuple):
        """The quantized model of a key, made once for all its rows."""
        with self.lock:
            if key not in self.starts:
                fit = key[0].split(":")[1]
                noisy = fit.startswith("noise-")
                self.starts[key] = self.host.submit(QUANTIZE, *((self.noisy, fit) if noisy else (self.bench.quantize, *key)))
            return self.starts[key]

    def noisy(self, fit: str):
        target = self.bench.work / fit
        made = write_noisy(self.bench, self.teacher, target, float(fit.removeprefix("noise-")))
        return target, {key: made[key] for key in ("bits_per_weight", "bits_per_weight_total", "bytes", "seconds")}

    def row(self, gpu: int, text: str, start) -> None:
        fmt, group, tokens, *rest = text.split(":")
        options, (step, calib_tokens) = [o for o in rest if not o.startswith((*OF_THE_START, "mix="))], self.key(text)
        mix = next((o.removeprefix("mix=") for o in rest if o.startswith("mix=")), next(iter(self.mixes)))
        checkpoint, made = start.result()
        row = {"row": text, "format": fmt, "group": group, "scale": "double" if "scale=double" in step else "float16", "tokens": tokens,
               "options": options, "calib_tokens": calib_tokens, "sample": self.sample, "mix": mix, "sampling": self.mixes[mix], **made}
        say(f"training {text} on GPU {gpu}")
        flags = ["--tokens", tokens, "--sample", count(self.sample), "--samples", self.samples(mix), "--held-out", self.held]
        # else its blocks are no quantization on the text alone
        if not any(option.startswith("block-text-share=") for option in options):
            flags.append("--keep-stages")
        given = [part for option in options for part in ("--" + option.split("=")[0], *option.split("=")[1:])]
        target, row["recovery"] = self.train(gpu, checkpoint, text.replace(":", "-"), [*flags, *given])
        row["checkpoint"] = target.name
        after = row["recovery"]["after"]
        say(f"trained {text}: held-back KL {after['kl']:.4f}, PPL {after['ppl']:.2f}")
        with self.lock:
            first = not any(self.key(r["row"]) == (step, calib_tokens) for r in self.report["rows"])
            self.report["rows"].append(row)
        self.bench.save(self.out, self.report)
        self.jobs.append(self.host.submit(MEASURE_TRAINED, self.measured, row, "recovered", target, gpu))
        if self.tasks:
            self.jobs.append(self.host.submit(ANSWER, self.tasks.task, text, target, "arc_easy"))
        blocks = target.with_name(target.name + "-blocks")
        if blocks.exists():
            self.jobs.append(self.host.submit(MEASURE_START, self.measured, row, "blocks", blocks, gpu))
        if first and self.measures_starts:
            self.jobs.append(self.host.submit(MEASURE_START, self.measured, row, "ptq", checkpoint, gpu))
        row["choices"] = self.choose(gpu, target)
        self.bench.save(self.out, self.report)

    def submit(self, text: str, place: int) -> None:
        """Its GPU goes by its place among the rows: who names long and short ones in turn has them evenly spread."""
        if text in [r["row"] for r in self.report["rows"]]:
            return
        start, ended = self.start(self.key(text)), threading.Event()

        def ready(_):  # a GPU waits for no start while another row has its own
            self.jobs.append(self.on(place, 1, self.row, text, start))
            ended.set()

        start.add_done_callback(ready)
        self.jobs.append(ended)

    def wait(self) -> None:
        for job in self.jobs:  # grows while it is walked
            job.wait() if isinstance(job, threading.Event) else job.exception()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--work", type=Path, default=ROOT / "build/recovery")
    parser.add_argument("--calib-tokens", type=count, default=65536)
    parser.add_argument("--sample", default="10M")
    parser.add_argument("--mix", dest="mixes", nargs="+", type=lambda text: text.split("=", 1), default=[["plain", ""]], metavar="NAME=OPTIONS",
                        help="options of lowbit.sample, each as one argument: 'chats=--sample-mix chat=1,any=1'; rows that name none take the first")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--per-gpu", type=int, default=1, help="rows trained on a GPU at a time")
    parser.add_argument("--later", type=float, default=0, metavar="SECONDS",
                        help="the second of those begins so long after the program: it loads while the first one ends")
    parser.add_argument("--tasks-out", type=Path, metavar="FILE.json", help="what is trained also answers arc_easy, as checkpoints.py has it do")
    parser.add_argument("--device", default="cpu", help="cuda: calibrations and exact perplexities on GPUs; the same numbers [cpu]")
    parser.add_argument("--no-starts", action="store_true", help="do not measure what rows begin with")
    parser.add_argument("--jobs", type=int, default=1, help="models quantized or measured at a time")
    parser.add_argument("--threads", type=int, help="of each of those")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--tiny-chunks", type=int, default=60)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/recovery.json")
    o = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    bench = Bench(o.lowbit, o.model, o.data, o.work, o.chunks, o.tiny_chunks, o.threads, o.device)
    os.environ.setdefault("LOWBIT_DATA", str(o.data))
    recovery = Recovery(bench, Pool(o.jobs), o.gpus, o.per_gpu, o.out, o.calib_tokens, o.sample, dict(o.mixes), o.later, o.tasks_out, not o.no_starts)
    if not recovery.teacher.exists():
        bench.lowbit("import", bench.model, recovery.teacher)
    base = recovery.host.submit(0, bench.base)
    for text in o.rows:
        recovery.start(recovery.key(text))
    recovery.prepare()
    for place, text in enumerate(o.rows):
        recovery.submit(text, place)
    base.result()
    recovery.wait()


if __name__ == "__main__":
    main()
