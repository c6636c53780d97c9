#!/usr/bin/env python3
"""Times a calibration on the CPU and on a GPU, on a random model, and compares every byte of what they write.

usage: calibration_device.py --lowbit BIN --random BIN [--source MODEL --text FILE] [--run DEVICE:THREADS:TOKENS ...] -o
RESULT.json
  --random   lowbit_random_checkpoint, for a model of SmolLM2-135M's widths (30 blocks of 576 by 1536); or --source and
             --text
  --run      cpu:2:8K, cuda:12:64K, ...: in this order, each in a process of its own, int4 with --fit auto
"""
import argparse
import hashlib
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTHS = "--format int8 --group 64 --head int8 --head-group 64 --layers 30 --hidden 576 --intermediate 1536 --heads 9 --kv-heads 3 --vocab 256"
WORDS = "the of sun river 7 walked under a quiet moon and sang".split()


def digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def first_line(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def run(options, source: str, text: str, wanted: str, work: Path) -> dict:
    device, threads, tokens = wanted.split(":")
    out = work / "out"
    begin = time.monotonic()
    report = json.loads(subprocess.run(
        [options.lowbit, "quantize", source, out, "--format", "int4", "--calib", text, "--calib-tokens", tokens, "--device", device,
         "--threads", threads, "--force", "--json", "--quiet"], check=True, stdout=subprocess.PIPE).stdout)
    row = {"device": device, "threads": int(threads), "tokens": tokens, "seconds": time.monotonic() - begin, **report["calibration_seconds"],
           "sha256": digest(out)}
    print(f"{wanted}: {row['seconds']:.1f} s", file=sys.stderr)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", required=True)
    parser.add_argument("--random")
    parser.add_argument("--source")
    parser.add_argument("--text")
    parser.add_argument("--run", nargs="+", default=["cpu:2:8K", "cuda:2:8K", "cuda:2:64K"])
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    if (options.random is None) == (options.source is None) or (options.source is None) != (options.text is None):
        parser.error("give --random, or --source and --text")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        source, text = options.source, options.text
        if options.random:
            source, text = str(work / "model"), str(work / "text.txt")
            subprocess.run([options.random, source, *WIDTHS.split()], check=True, stdout=subprocess.DEVNULL)
            draw = random.Random(1)
            Path(text).write_text(" ".join(draw.choices(WORDS, k=60000)))
        result = {"cpu": processor(), "gpu": first_line("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"),
                  "model": "random, 30 blocks of 576 by 1536" if options.random else options.source, "rows": []}
        for wanted in options.run:
            result["rows"].append(run(options, source, text, wanted, work))
            options.output.write_text(json.dumps(result, indent=1) + "\n")  # what a stop leaves
    for tokens in {row["tokens"] for row in result["rows"]}:
        if len({row["sha256"] for row in result["rows"] if row["tokens"] == tokens}) > 1:
            print(f"error: {tokens} tokens: the devices wrote different bytes", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
