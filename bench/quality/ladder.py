#!/usr/bin/env python3
"""The gain of each step of calibrated quantization on the default model: quantizes, measures, writes one JSON.

  ladder.py [--lowbit BIN] [--data DIR] [--tokens 64K] [--chunks 100] [--out bench/results/quality.json] [--jobs 1]
      [--only FORMAT:FIT[:OPTIONS] ...]

Calibrates on WikiText-2's train text, measures on its test text (perplexity by llama.cpp's method with exact f32
activations, KL divergence and top-1 agreement against the file's own weights) and on the TinyStories excerpt, which
nothing was calibrated on. Every figure is of one run; rows already in the JSON are kept, so that a run can be
continued.
"""
import argparse
import json
import tempfile
from pathlib import Path

from jobs import ROOT, Bench, Pool, count

# A step is FORMAT:FIT, or FORMAT:FIT:OPTIONS with further options of `lowbit quantize` separated by commas
# ("group=32,rotate"). FORMAT bpw2.5 is --target-bpw 2.5.
STEPS = ["int4:lsq", "int4:wls", "int4:gptq", "int4:refit", "int3:lsq", "int3:wls", "int3:gptq", "int3:refit", "int2odd:wls",
         "int2odd:gptq", "int2odd:refit", "ternary-packed:refit:group=72", "int3:refit:rotate", "int3:refit:keep=layers.0.,keep=layers.29.", "int2odd:refit:rotate", "bpw2.5:refit",
         "int2odd:refit:group=32,scale=double", "codebook2:refit", "codebook3:refit", "int4:align", "codebook4:refit:group=48,scale=double",
         "codebook4:align:group=48,scale=double", "int3:align", "int3:align:rotate,hadamard", "int2odd:align", "int2odd:align:rotate",
         "trellis2:refit", "trellis2:align", "trellis2:align:group=192,scale=double,recipe=v-early-trellis-align", "trellis3:refit", "trellis3:align"]


class Ladder:
    def __init__(self, bench: Bench, pool: Pool, out: Path, tokens: int):
        self.bench, self.pool, self.out, self.tokens = bench, pool, out, tokens
        self.report = {**bench.machine(), "calibration": "WikiText-2 train", "tokens": tokens, "rows": []}
        if out.exists():
            self.report["rows"] = json.loads(out.read_text())["rows"]

    def step(self, step: str) -> None:
        name, fit, *more = step.split(":")
        model, made = self.bench.quantize(step, 0 if fit == "lsq" else self.tokens)
        row = {"step": step, "format": name, "fit": fit, "options": more[0] if more else "", **made, **self.bench.measure(model)}
        self.report["base"] = self.bench.base()
        self.report["rows"].append(row)
        self.bench.save(self.out, self.report)

    def submit(self, steps: list, number: int) -> list:
        done = {row["step"] for row in self.report["rows"]}
        return [self.pool.submit(number, self.step, step) for step in steps if step not in done]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--work", type=Path, help="keep quantized models there")
    parser.add_argument("--tokens", type=count, default=65536)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--tiny-chunks", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="steps at a time")
    parser.add_argument("--threads", type=int, help="of each job")
    parser.add_argument("--device", default="cpu", help="of calibrations and perplexities: cpu or cuda, with the same numbers")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/quality.json")
    parser.add_argument("--only", nargs="+", default=STEPS)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(o.lowbit, o.model, o.data, o.work or Path(scratch), o.chunks, o.tiny_chunks, o.threads, o.device)
        for job in Ladder(bench, Pool(o.jobs), o.out, o.tokens).submit(o.only, 0):
            job.result()


if __name__ == "__main__":
    main()
