#!/usr/bin/env python3
"""lowbit's and ggml's matmuls on one machine, in one run, answers checked by both programs: JSON for bench/results/.

  bench/rivals/matmul.py --lowbit build/release/bin/lowbit_matmul_bench --ggml build/rivals/build/bin/ggml_matmul \\
      --cpus 0,1 --isas avx512,avx2 --out bench/results/cpu_NAME.json

One thread per CPU of --cpus, pinned. Up to 16 rows of x the weights come from memory (at least 512 MiB of copies in
turn), with more from the caches. Tables: scripts/print_tables.py.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

SIZE = 4096
# (rows of x, formats, groups of weights, groups of x; 0: one scale per row, -1: f32 activations)
LOWBIT = [
    ("1", "int8,int4,int3,int2,ternary,ternary-packed,binary", "0,64", "0,32"),
    ("2,4,8,16", "int2", "0", "0"),
    ("512", "int4,int3,int2,ternary,ternary-packed,binary", "0,64", "0,32"),
    ("1,64", "int4,f16", "64", "-1"),
]
# not the first of --isas
LOWBIT_SHORT = [("1", "int4,int2,ternary,binary", "0,64", "0"), ("512", "int4,int2", "0,64", "0,32")]
GGML = [("tq2_0", "plain", 1), ("q4_0", "plain", 1), ("q4_0", "repack", 1), ("q4_0", "amx", 1), ("q4_K", "plain", 1),
        ("q1_0", "plain", 1), ("f16", "plain", 1), ("tq2_0", "plain", 8), ("tq2_0", "plain", 512),
        ("q4_0", "repack", 512), ("q4_0", "amx", 512), ("q4_K", "plain", 512), ("q4_K", "amx", 512),
        ("q2_K", "plain", 512), ("iq2_xxs", "plain", 512)]


def lines_of(command: list[str]) -> list[dict]:
    """The JSON lines a program prints. A program that answers wrong fails; one without a kernel (code 2) is left
    out."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stderr}{done.stdout}")
    return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", required=True)
    parser.add_argument("--ggml", required=True)
    parser.add_argument("--cpus", default="0,1")
    parser.add_argument("--isas", default="avx2", help="the first is measured in full")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--short", action="store_true", help="the first of --isas in short, too")
    parser.add_argument("--peak-gops", default="", help="of the multipliers, by instruction set: avx512=2124,avx2=1062")
    parser.add_argument("--shared-cores", action="store_true", help="mark rows in which a thread had less than 70 %% of a core")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    threads = len(options.cpus.split(","))
    pin = ["taskset", "-c", options.cpus]
    reads: list[float] = []
    report: dict = {"note": options.note, "lowbit": [], "ggml": [], "shared_cores": options.shared_cores,
                    "peak_gops": {isa: float(gops) for isa, gops in (pair.split("=") for pair in options.peak_gops.split(",") if pair)}}
    for number, isa in enumerate(options.isas.split(",")):
        parts = LOWBIT if number == 0 and not options.short else LOWBIT_SHORT
        for m, name, groups, activation_groups in ((m, name, *rest) for m, formats, *rest in parts for name in formats.split(",")):
            machine, *rows = lines_of([*pin, options.lowbit, "--threads", str(threads), "--seconds", str(options.seconds),
                                       "--isa", isa, "--m", m, "--formats", name, "--groups", groups,
                                       "--activation-groups", activation_groups])
            report |= {"machine": machine["machine"], "features": machine["features"], "threads": threads}
            reads.append(machine["read_gb_s"])
            report["read_gb_s"] = statistics.median(reads)
            report["lowbit"] += [{"isa": isa, "read_gb_s": machine["read_gb_s"], **row} for row in rows]
    for kind, buffer, n in GGML:
        report["ggml"] += lines_of([*pin, options.ggml, kind, str(SIZE), str(SIZE), str(n), str(threads), buffer,
                                    "512" if n <= 16 else "0", str(options.seconds)])
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
