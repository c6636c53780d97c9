#!/usr/bin/env python3
"""Prints the README's tables from the JSON in bench/results/, between their markers; with --check only says whether they differ.

  <!-- table: demo --> ... <!-- end -->     bench/results/demo.json      (build/demo/report.json of scripts/demo.sh)
  <!-- table: rivals --> ... <!-- end -->   bench/results/rivals.json    (bench/rivals/compare.py)
  <!-- table: gpu_... --> ... <!-- end -->  bench/results/gpu.json       (bench/gpu/device_matmul_bench.cc)
  <!-- table: cpu_NAME --> ... <!-- end --> bench/results/cpu_NAME.json  (bench/rivals/matmul.py)
  <!-- table: gru_g2p --> and gru_denoise   the same names               (examples/check_accuracy.py --write)
  <!-- table: gru_cpu --> ... <!-- end -->  bench/results/gru_cpu.json   (lowbit_gru_bench)
  <!-- table: gru_gpu --> ... <!-- end -->  bench/results/gru_gpu.json   (lowbit_gru_device_bench, bench/rivals/cudnn_gru.py under "cudnn")
"""
import argparse
import json
import re
import sys
from pathlib import Path

from demo import table as demo_table

ROOT = Path(__file__).resolve().parent.parent


def demo(report: dict) -> str:
    return (f"{demo_table(report)}\n\n{report['cpu']}, {report['isa']}, {report['threads']} threads; {report['text']}, "
            f"{report['chunks']} chunks of {report['context']} tokens; base: the file's own weights, f32 activations.")


def rivals(report: dict) -> str:
    lines = ["| program | weights | bits/weight | prefill 128, tok/s | decode 64, tok/s |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['program']} | {row['weights']} | {row['bits_per_weight']:.2f} | {row['prefill_tok_s']:.0f} | "
                     f"{row['decode_tok_s']:.0f} |")
    return "\n".join(lines) + f"\n\n{report['cpu']}, {report['threads']} threads, {report['model']}; one run, programs in turn."


def find(report: dict, **wanted) -> dict:
    return next(r for r in report["rows"] if all(r.get(k) == v for k, v in wanted.items()))


def gpu_gemv(report: dict) -> str:
    lines = ["| N x K | int8 x, us | alone, us | bf16 x, us | GB/s | BitNet kernel, us | ratio | cuBLAS bf16, us |",
             "|---|---|---|---|---|---|---|---|"]
    rivals_of = report["rivals"]
    for shape, bitnet in rivals_of["bitnet_us"].items():
        n, k = map(int, shape.split("x"))
        row = {overlap: find(report, part="shapes", n=n, k=k, x="int8", cold=True, overlap=overlap) for overlap in (True, False)}
        bf16 = find(report, part="shapes", n=n, k=k, x="bf16, quantized here", cold=True, overlap=True)
        lines.append(f"| {n} x {k} | {row[True]['us']:.2f} | {row[False]['us']:.2f} | {bf16['us']:.2f} | {row[True]['gb_s']:.0f} | "
                     f"{bitnet:.2f} | {bitnet / row[True]['us']:.2f} | {rivals_of['bf16_us'][shape]:.2f} |")
    return "\n".join(lines)


def gpu_stack(report: dict) -> str:
    lines = ["| x | dependent launches | graph, us | eager, us | GB/s |", "|---|---|---|---|---|"]
    for r in (r for r in report["rows"] if r["part"] == "stack"):
        lines.append(f"| {r['x']} | {'overlap' if r['overlap'] else 'wait'} | {r['us']:.0f} | {r['eager_us']:.0f} | {r['gb_s']:.0f} |")
    bitnet, bf16 = report["rivals"]["bitnet_stack_us"], report["rivals"]["bf16_stack_us"]
    return "\n".join(lines) + f"\n\nBitNet kernel {bitnet[0]} to {bitnet[1]} us, cuBLAS bf16 {bf16[0]} to {bf16[1]} us."


def gpu_formats(report: dict) -> str:
    lines = ["| weights | M = 1, us | M = 2 | M = 8 | groups of 64: M = 1 | M = 2 | M = 8 |", "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(r["format"] for r in report["rows"] if r["part"] == "formats"):
        times = [find(report, part="formats", format=name, group=g, m=m)["us"] for g in (0, 64) for m in (1, 2, 8)]
        lines.append(f"| {name} | " + " | ".join(f"{t:.2f}" for t in times) + " |")
    return "\n".join(lines)


def gpu_quantized_mm(report: dict) -> str:
    lines = ["| BITS | m = 1, us | alone, us | m = 2 | m = 8 | m = 16 | m = 64 | error, m = 64 |", "|---|---|---|---|---|---|---|---|"]
    for bits in (1, 2, 4, 8):
        row = {m: find(report, part="quantized_mm", bits=bits, m=m, overlap=True) for m in (1, 2, 8, 16, 64)}
        alone = find(report, part="quantized_mm", bits=bits, m=1, overlap=False)["us"]
        lines.append(f"| {bits} | {row[1]['us']:.2f} | {alone:.2f} | " + " | ".join(f"{row[m]['us']:.1f}" for m in (2, 8, 16, 64)) +
                     f" | {row[64]['relative_error']:.1e} |")
    return "\n".join(lines)


# ggml's types with as many bits, all of which are measured: the best of them is the rival.
SAME_BITS = {"int4": ("q4_0", "q4_K"), "int2": ("tq2_0", "q2_K", "iq2_xxs"), "ternary": ("tq2_0",),
             "ternary-packed": ("tq2_0",), "binary": ("q1_0", "tq2_0"), "f16": ("f16",)}


def matmuls(report: dict) -> str:
    def rival(row: dict) -> dict | None:
        same = [r for r in report["ggml"] if r["type"] in SAME_BITS.get(row["format"], ()) and r["n"] == row["m"]]
        return max(same, key=lambda r: r["gops"], default=None)

    lines = ["| rows of x | weights | scales | scales of x | instructions | GOPS | GB/s | best of ggml with as many bits | ratio |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in sorted(report["lowbit"], key=lambda r: r["m"]):
        other = rival(row)
        scales = f"per {row['group']}" if row["group"] else "per row"
        x_scales = {0: "per row", -1: "f32"}.get(row["activation_group"], f"per {row['activation_group']}")
        against = f"{other['type']} {other['buffer']}: {other['gops']:.0f} | {row['gops'] / other['gops']:.2f}" if other else "- | -"
        lines.append(f"| {row['m']} | {row['format']} | {scales if row['format'] != 'f16' else '-'} | {x_scales} | {row['isa']} | "
                     f"{row['gops']:.0f} | {row['gb_s']:.1f} | {against} |")
    return "\n".join(lines) + (f"\n\n{report['machine']}, {report['threads']} pinned threads, 4096 x 4096; plain read of memory: "
                               f"{report['read_gb_s']:.1f} GB/s; median of runs. {report['note']}").rstrip()


def gru_g2p(report: dict) -> str:
    lines = ["| network | phoneme error rate, % | words right, % | words as in float, % | size |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['name']} | {row['per']:.2f} | {row['words']:.2f} | {row['same']:.2f} | {row['bytes_ratio']:.3f} |")
    return "\n".join(lines) + f"\n\n{report['test_words']} words, calibrated on {report['calibration_words']} others."


def gru_denoise(report: dict) -> str:
    lines = ["| network | SI-SDR, dB | size |", "|---|---|---|"]
    lines += [f"| {row['name']} | {row['si_sdr_db']:.2f} | {row['bytes_ratio']:.3f} |" for row in report["rows"]]
    return "\n".join(lines) + f"\n\nThe noisy file itself: {report['noisy_db']:.2f} dB."


def gru_cpu(report: dict) -> str:
    lines = ["| N, C, H | preset | instruction set | us per step, whole sequence | streamed |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        if row["preset"] != "gates12":
            lines.append(f"| {row['n']}, {row['c']}, {row['h']} | {row['preset']} | {row['isa']} | {row['us_per_step']:.2f} | "
                         f"{row['stream_us_per_step']:.2f} |")
    return "\n".join(lines) + f"\n\n{report['cpu']}, one core, {report['statistic']}, every answer checked against the reference."


def gru_gpu(report: dict) -> str:
    lines = ["| T, N, C, H | preset | kernel | us | us per step | cuDNN fp16, us | ratio |", "|---|---|---|---|---|---|---|"]
    for row in report["rows"]:
        if not row["chosen"]:
            continue
        shape = {k: row[k] for k in "tnch"}
        rival = find(report["cudnn"], dtype="float16", **shape)["us"]
        lines.append(f"| {', '.join(str(v) for v in shape.values())} | {row['preset']} | `{row['kernel']}` | {row['us']:.1f} | "
                     f"{row['us_per_step']:.3f} | {rival:.0f} | {rival / row['us']:.2f} |")
    return "\n".join(lines) + f"\n\n{report['device']}, codes in and out, hot, replayed from a graph, {report['statistic']}; answers checked. Gates in {report['gates']}."


PRINTERS = {"demo": demo, "rivals": rivals, "gpu_gemv": gpu_gemv, "gpu_stack": gpu_stack, "gpu_formats": gpu_formats,
            "gpu_quantized_mm": gpu_quantized_mm, "gru_g2p": gru_g2p, "gru_denoise": gru_denoise, "gru_cpu": gru_cpu, "gru_gpu": gru_gpu}
FILES = {name: "gpu" for name in PRINTERS if name.startswith("gpu_")}  # others: their own names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()

        def fill(match: re.Match) -> str:
            data = json.loads((ROOT / f"bench/results/{FILES.get(match[1], match[1])}.json").read_text())
            printer = matmuls if match[1].startswith("cpu_") else PRINTERS[match[1]]
            return f"<!-- table: {match[1]} -->\n{printer(data)}\n<!-- end -->"

        new = re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.S)
        if new != text:
            stale.append(str(page.relative_to(ROOT)))
            if not options.check:
                page.write_text(new)
    if stale:
        print(("tables differ from bench/results: " if options.check else "printed: ") + ", ".join(stale))
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
