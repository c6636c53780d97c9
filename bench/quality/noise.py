#!/usr/bin/env python3
"""A control for trained models: what normal noise on the original's linear layers costs, in texts and in answers.

  noise.py SIZE[:SEED]... [--teacher DIR] [--lowbit BIN] [--data DIR] [--out bench/results/noise.json] [--jobs 1]

Each weight gets noise of SIZE times its row's root of the mean square. The result is quantized to int8 in groups of 64,
which adds next to nothing, so that it answers with int8 activations as all others do. What such models lose at a KL
divergence says what errors of no particular kind lose there.
"""
import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

from checkpoints import Checkpoints
from jobs import ROOT, Bench, Pool

sys.path.insert(0, str(ROOT / "python"))
from lowbit.checkpoint import Checkpoint, side_files, write_checkpoint  # noqa: E402
from lowbit.llama import linear_names  # noqa: E402
from lowbit.safetensors_file import from_f32  # noqa: E402
from lowbit.sources import open_model  # noqa: E402


def write_noisy(bench: Bench, teacher: Path, out: Path, size: float, seed: int = 0) -> dict:
    """The checkpoint `out`, and what `lowbit quantize --json` says of it."""
    model, rng, tensors = open_model(teacher), np.random.default_rng(seed), {}
    noisy = {name for i in range(model.config.layers) for name in linear_names(i)}
    for name in model.names:
        weight = np.array(model.tensor(name), np.float32)
        if name in noisy:
            row_size = np.sqrt(np.mean(weight**2, axis=1, keepdims=True))
            weight += size * row_size * rng.standard_normal(weight.shape, np.float32)
        tensors[name] = ("F16", from_f32(weight, "F16")) if weight.ndim == 2 else ("F32", weight)
    dense = out.with_name(out.name + "-f16")
    write_checkpoint(dense, Checkpoint(teacher).config, tensors, fit={}, side_files=side_files(teacher), overwrite=True)
    return bench.lowbit("quantize", dense, out, "--format", "int8", "--group", 64, "--force")


class Noise:
    def __init__(self, bench: Bench, out: Path):
        self.bench, self.out, self.teacher = bench, out, bench.work / "teacher"
        self.tasks = Checkpoints(bench, Pool(1), out.with_suffix(".tasks.json"))
        self.report = json.loads(out.read_text()) if out.exists() else {**bench.machine(), "rows": []}
        if not self.teacher.exists():
            bench.lowbit("import", bench.model, self.teacher)

    def row(self, text: str) -> None:
        size, _, seed = text.partition(":")
        target = self.bench.work / f"noise-{size}-{seed or 0}"
        write_noisy(self.bench, self.teacher, target, float(size), int(seed or 0))
        row = {"size": float(size), "seed": int(seed or 0), **self.bench.measure(target)}
        self.report["rows"].append(row)
        self.bench.save(self.out, self.report)
        self.tasks.task(text, target, "arc_easy")
        row["tasks"] = self.tasks.row(text)["tasks"]
        self.bench.save(self.out, self.report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="+", metavar="SIZE[:SEED]")
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--work", type=Path, default=ROOT / "build/recovery")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--tiny-chunks", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of each job")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/noise.json")
    o = parser.parse_args()
    os.environ.setdefault("LOWBIT_DATA", str(o.data))
    pool, noise = Pool(o.jobs), Noise(Bench(o.lowbit, o.model, o.data, o.work, o.chunks, o.tiny_chunks, o.threads), o.out)
    for job in [pool.submit(0, noise.row, text) for text in o.sizes]:
        job.result()


if __name__ == "__main__":
    main()
