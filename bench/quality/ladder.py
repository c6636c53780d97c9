#!/usr/bin/env python3
"""What each step of calibrated quantization is worth on the default model: quantizes, measures, writes one JSON.

  ladder.py [--lowbit BIN] [--data DIR] [--tokens 65536] [--chunks 100] [--out bench/results/quality.json] [--only FORMAT:FIT[:OPTIONS] ...]

Calibrates on WikiText-2's train text, measures on its test text (perplexity by llama.cpp's method with exact f32 activations,
KL divergence and top-1 agreement against the file's own weights) and on the TinyStories excerpt, which nothing was calibrated on.
Every figure is of one run; rows already in the JSON are kept, so that a run can be continued.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A step is FORMAT:FIT, or FORMAT:FIT:OPTIONS with further options of `lowbit quantize` separated by commas ("group=32,rotate").
# FORMAT bpw2.5 is --target-bpw 2.5.
STEPS = ["int4:lsq", "int4:wls", "int4:gptq", "int4:refit", "int3:lsq", "int3:wls", "int3:gptq", "int3:refit", "int2odd:wls",
         "int2odd:gptq", "int2odd:refit", "ternary:refit", "int3:refit:rotate", "int2odd:refit:rotate", "bpw2.5:refit", "bpw3.25:refit",
         "int2odd:refit:group=32,scale=double", "codebook2:refit", "codebook3:refit"]



def run(lowbit: str, *args) -> dict:
    done = subprocess.run([lowbit, *map(str, args), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"lowbit {' '.join(map(str, args))}\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(lowbit: str, model: str, texts: Path, chunks: int, tiny_chunks: int, *logits) -> dict:
    wiki = run(lowbit, "ppl", model, "-f", texts / "wiki.test.raw", "-c", 512, "--chunks", chunks, "--act", "f32", *logits)
    tiny = run(lowbit, "ppl", model, "-f", texts / "tinystories_excerpt.txt", "-c", 512, "--chunks", tiny_chunks, "--act", "f32")
    return {"ppl": wiki["ppl"], "kld_mean": wiki["kld_mean"], "top1": wiki["top1"], "tiny_ppl": tiny["ppl"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--tiny-chunks", type=int, default=60)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/quality.json")
    parser.add_argument("--only", nargs="+", default=STEPS)
    options = parser.parse_args()
    texts = options.data / "text"
    doctor = run(options.lowbit, "doctor")
    report = {"model": "SmolLM2-135M-Instruct", "calibration": "WikiText-2 train", "tokens": options.tokens, "chunks": options.chunks,
              "tiny_chunks": options.tiny_chunks,
              "cpu": doctor["cpu"]["model"], "isa": doctor["isa"], "threads": doctor["threads"], "rows": []}
    if options.out.exists():
        report["rows"] = json.loads(options.out.read_text())["rows"]
    done = {row.get("step", f"{row['format']}:{row['fit']}") for row in report["rows"]}
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base.logits"
        original = measure(options.lowbit, "default", texts, options.chunks, options.tiny_chunks, "--save-logits", base)
        report["base"] = original
        for step in options.only:
            name, fit, *more = step.split(":")
            if step in done:
                continue
            print(f"{step} ...", file=sys.stderr)
            target = Path(scratch) / "model"
            calibration = [] if fit == "lsq" else ["--calib", texts / "wikitext2_raw_train_part.txt", "--calib-tokens", options.tokens]
            extra = [f"--{option}" for option in more[0].split(",")] if more else []
            form = ["--target-bpw", name[3:]] if name.startswith("bpw") else ["--format", name]
            made = run(options.lowbit, "quantize", "default", target, *form, "--fit", fit, "--force", *calibration, *extra)
            row = {"step": step, "format": name, "fit": fit, "held_back": made["held_back"], "bits_per_weight": made["bits_per_weight"], "seconds": made["seconds"],
                   **measure(options.lowbit, str(target), texts, options.chunks, options.tiny_chunks, "--against", base)}
            row["ratio"] = row["ppl"] / original["ppl"]
            row["tiny_ratio"] = row["tiny_ppl"] / original["tiny_ppl"]
            report["rows"].append(row)
            options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
