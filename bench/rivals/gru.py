#!/usr/bin/env python3
"""lowbit's GRU beside oneDNN's on one core, answers checked by both; writes bench/results/gru_rivals_NAME.json.

usage: gru.py --lowbit build/release/bin/lowbit --cpu 0 --machine NAME --out FILE [--seconds 0.3]
LOWBIT_ONEDNN_GRU names oneDNN's program (bench/rivals/onednn_gru.cc); it stays on AVX2 where lowbit does.
"""
import argparse
import json
import os
import subprocess
import sys

SHAPES = [(100, 1, 64, 128), (100, 1, 256, 256), (100, 1, 400, 400), (100, 1, 512, 512), (20, 1, 768, 768), (20, 1, 1024, 1024),
          (50, 64, 128, 256)]


def run(options, isa, shape, *more):
    t, n, c, h = shape
    command = [options.lowbit, "bench", "gru", "--json", "--isa", isa, "-T", t, "-N", n, "-C", c, "-H", h, "--seconds", options.seconds, *more]
    if options.cpu is not None:
        command = ["taskset", "-c", options.cpu, *command]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if isa == "avx2":
        environment["DNNL_MAX_CPU_ISA"] = "AVX2"
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        return None
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lowbit", required=True)
    parser.add_argument("--cpu")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--seconds", default="0.3")
    parser.add_argument("--isas", default="avx512,avx2")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    rows = []
    for isa in options.isas.split(","):
        for shape in SHAPES:
            row = run(options, isa, shape, "--vs", "onednn:f32")
            if row is None:
                return 1
            row["onednn"] = {"f32": row.pop("vs")["us_per_step"]}
            row.pop("ratio")
            for kind in ("bf16", "u8s8") if isa != "avx2" else ():
                other = run(options, isa, shape, "--vs", f"onednn:{kind}")
                row["onednn"][kind] = other["vs"]["us_per_step"] if other else None
            four = run(options, isa, shape, "--weight-bits", 4)
            row["int4_us_per_step"], row["int4_stream_us_per_step"] = four["us_per_step"], four["stream_us_per_step"]
            accurate = run(options, isa, shape, "--preset", "accurate")
            row["accurate_us_per_step"] = accurate["us_per_step"]
            row["checked"] = row["checked"] and four["checked"] and accurate["checked"]
            rows.append(row)
            print(json.dumps(row), flush=True)
    text = ",\n  ".join(json.dumps(row) for row in rows)
    with open(options.out, "w") as file:
        file.write(f'{{"machine": {json.dumps(options.machine)}, "threads": 1, "statistic": "quickest run in {options.seconds} s", "onednn": "2.6.3",\n'
                   f'"rows": [\n  {text}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
