#!/usr/bin/env python3
"""llama.cpp and lowbit on the same model, machine and threads, one after the other: bench/results/rivals.json.

Needs bench/rivals/build.sh to have run. Each program is timed in turn, `--rounds` times; the median of each is kept.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RIVALS = Path(os.environ.get("LOWBIT_RIVALS_DIR", ROOT / "build/rivals")) / "build/bin"


def output(*command) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def llama_bench(model: Path, threads: int) -> tuple[float, float]:
    runs = json.loads(output(RIVALS / "llama-bench", "-m", model, "-t", threads, "-p", 128, "-n", 64, "-r", 3, "-o", "json"))
    prefill = next(r["avg_ts"] for r in runs if r["n_prompt"] > 0)
    return prefill, next(r["avg_ts"] for r in runs if r["n_gen"] > 0)


def lowbit_bench(lowbit: str, model: Path, threads: int) -> tuple[float, float]:
    r = json.loads(output(lowbit, "bench", "model", model, "-p", 128, "-n", 64, "--threads", threads, "--json"))
    if not r["checked"]:
        sys.exit(f"{model}: batched and single logits differ")
    return r["prefill_tok_s"], r["decode_tok_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the GGUF to start from")
    parser.add_argument("--lowbit", default="build/release/bin/lowbit")
    parser.add_argument("--work", type=Path, default=Path("build/rivals/models"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/rivals.json")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)

    jobs = []
    for kind in ("F16", "Q4_0", "Q2_K", "TQ2_0"):
        target = options.work / f"{kind}.gguf"
        if not target.exists():
            output(RIVALS / "llama-quantize", "--allow-requantize", options.model, target, kind, options.threads)
        jobs.append(("llama.cpp", kind, target, llama_bench, (target, options.threads)))
    for kind in ("int8", "int4", "codebook4", "int3", "codebook3", "int2", "codebook2", "ternary", "binary"):
        target = options.work / kind
        shutil.rmtree(target, ignore_errors=True)
        # as those of docs/recovery.md
        scales = ("--group", 40, "--scale", "double") if kind.startswith("codebook") else ()
        output(options.lowbit, "quantize", options.model, target, "--format", kind, *scales, "--quiet")
        jobs.append(("lowbit", kind, target, lowbit_bench, (options.lowbit, target, options.threads)))

    times = {index: [] for index in range(len(jobs))}
    for _ in range(options.rounds):
        for index, job in enumerate(jobs):
            times[index].append(job[3](*job[4]))
    rows = []
    for index, (program, kind, target, _, _) in enumerate(jobs):
        look = json.loads(output(options.lowbit, "inspect", target, "--json"))
        rows.append({"program": program, "weights": kind, "bits_per_weight": look["bits_per_weight"], "bytes": look["bytes"],
                     "prefill_tok_s": statistics.median(t[0] for t in times[index]),
                     "decode_tok_s": statistics.median(t[1] for t in times[index]), "rounds": times[index]})
    doctor = json.loads(output(options.lowbit, "doctor", "--json"))
    report = {"model": options.model.stem, "cpu": doctor["cpu"]["model"], "isa": doctor["isa"], "threads": options.threads,
              "bandwidth_gb_s": doctor["bandwidth_gb_s"], "version": doctor["version"], "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(f"{row['program']:>10} {row['weights']:>8} {row['bits_per_weight']:6.2f} bits "
              f"{row['prefill_tok_s']:8.0f} prefill {row['decode_tok_s']:7.1f} decode tok/s")


if __name__ == "__main__":
    main()
