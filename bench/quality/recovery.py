#!/usr/bin/env python3
"""What recovery by training is worth on the default model: quantizes, trains, measures, writes one JSON.

  recovery.py ROW... [--lowbit BIN] [--data DIR] [--work DIR] [--out bench/results/recovery.json] [--calib-tokens 65536] [--sample 12M]
  ROW: FORMAT:GROUP:TOKENS[:OPTION=VALUE...], e.g. int2odd:64:20M or int3:64:20M:lr=1e-4

Calibrated and trained on WikiText-2's train text and on text sampled from the model itself, measured on WikiText-2's test text
(perplexity by llama.cpp's method with exact f32 activations, KL divergence and top-1 agreement against the file's own weights) and on the
TinyStories excerpt, which nothing was trained on. The host's cores quantize and measure while the device trains. Rows already in the JSON
are kept.
"""
import argparse
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY_CHUNKS = 60
LOCK = threading.Lock()
START = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {text}", file=sys.stderr, flush=True)


class Run:
    def __init__(self, options):
        self.o, self.texts = options, options.data / "text"
        self.train_text = self.texts / "wikitext2_raw_train_part.txt"
        self.report = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
        self.host, self.device = ThreadPoolExecutor(1), ThreadPoolExecutor(options.device_jobs)
        options.work.mkdir(parents=True, exist_ok=True)

    def lowbit(self, *args) -> dict:
        done = subprocess.run([self.o.lowbit, *map(str, args), "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"lowbit {' '.join(map(str, args))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def save(self) -> None:
        with LOCK:
            self.o.out.write_text(json.dumps(self.report, indent=1) + "\n")

    def measure(self, model, *logits) -> dict:
        begin = time.monotonic()
        wiki = self.lowbit("ppl", model, "-f", self.texts / "wiki.test.raw", "-c", 512, "--chunks", self.o.chunks, "--act", "f32", *logits)
        tiny = self.lowbit("ppl", model, "-f", self.texts / "tinystories_excerpt.txt", "-c", 512, "--chunks", TINY_CHUNKS, "--act", "f32")
        say(f"measured {model}: {wiki['ppl']:.4f}, tiny {tiny['ppl']:.4f}, in {time.monotonic() - begin:.0f} s")
        result = {"ppl": wiki["ppl"], "kld_mean": wiki["kld_mean"], "top1": wiki["top1"], "tiny_ppl": tiny["ppl"]}
        if "base" in self.report:
            result["ratio"] = result["ppl"] / self.report["base"]["ppl"]
            result["tiny_ratio"] = result["tiny_ppl"] / self.report["base"]["tiny_ppl"]
        return result

    def base(self) -> None:
        logits = self.o.work / "base.logits"
        if not logits.exists():
            self.report["base"] = self.measure(self.o.model, "--save-logits", logits)
            self.save()

    def measured(self, row: dict, key: str, model) -> None:
        self.base()
        row[key] = self.measure(model, "--against", self.o.work / "base.logits")
        self.save()

    def quantize(self, name: str, fmt: str, group: str):
        target = self.o.work / f"ptq-{name}"
        if not (target / "config.json").exists():
            calibration = ["--calib", self.train_text, "--calib-tokens", self.o.calib_tokens] if self.o.calib_tokens else []
            made = self.lowbit("quantize", self.o.model, target, "--format", fmt, "--group", group, "--force", *calibration)
            made = {key: made[key] for key in ("bits_per_weight", "bits_per_weight_total", "bytes", "seconds")}
            (self.o.work / f"ptq-{name}.json").write_text(json.dumps(made))
            say(f"quantized {name} in {made['seconds']:.0f} s")
        return target, json.loads((self.o.work / f"ptq-{name}.json").read_text())

    def recover(self, start, teacher, name: str, tokens: str, extra: list) -> tuple:
        target = self.o.work / f"recovered-{name}"
        command = [sys.executable, "-m", "lowbit.recover", start, "--teacher", teacher, "--data", self.train_text, "-o", target,
                   "--tokens", tokens, "--sample", self.o.sample, "--samples", self.o.work / "samples.npy", "--lowbit", self.o.lowbit,
                   "--save-every", "100000", "--force", "--json", *extra]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"recover {name}: exit code {done.returncode}")
        return target, json.loads(done.stdout)

    def row(self, text: str, teacher, start) -> None:
        fmt, group, tokens, *rest = text.split(":")
        extra = [part for option in rest for part in ("--" + option.split("=")[0], *option.split("=")[1:])]
        row = {"row": text, "format": fmt, "group": group, "tokens": tokens, "options": rest, "calib_tokens": self.o.calib_tokens,
               "sample": self.o.sample}
        try:
            checkpoint, made = start.result()
            row |= made
            target, row["recovery"] = self.recover(checkpoint, teacher, f"{fmt}-{group}-{tokens}", tokens, extra)
            self.report["rows"].append(row)
            self.save()
            say(f"trained {text}")
            self.pending.append(self.host.submit(self.measured, row, "recovered", target))
            same = [r for r in self.report["rows"] if (r["format"], r["group"]) == (fmt, group) and "ptq" in r]
            if same:
                row["ptq"] = same[0]["ptq"]
            else:
                self.pending.append(self.host.submit(self.measured, row, "ptq", checkpoint))
        except Exception as error:  # the other rows go on
            say(f"{text}: {error}")

    def run(self) -> None:
        doctor = self.lowbit("doctor")
        self.report |= {"model": "SmolLM2-135M-Instruct", "text": "WikiText-2 train", "chunks": self.o.chunks, "sample": self.o.sample,
                        "cpu": doctor["cpu"]["model"], "isa": doctor["isa"], "threads": doctor["threads"]}
        teacher = self.o.work / "teacher"
        if not teacher.exists():
            self.lowbit("import", self.o.model, teacher)
        wanted = [row for row in self.o.rows if row not in [r["row"] for r in self.report["rows"]]]
        starts = {row: self.host.submit(self.quantize, "-".join(row.split(":")[:2]), *row.split(":")[:2]) for row in wanted}
        self.pending = [self.host.submit(self.base)]
        if wanted and not (self.o.work / "samples.npy").exists():
            quick = self.o.work / "quick"  # sampling needs a checkpoint of the model, not a good one, and the host is quantizing those
            self.lowbit("quantize", self.o.model, quick, "--format", "int4", "--force")
            self.device.submit(self.recover, quick, teacher, "quick", "8192", ["--method", "full"]).result()
        for row in wanted:
            self.device.submit(self.row, row, teacher, starts[row])
        self.device.shutdown()
        for job in self.pending:
            job.result()
        self.host.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--work", type=Path, default=ROOT / "build/recovery")
    parser.add_argument("--calib-tokens", type=int, default=65536)
    parser.add_argument("--sample", default="12M")
    parser.add_argument("--device-jobs", type=int, default=1, help="rows trained at a time")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/recovery.json")
    Run(parser.parse_args()).run()


if __name__ == "__main__":
    main()
