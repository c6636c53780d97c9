#!/usr/bin/env python3
"""Whole models on one machine: lowbit's prompt and generation with the time of every step, llama.cpp on files of the
same shape in turn. JSON for bench/results/.

  bench/rivals/models.py --lowbit build/release/bin/lowbit --llama-bench build/rivals/build/bin/llama-bench \\
      --cpus 0,1 --lowbit-model "2.4B ternary=random-ternary" --llama-model "2.4B TQ2_0=random-tq2_0.gguf" \\
      --out bench/results/models_NAME.json

One thread per CPU of --cpus, pinned. Random models: bench/model/random_checkpoint.cc and bench/rivals/random_gguf.py.
Tables: scripts/print_tables.py.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
    return done.stdout


def write_report(o: argparse.Namespace, runs: dict, doctor: dict) -> list[dict]:
    """Writes the results so far: a run that is cut short leaves its first ones."""
    rows = []
    for (program, name, act), reports in runs.items():
        middle = sorted(reports, key=lambda r: r["decode_tok_s"])[(len(reports) - 1) // 2]
        rows.append({"program": program, "name": name, "act": act, **middle,
                     "prefill_tok_s": statistics.median(r["prefill_tok_s"] for r in reports),
                     "decode_tok_s": statistics.median(r["decode_tok_s"] for r in reports),
                     "rounds": [[r["prefill_tok_s"], r["decode_tok_s"]] for r in reports]})
    report = {"machine": doctor["cpu"]["model"], "features": doctor["cpu"].get("features", []),
              "threads": len(o.cpus.split(",")), "cpus": os.cpu_count(),
              "read_gb_s": statistics.median([doctor["bandwidth_gb_s"],
                                              *(r["bandwidth_gb_s"] for r in rows if "bandwidth_gb_s" in r)]),
              "prompt": o.prompt, "generate": o.tokens, "note": o.note, "rows": rows}
    o.out.write_text(json.dumps(report, indent=1) + "\n")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", required=True)
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--cpus", default="0,1")
    parser.add_argument("--acts", default="int8,int8-row")
    parser.add_argument("--lowbit-model", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--llama-model", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="of all models in turn; the median counts")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    threads = len(o.cpus.split(","))
    pin = ["taskset", "-c", o.cpus]
    work = ["-p", str(o.prompt), "-n", str(o.tokens), "-r", str(o.repetitions)]
    runs: dict = {}
    doctor = json.loads(output([*pin, o.lowbit, "doctor", "--json"]))
    for _ in range(o.rounds):
        for pair in o.lowbit_model:
            name, path = pair.split("=", 1)
            for act in o.acts.split(","):
                report = json.loads(output([*pin, o.lowbit, "bench", "model", path, *work, "--act", act, "--threads",
                                            str(threads), "--profile", "--json"]))
                if not report["checked"]:
                    sys.exit(f"{path}: batched and single logits differ")
                runs.setdefault(("lowbit", name, act), []).append(report | {"model": Path(path).name})
                write_report(o, runs, doctor)
        for pair in o.llama_model if o.llama_bench else []:
            name, path = pair.split("=", 1)
            tests = json.loads(output([*pin, o.llama_bench, "-m", path, "-t", str(threads), *work, "-o", "json"]))
            runs.setdefault(("llama.cpp", name, ""), []).append({
                "prefill_tok_s": next(t["avg_ts"] for t in tests if t["n_prompt"] > 0),
                "decode_tok_s": next(t["avg_ts"] for t in tests if t["n_gen"] > 0),
                "weight_bytes": tests[0]["model_size"], "build": tests[0]["build_commit"], "type": tests[0]["model_type"]})
            write_report(o, runs, doctor)
    for r in write_report(o, runs, doctor):
        print(f"{r['program']:>10} {r['name']:<28} {r['act']:<9} {r['prefill_tok_s']:9.1f} {r['decode_tok_s']:8.1f} tok/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
