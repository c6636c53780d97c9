"""Shared by the scripts of this folder: runs of `lowbit`, several at a time, and measurements of a checkpoint."""
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = time.monotonic()
HALF_SAMPLED = "half of the text sampled"  # an option of a step: the calibration text is Bench.mixed_text()
RECIPES = Path(__file__).resolve().parent / "recipes"  # of `lowbit quantize`, by name
PART = 2000  # characters of each text in turn


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {text}", file=sys.stderr, flush=True)


def count(text: str) -> int:
    """64K, 20M, 4096: as `lowbit` reads them."""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def gpu_environment(gpu: int) -> dict:
    """Of a process that sees one of the GPUs that this one sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu) if seen is None else seen.split(",")[gpu]}


class Pool:
    """Threads that do the job of the lowest number first. submit(number, call, ...) gives a Future.
    Threads after the `first` ones begin `later` seconds after the program."""

    def __init__(self, workers: int, first: int | None = None, later: float = 0.0):
        self.waiting, self.order = queue.PriorityQueue(), itertools.count()
        for i in range(workers):
            begin = 0.0 if first is None or i < first else later
            threading.Thread(target=self._work, args=(begin,), daemon=True).start()

    def submit(self, number: int, call, *arguments) -> Future:
        future = Future()
        self.waiting.put((number, next(self.order), call, arguments, future))
        return future

    def _work(self, begin: float) -> None:
        time.sleep(max(0.0, START + begin - time.monotonic()))
        while True:
            _, _, call, arguments, future = self.waiting.get()
            try:
                future.set_result(call(*arguments))
            except Exception as error:  # the other jobs go on
                say(f"failed: {error}")
                future.set_exception(error)


class Bench:
    """One model, two texts, and a folder `work` that keeps what was quantized."""

    def __init__(self, lowbit: str, model: str, data: Path, work: Path, chunks: int, tiny_chunks: int, threads: int | None,
                 device: str = "cpu"):
        self.device = device  # of calibrations and exact perplexities: the same bytes and numbers come out
        self.program, self.model, self.texts, self.work, self.chunks, self.tiny_chunks = lowbit, model, data / "text", work, chunks, tiny_chunks
        self.threads = ["--threads", threads] if threads else []
        self.lock, self.base_lock, self.base_row = threading.Lock(), threading.Lock(), None
        work.mkdir(parents=True, exist_ok=True)

    def lowbit(self, *args, gpu: int = 0) -> dict:
        done = subprocess.run([self.program, *map(str, (*args, *self.threads)), "--json"], capture_output=True, text=True, env=gpu_environment(gpu))
        if done.returncode != 0:
            raise RuntimeError(f"lowbit {' '.join(map(str, args))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def machine(self) -> dict:
        doctor = self.lowbit("doctor")
        return {"model": "SmolLM2-135M-Instruct", "chunks": self.chunks, "tiny_chunks": self.tiny_chunks, "cpu": doctor["cpu"]["model"],
                "isa": doctor["isa"], "threads": doctor["threads"]}

    def quantize(self, step: str, tokens: int):
        """FORMAT:FIT[:OPTION[=VALUE],...] -> its checkpoint and a part of the report. FORMAT bpw2.5 is --target-bpw
        2.5. One that is in `work` is taken from there."""
        name, fit, *more = step.split(":")
        target = self.work / (step.replace(":", "-").replace(",", "-").replace("=", "").replace(" ", "-") + f"-{tokens}")
        note = target.with_name(target.name + ".json")
        if not note.exists():
            options = more[0].split(",") if more else []
            text = self.mixed_text() if HALF_SAMPLED in options else self.texts / "wikitext2_raw_train_part.txt"
            calibration = ["--calib", text, "--calib-tokens", tokens, "--device", self.device] if tokens else []
            given = [option.split("=", 1) for option in options if option != HALF_SAMPLED]
            extra = [part for key, *value in given for part in ("--" + key, *([RECIPES / f"{value[0]}.txt"] if key == "recipe" else value))]
            form = ["--target-bpw", name[3:]] if name.startswith("bpw") else ["--format", name]
            made = self.lowbit("quantize", self.model, target, *form, "--fit", fit, "--force", *calibration, *extra)
            made = {key: made[key] for key in ("held_out", "bits_per_weight", "bits_per_weight_total", "bytes", "seconds")}
            note.write_text(json.dumps(made))
            say(f"quantized {step} on {tokens} tokens in {made['seconds']:.0f} s")
        return target, json.loads(note.read_text())

    def mixed_text(self) -> Path:
        """WikiText-2's train text and as much that the model writes itself (needs torch), in turn."""
        with self.base_lock:
            mixed, sampled, teacher = (self.work / name for name in ("mixed.txt", "sampled.txt", "teacher"))
            if not teacher.exists():
                self.lowbit("import", self.model, teacher)
            if not sampled.exists():
                subprocess.run([sys.executable, "-m", "lowbit.sample", teacher, "-o", sampled, "--tokens", "64K", "--lowbit", self.program, "--quiet"], check=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
            parts = [[text[i:i + PART] for i in range(0, len(text), PART)] for text in (self.texts.joinpath("wikitext2_raw_train_part.txt").read_text(), sampled.read_text())]
            mixed.write_text("\n\n".join(part for both in zip(*parts) for part in both))
        return mixed

    def perplexity(self, model, text: str, chunks: int, activation: str, *logits, gpu: int = 0) -> dict:
        device = self.device if activation == "f32" else "cpu"
        return self.lowbit("ppl", model, "-f", self.texts / text, "-c", 512, "--chunks", chunks, "--act", activation, "--device", device, *logits, gpu=gpu)

    def _measure(self, model, *logits, gpu: int = 0) -> dict:
        begin = time.monotonic()
        wiki = self.perplexity(model, "wiki.test.raw", self.chunks, "f32", *logits, gpu=gpu)
        tiny = self.perplexity(model, "tinystories_excerpt.txt", self.tiny_chunks, "f32", gpu=gpu)
        say(f"measured {model}: {wiki['ppl']:.4f}, tiny {tiny['ppl']:.4f}, in {time.monotonic() - begin:.0f} s")
        return {"ppl": wiki["ppl"], "kld_mean": wiki["kld_mean"], "top1": wiki["top1"], "tiny_ppl": tiny["ppl"]}

    def base(self) -> dict:
        """The file's own weights, measured once; its logits stay in `work`."""
        with self.base_lock:
            note = self.work / "base.json"
            if self.base_row is None and note.exists():
                self.base_row = json.loads(note.read_text())
            if self.base_row is None:
                self.base_row = self._measure(self.model, "--save-logits", self.work / "base.logits")
                note.write_text(json.dumps(self.base_row))
            return self.base_row

    def measure(self, model, gpu: int = 0) -> dict:
        """Perplexities, their ratios, KL divergence and top-1 agreement of a checkpoint; on that GPU where the device
        is `cuda`."""
        base = self.base()
        row = self._measure(model, "--against", self.work / "base.logits", gpu=gpu)
        return {**row, "ratio": row["ppl"] / base["ppl"], "tiny_ratio": row["tiny_ppl"] / base["tiny_ppl"]}

    def save(self, file: Path, report: dict) -> None:
        with self.lock:
            file.with_suffix(".tmp").write_text(json.dumps(report, indent=1) + "\n")
            file.with_suffix(".tmp").replace(file)
