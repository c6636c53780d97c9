#!/usr/bin/env python3
"""One row of x in rounds: lowbit's formats and ggml's nearest, one after the other, weights from memory; JSON for
bench/results/.

  bench/rivals/rounds.py --lowbit build/release/bin/lowbit_matmul_bench --ggml build/rivals/build/bin/ggml_matmul \\
      --cpus 0,1 --isa avx2 --rounds 5 --out bench/results/rounds_NAME.json

Where memory's speed changes from minute to minute, a ratio is one of neighbours in time: each round has its own, and
the table gives their median and range. Rounds are added to a file that is there. Tables: scripts/print_tables.py.
"""
import argparse
import json
from pathlib import Path

from matmul import lines_of

SHAPES = [(4096, 4096), (14336, 4096)]  # outputs, inputs
RIVALS = {"int4": ("q4_0", "repack"), "int2": ("tq2_0", "plain"), "ternary": ("tq2_0", "plain"), "binary": ("q1_0", "plain")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", required=True)
    parser.add_argument("--ggml", required=True)
    parser.add_argument("--cpus", default="0,1")
    parser.add_argument("--isa", default="avx2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    threads = str(len(options.cpus.split(",")))
    pin = ["taskset", "-c", options.cpus]
    report = json.loads(options.out.read_text()) if options.out.exists() else {"rounds": []}
    report |= {"isa": options.isa, "threads": int(threads), "note": options.note}
    for _ in range(options.rounds):
        rows = []
        for n, k in SHAPES:
            for name, (kind, buffer) in RIVALS.items():
                machine, *ours = lines_of([*pin, options.lowbit, "--threads", threads, "--seconds", str(options.seconds), "--isa",
                                           options.isa, "--m", "1", "--formats", name, "--groups", "0,64",
                                           "--activation-groups", "0", "-N", str(n), "-K", str(k)])
                rival = lines_of([*pin, options.ggml, kind, str(n), str(k), "1", threads, buffer, "512", str(options.seconds)])
                report["machine"] = machine["machine"]
                rows += [{"n": n, "k": k, "format": name, "group": row["group"], "gops": row["gops"], "gb_s": row["gb_s"],
                          "read_gb_s": machine["read_gb_s"], "rival": f"{kind} {buffer}", "rival_gops": rival[0]["gops"]}
                         for row in ours]
        report["rounds"].append(rows)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
