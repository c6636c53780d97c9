#!/usr/bin/env python3
"""Prints the tables of the README and of docs/ from the JSON in bench/results/, between their markers; with --check only says whether they differ.

  <!-- table: demo --> ... <!-- end -->     bench/results/demo.json      (build/demo/report.json of scripts/demo.sh)
  <!-- table: rivals --> ... <!-- end -->   bench/results/rivals.json    (bench/rivals/compare.py)
  <!-- table: gpu_... --> ... <!-- end -->  bench/results/gpu.json       (bench/gpu/device_matmul_bench.cc); gpu_seed: and bitnet_a100.json
  <!-- table: cpu_NAME --> ... <!-- end --> bench/results/cpu_NAME.json  (bench/rivals/matmul.py)
  <!-- table: rounds_NAME --> ... <!-- end --> the same name             (bench/rivals/rounds.py)
  <!-- table: models_NAME --> and steps_NAME bench/results/models_NAME.json (bench/rivals/models.py)
  <!-- table: ways_NAME --> ... <!-- end --> bench/results/ways_NAME.json (lowbit_alternatives_bench, with --mib 512 and 0)
  <!-- table: gru_g2p --> and gru_denoise   the same names               (examples/check_accuracy.py --write)
  <!-- table: gru_cpu --> ... <!-- end -->  bench/results/gru_cpu.json   (lowbit_gru_bench)
  <!-- table: gru_rivals_NAME -->          the same name                    (bench/rivals/gru.py)
  <!-- table: gru_gpu --> ... <!-- end -->  bench/results/gru_gpu.json   (lowbit_gru_device_bench, bench/rivals/cudnn_gru.py under "cudnn")
  <!-- table: quality --> ... <!-- end -->  bench/results/quality.json   (bench/quality/ladder.py)
  <!-- table: calibration --> ... <!-- end --> bench/results/calibration.json (bench/quality/calibration_device.py)
  <!-- table: recovery -->, recovered, best (with quality.json), mixes, losses bench/results/recovery.json (bench/quality/recovery.py)
  <!-- table: noise --> ... <!-- end -->    bench/results/noise.json     (bench/quality/noise.py)
  <!-- table: activations -->, tasks ... <!-- end --> bench/results/tasks.json  (bench/quality/checkpoints.py)
"""
import argparse
import json
import re
import statistics
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
    for n, k in dict.fromkeys((r["n"], r["k"]) for r in report["rows"] if r["part"] == "rivals"):
        row = {overlap: find(report, part="shapes", n=n, k=k, x="int8", cold=True, overlap=overlap) for overlap in (True, False)}
        bf16 = find(report, part="shapes", n=n, k=k, x="bf16, quantized here", cold=True, overlap=True)
        bitnet, cublas = (find(report, part="rivals", rival=name, n=n, k=k)["us"] for name in ("bitnet", "cublas bf16"))
        lines.append(f"| {n} x {k} | {row[True]['us']:.2f} | {row[False]['us']:.2f} | {bf16['us']:.2f} | {row[True]['gb_s']:.0f} | "
                     f"{bitnet:.2f} | {bitnet / row[True]['us']:.2f} | {cublas:.2f} |")
    return "\n".join(lines)


def gpu_seed(report: dict) -> str:
    """The seed's five shapes and a layer of the 2B-4T model: as it prints them (A100), and its kernel, cuBLAS and ours here."""
    lines = ["| N x K | seed 002, A100: its kernel, us | bf16, us | times | here: its kernel, us | bf16, us | times | this library, us | times bf16 |",
             "|---|---|---|---|---|---|---|---|---|"]
    first = json.loads((ROOT / "bench/results/bitnet_a100.json").read_text())

    def line(name: str, before: tuple | None, bitnet: float, bf16: float, ours: float) -> str:
        left = f"{before[0]:.2f} | {before[1]:.2f} | {before[1] / before[0]:.2f}" if before else "- | - | -"
        return f"| {name} | {left} | {bitnet:.2f} | {bf16:.2f} | {bf16 / bitnet:.2f} | {ours:.2f} | {bf16 / ours:.2f} |"

    for r in first["rows"]:
        shape = {"n": r["n"], "k": r["k"]}
        bitnet, bf16 = (find(report, part="rivals", rival=name, **shape)["us"] for name in ("bitnet", "cublas bf16"))
        ours = find(report, part="shapes", x="int8", cold=True, overlap=True, **shape)["us"]
        lines.append(line(f"{r['n']} x {r['k']}", (r["w2a8_us"], r["bf16_us"]), bitnet, bf16, ours))
    layers = 30
    bitnet, bf16 = (statistics.mean(report["rivals"][f"{name}_stack_us"]) / layers for name in ("bitnet", "bf16"))
    lines.append(line("a layer of the 2B-4T, of 30", None, bitnet, bf16, find(report, part="stack", x="int8", overlap=True)["us"] / layers))
    return "\n".join(lines) + f"\n\n{first['device']}: {first['source']}. Here: {report['device']}, int8 x, cold, in graphs; the layer from the stack of 120 below."


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
        row = {m: find(report, part="quantized_mm", bits=bits, m=m, overlap=m <= 2) for m in (1, 2, 8, 16, 64)}  # more rows never overlap
        alone = find(report, part="quantized_mm", bits=bits, m=1, overlap=False)["us"]
        lines.append(f"| {bits} | {row[1]['us']:.2f} | {alone:.2f} | " + " | ".join(f"{row[m]['us']:.1f}" for m in (2, 8, 16, 64)) +
                     f" | {row[64]['relative_error']:.1e} |")
    return "\n".join(lines)


# ggml's types with as many bits, all of which are measured: the best of them is the rival.
SAME_BITS = {"int4": ("q4_0", "q4_K"), "int2": ("tq2_0", "q2_K", "iq2_xxs"), "ternary": ("tq2_0",),
             "ternary-packed": ("tq2_0",), "binary": ("q1_0", "tq2_0"), "f16": ("f16",)}


# (columns a scale of the weight, of x) of a column of the matmul tables; 0: whole rows
SCALES = {(0, 0): "scales per row", (0, 32): "per row, of x per 32", (64, 0): "per 64", (64, 32): "per 64, of x per 32"}


def matmuls(report: dict) -> str:
    """GOPS, the share of what memory gives (cold) or of the multipliers' peak, and how many times the best of ggml."""
    def rival(format_name: str, m: int) -> dict | None:
        same = [r for r in report["ggml"] if r["type"] in SAME_BITS.get(format_name, ()) and r["n"] == m]
        return max(same, key=lambda r: r["gops"], default=None)

    peaks = report.get("peak_gops", {})
    whole_core = max((row.get("instructions_per_ns", 0) for row in report["lowbit"]), default=0)

    def cell(row: dict, other: dict | None) -> str:
        peak = peaks.get(row["isa"], 0) if row["activation_group"] != -1 else 0  # of integers
        share = row["gb_s"] / row.get("read_gb_s", report["read_gb_s"]) if row["cold"] else row["gops"] / peak if peak else 0
        text = f"{row['gops']:.0f}" + (f", {100 * share:.0f} %" if share else "") + (f", {row['gops'] / other['gops']:.2f}x" if other else "")
        shared = whole_core and report.get("shared_cores") and row["instructions_per_ns"] < 0.7 * whole_core
        return text + (" *" if shared else "")

    lines = ["| tokens | weights | instructions | " + " | ".join(SCALES.values()) + " | best of ggml |", "|---|---|---|" + "---|" * len(SCALES) + "---|"]
    keys = dict.fromkeys((r["m"], r["isa"], r["format"], r["activation_group"] == -1) for r in report["lowbit"])
    for m, isa, name, floats in sorted(keys, key=lambda k: (k[0], [r["isa"] for r in report["lowbit"]].index(k[1]))):
        of = {(r["group"], max(r["activation_group"], 0)): r for r in report["lowbit"]
              if (r["m"], r["isa"], r["format"], r["activation_group"] == -1) == (m, isa, name, floats)}
        other = rival(name, m)
        cells = [cell(of[pair], other) if pair in of else "-" for pair in SCALES]
        lines.append(f"| {m} | {name}{', f32 x' if floats else ''} | {isa} | " + " | ".join(cells) +
                     (f" | {other['type']} {other['buffer']}: {other['gops']:.0f} |" if other else " | - |"))
    peak = "; ".join(f"{isa} {gops:.0f}" for isa, gops in peaks.items())
    read = f"{report['read_gb_s']:.1f} GB/s"
    each = "read_gb_s" in report["lowbit"][0]  # a row has a plain read of its own
    caption = [f"{report['machine']}, {report['threads']} pinned threads, 4096 x 4096, GOPS, median of runs; up to 16 tokens the share is of a plain read",
               f" just before, {read} in the middle" if each else f", {read}",
               f", of more tokens of the multipliers' peak ({peak})" if peak else "",
               ", *: on less than 70 % of a core" if report.get("shared_cores") else "", f". {report['note']}"]
    return "\n".join(lines) + ("\n\n" + "".join(caption)).rstrip()


def rounds(report: dict) -> str:
    """One row of x: medians and ranges of rounds, ratios of neighbours in time."""
    def spread(values: list[float], digits: int) -> str:
        values = sorted(values)
        return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"

    lines = ["| N x K | weights | scales | GOPS | of a plain read | rival | its GOPS | times |", "|---|---|---|---|---|---|---|---|"]
    for first in report["rounds"][0]:
        same = [r for one in report["rounds"] for r in one if all(r[key] == first[key] for key in ("n", "k", "format", "group"))]
        share = statistics.median(r["gb_s"] / r["read_gb_s"] for r in same)
        lines.append(f"| {first['n']} x {first['k']} | {first['format']} | {SCALES[first['group'], 0].removeprefix('scales ')} | "
                     f"{spread([r['gops'] for r in same], 0)} | {100 * share:.0f} % | {first['rival']} | "
                     f"{statistics.median(r['rival_gops'] for r in same):.0f} | {spread([r['gops'] / r['rival_gops'] for r in same], 2)} |")
    reads = [r["read_gb_s"] for one in report["rounds"] for r in one]
    return "\n".join(lines) + (f"\n\n{report['machine']}, {report['isa']}, {report['threads']} pinned threads, {len(report['rounds'])} rounds: "
                               f"median (range); a plain read got {spread(reads, 0)} GB/s. {report['note']}").rstrip()


def models(report: dict) -> str:
    lines = ["| program | model | weights, MB | x | prefill, tok/s | decode, tok/s | weights read, GB/s | of memory's |",
             "|---|---|---|---|---|---|---|---|"]
    for r in report["rows"]:
        read = 1e-9 * r["weight_bytes"] * r["decode_tok_s"]
        if r.get("steps"):  # without the embedding, and with keys and values
            token = sum(s["gb_s"] * s["ms"] * 1e-3 for s in r["steps"] if s["phase"] == "generation")
            read = token * r["decode_tok_s"]
        lines.append(f"| {r['program']} | {r['name']} | {1e-6 * r['weight_bytes']:.0f} | {r['act'] or '-'} | {r['prefill_tok_s']:.0f} | "
                     f"{r['decode_tok_s']:.1f} | {read:.1f} | {100 * read / report['read_gb_s']:.0f} % |")
    return "\n".join(lines) + (f"\n\n{report['machine']}, {report['threads']} pinned threads, prompt {report['prompt']}, generation "
                               f"{report['generate']}; read of memory: {report['read_gb_s']:.1f} GB/s. {report['note']}").rstrip()


def steps(report: dict) -> str:
    rows = [r for r in report["rows"] if r.get("steps")]
    names = list(dict.fromkeys(s["step"] for r in rows for s in r["steps"]))
    lines = ["| model | x | phase | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names)]
    for r in rows:
        for phase in ("prompt", "generation"):
            of = {s["step"]: s for s in r["steps"] if s["phase"] == phase}
            cells = [f"{of[n]['ms']:.2f}, {100 * of[n]['share']:.0f} %" if n in of else "-" for n in names]
            lines.append(f"| {r['name']} | {r['act']} | {phase} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def threads(report: dict) -> str:
    counts = sorted({r["threads"] for r in report["rows"]})
    lines = ["| tokens | kernel | " + " | ".join(f"{n} thread{'s' * (n > 1)}" for n in counts) + " |", "|---|---|" + "---|" * len(counts)]
    for kernel, m in sorted(dict.fromkeys((r["kernel"], r["m"]) for r in report["rows"]), key=lambda pair: pair[1]):
        of = {r["threads"]: r for r in report["rows"] if (r["kernel"], r["m"]) == (kernel, m)}
        first = of[min(of)]["gops"]
        cells = []
        for n in counts:
            r = of.get(n)
            memory = f"; {r['gb_s']:.1f} of {r['plain_gb_s']:.1f} GB/s" if r and r["plain_gb_s"] else ""
            factor = f", {r['gops'] / first:.2f}x" if r and n > min(of) else ""
            cells.append(f"{r['gops']:.0f}{factor}{memory}" if r else "-")
        lines.append(f"| {m} | `{kernel}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + (f"\n\n{report['machine']}, GOPS, median; 4096 x 4096; \"of\": a plain read by as many threads. {report['note']}").rstrip()


def parts(report: dict) -> str:
    lines = ["| what | ns | cycles |", "|---|---|---|"]
    lines += [f"| {r['part']} | {r['ns']:.1f} | {r['cycles']:.0f} |" for r in report["rows"]]
    return "\n".join(lines) + f"\n\n{report['machine']}. {report['note']}".rstrip()


def ways(report: dict) -> str:
    warm = {r["way"]: f"{r['gops']:.0f}" for r in report["warm"]}
    cold = {r["way"]: r for r in report["cold"]}
    lines = ["| way | weights from memory: GOPS | GB/s | from the caches: GOPS |", "|---|---|---|---|"]
    for way in dict.fromkeys([*cold, *warm]):
        from_memory = f"{cold[way]['gops']:.0f} | {cold[way]['gb_s']:.1f}" if way in cold else "- | -"
        lines.append(f"| {way} | {from_memory} | {warm.get(way, '-')} |")
    first = [*report["cold"], *report["warm"]][0]
    return "\n".join(lines) + (f"\n\n{report['machine']}, {first['threads']} threads, {first['n']} x {first['k']}, one token, one "
                               f"scale per row; sums checked.")


def gru_g2p(report: dict) -> str:
    lines = ["| network | phoneme error rate, % | words right, % | words as in float, % | size |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['name']} | {row['per']:.2f} | {row['words']:.2f} | {row['same']:.2f} | {row['bytes_ratio']:.3f} |")
    return "\n".join(lines) + (f"\n\n{report['test_words']} words, calibrated on {report['calibration_words']} others, tuned on "
                               f"{report['tuning_words']}.")


def gru_denoise(report: dict) -> str:
    lines = ["| network | SI-SDR, dB | size | times real time |", "|---|---|---|---|"]
    lines += [f"| {row['name']} | {row['si_sdr_db']:.2f} | {row['bytes_ratio']:.3f} | {row['times_real_time']:.0f} |"
              for row in report["rows"]]
    return ("\n".join(lines) + f"\n\nThe noisy file itself: {report['noisy_db']:.2f} dB. Speed: one core of Zen 4, of the GRUs alone but "
            "in the rows of all layers.")


def gru_cpu(report: dict) -> str:
    lines = ["| N, C, H | preset | instruction set | us per step, whole sequence | streamed |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        if row["preset"] != "gates12":
            lines.append(f"| {row['n']}, {row['c']}, {row['h']} | {row['preset']} | {row['isa']} | {row['us_per_step']:.2f} | "
                         f"{row['stream_us_per_step']:.2f} |")
    return "\n".join(lines) + f"\n\n{report['cpu']}, one core, {report['statistic']}, every answer checked against the reference."


def gru_rivals(report: dict) -> str:
    lines = ["| N, C, H | instruction set | us per step | streamed | int4 weights | streamed | `accurate` | oneDNN f32 | bf16 | u8s8, reset first | of f32's |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in report["rows"]:
        other = r["onednn"]
        lines.append(f"| {r['n']}, {r['c']}, {r['h']} | {r['isa']} | {r['us_per_step']:.2f} | {r['stream_us_per_step']:.2f} | "
                     f"{r['int4_us_per_step']:.2f} | {r['int4_stream_us_per_step']:.2f} | {r['accurate_us_per_step']:.2f} | {other['f32']:.2f} | "
                     f"{optional(other.get('bf16'), 2)} | {optional(other.get('u8s8'), 2)} | {r['us_per_step'] / other['f32']:.2f} |")
    return "\n".join(lines) + (f"\n\n{report['machine']}, one core, {report['statistic']}, both programs' answers checked; oneDNN {report['onednn']}, "
                               f"on AVX2 where lowbit is. Presets `seed8`, `accurate`.")


GRU_GOALS_US = {(100, 1, 64, 64): 25, (100, 64, 256, 256): 150, (500, 32, 512, 512): 750, (100, 128, 1024, 1024): 400}  # the design's, of seed8


def gru_gpu(report: dict) -> str:
    lines = ["| T, N, C, H | preset | kernel | us | wanted | input product and first step | a step more | cuDNN fp16, us | ratio |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in report["rows"]:
        if not row["chosen"]:
            continue
        shape = {k: row[k] for k in "tnch"}
        rival = find(report["cudnn"], dtype="float16", **shape)["us"]
        goal = GRU_GOALS_US.get(tuple(shape.values())) if row["preset"] == "seed8" else None
        further = (row["us"] - row["one_step_us"]) / (row["t"] - 1)
        lines.append(f"| {', '.join(str(v) for v in shape.values())} | {row['preset']} | `{row['kernel']}` | {row['us']:.1f} | {optional(goal, 0)} | "
                     f"{row['one_step_us']:.1f} | {further:.3f} | {rival:.0f} | {rival / row['us']:.2f} |")
    return "\n".join(lines) + f"\n\n{report['device']}, codes in and out, hot, replayed from a graph, {report['statistic']}; answers checked. Gates in {report['gates']}."


def optional(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def quality(report: dict) -> str:
    lines = ["| format | fit | bits/weight | PPL | ratio | KLD | top-1 | TinyStories, ratio |", "|---|---|---|---|---|---|---|---|"]
    for r in report["rows"]:
        fit = ", ".join(part for part in (r["fit"], r.get("options", "").replace(",", ", ").replace("=", " ")) if part)
        lines.append(f"| {r['format']} | {fit} | {r['bits_per_weight']:.2f} | {r['ppl']:.2f} | {r['ratio']:.3f} | {optional(r['kld_mean'], 3)} | "
                     f"{optional(r['top1'], 3)} | {r['tiny_ratio']:.2f} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; {report['calibration']}, {report['tokens']} tokens; {report['chunks']} chunks of 512, "
                               f"base {report['base']['ppl']:.4f} (TinyStories {report['base']['tiny_ppl']:.4f}).")


def recovery(report: dict) -> str:
    lines = ["| format | bits/weight | stages | tokens | of text | settled | samples | PPL | ratio | KLD | top-1 | TinyStories, ratio |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]

    def line(r: dict, stages: str, after: dict, of_distillation: tuple) -> str:
        scales = (", scales double" if r.get("scale") == "double" else "") + (f", recipe {r['recipe']}" if "recipe" in r else "")
        return (f"| {r['format']} g{r['group']}{scales} | {r['bits_per_weight']:.2f} | {stages} | {' | '.join(of_distillation)} | {after['ppl']:.2f} | "
                f"{after['ratio']:.3f} | {optional(after['kld_mean'], 3)} | {optional(after['top1'], 3)} | {after['tiny_ratio']:.2f} |")

    for r in report["rows"]:
        options = dict(option.partition("=")[::2] for option in r["options"])
        stages = [stage["method"] + (f" ({stage['steps']} steps)" if stage["method"] == "blocks" else "") for stage in r["recovery"]["stages"]]
        nothing = ("-",) * 4
        if "blocks" in r:
            lines.append(line(r, stages[0], r["blocks"], nothing))
        share = float(options.get("block-text-share", 1))
        if share < 1:
            stages[0] += f", {'half' if share == 0.5 else f'{100 * (1 - share):.0f} %'} of them sampled sequences"
        if "train-embedding" in options:
            stages[-1] += " with the embedding"
        trained = (r["tokens"], f"{100 * float(options.get('text-share', 0.3)):.0f} %", "no" if options.get("settle") == "1" else "yes",
                   ("chats, openings" + "".join(f", {kind}" for kind, mark in (("rewritten", "rewritten="), ("words", "word="), ("questions", "question=")) if mark in r["sampling"]))
                   if "sampling" in r else f"any token, T {options.get('sample-temperature', '1').replace(',', ' to ')}")
        lines.append(line(r, ", ".join(stages), r["recovered"], trained if r["tokens"] != "0M" else nothing))
    return "\n".join(lines) + (f"\n\n{report['model']} on {report['device']}; {report['chunks']} chunks of 512, base {report['base']['ppl']:.4f} "
                              f"(TinyStories {report['base']['tiny_ppl']:.4f}).")


def size_of(row: dict) -> int:
    """A quarter of a bit; below two bits there is one size."""
    return round(4 * row["bits_per_weight"]) if row["bits_per_weight"] > 2 else 0


def best_of_sizes(report: dict) -> list[dict]:
    """Of each size the distilled row whose two ratios have the least product, the largest size first."""
    trained = {}
    for r in report["rows"]:
        if r["tokens"] != "0M":
            trained.setdefault(size_of(r), []).append(r)
    return [min(trained[size], key=lambda r: r["recovered"]["ratio"] * r["recovered"]["tiny_ratio"]) for size in sorted(trained, reverse=True)]


def recovered(report: dict) -> str:
    """Of each size in short: its best row, and the least ratio that blocks alone reached in its format."""
    lines = ["| bits/weight | format | perplexity, ratio: quantized by blocks | and distilled | on TinyStories |", "|---|---|---|---|---|"]
    blocks = {}
    for r in report["rows"]:
        ratios = blocks.setdefault((size_of(r), r["format"]), [])
        if "blocks" in r:
            ratios.append(r["blocks"]["ratio"])
        if r["tokens"] == "0M":
            ratios.append(r["recovered"]["ratio"])
    for best in best_of_sizes(report):
        name = "mixed" if best["format"].startswith("bpw") else best["format"] + ", three bits where they count" * ("recipe" in best)
        alone = min(blocks[size_of(best), best["format"]], default=None)
        lines.append(f"| {best['bits_per_weight']:.2f} | {name} | {optional(alone, 3)} | {best['recovered']['ratio']:.3f} | {best['recovered']['tiny_ratio']:.2f} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; WikiText-2 test, {report['chunks']} chunks of 512; bits of linear layers, scales included; the distilled row of "
                              "each size is the one whose two ratios have the least product.")


def best(report: dict) -> str:
    """What each way of quantizing reaches with about four, three and two bits: the README's table."""
    ladder = json.loads((ROOT / "bench/results/quality.json").read_text())
    lines = ["| bits/weight | format | how | perplexity / the original's | on TinyStories |", "|---|---|---|---|---|"]
    line = lambda r, how, after: lines.append(f"| {r['bits_per_weight']:.2f} | {'mixed' if r['format'].startswith('bpw') else r['format']} | {how} | {after['ratio']:.3f} | {after['tiny_ratio']:.2f} |")
    for how, steps in (("weights alone, seconds", ("int4:lsq", "int3:lsq")),
                       ("calibrated (`--fit asymmetric`), minutes on a CPU", ("int4:align", "int3:align", "trellis2:align", "trellis2:align:group=192,scale=double,recipe=v-early-trellis-align"))):
        for step in steps:
            row = next(r for r in ladder["rows"] if r["step"] == step)
            line(row, how + ", three bits where they count" * ("recipe" in step), row)
    for row in best_of_sizes(report):
        line(row, "trained, minutes on a GPU" + ", three bits where they count" * ("recipe" in row), row["recovered"])
    return "\n".join(lines) + f"\n\n{report['model']}; WikiText-2 test, {report['chunks']} chunks of 512; bits of linear layers, scales included."


def calibration(report: dict) -> str:
    lines = ["| model | device | threads | tokens | measuring, s | fitting, s | quantized blocks, s | all, s |", "|---|---|---|---|---|---|---|---|"]
    for part in report["reports"]:
        for r in part["rows"]:
            lines.append(f"| {part['model']} | {r['device'].upper()} | {r['threads']} | {r['tokens']} | {r['measure']:.1f} | {r['fit']:.1f} | {r['advance']:.1f} | "
                         f"{r['seconds']:.1f} |")
    first = report["reports"][0]
    return "\n".join(lines) + f"\n\n{first['cpu']}; {first['gpu']}. int4; rows of one model and as many tokens wrote the same bytes."


def activations(report: dict) -> str:
    acts = ["f32", "int8", "int8-row", "int8-clip", "int4"]
    lines = ["| weights | " + " | ".join(acts) + " |", "|---" * (len(acts) + 1) + "|"]
    for row in report["rows"]:
        if not row["ppl"]:
            continue
        base = row["ppl"].get("f32")
        cost = lambda ratio: f" ({100 * (ratio - 1):+.2f} %)" if ratio < 2 else f" ({ratio:.0f} times)"
        cells = [f"{row['ppl'][a]:.2f}" + (cost(row["ppl"][a] / base) if base and a != "f32" else "") if a in row["ppl"] else "-" for a in acts]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{report['model']}, WikiText-2 test, {report['chunks']} chunks of 512."


def paired(task: dict, base: dict, key: str) -> str:
    """Difference of two models' answers to the same questions, with the standard error of the mean of the differences."""
    if key not in task or key not in base or task is base:
        return "-"
    n = len(base[key])
    gained, lost = (sum(pair == wanted for pair in zip(task[key], base[key], strict=True)) for wanted in (("1", "0"), ("0", "1")))
    mean = (gained - lost) / n
    return f"{100 * mean:+.1f} ± {100 * (((gained + lost) / n - mean**2) / (n - 1))**0.5:.1f}"


def tasks(report: dict) -> str:
    lines = ["| model | x | arc_easy, % | points to the original | by length, % | points to the original | winogrande, % |", "|---|---|---|---|---|---|---|"]
    percent = lambda task, key: f"{100 * task[key]:.1f} ± {100 * task[key + '_error']:.1f}" if task else "-"
    base = next(row for row in report["rows"] if row["tasks"].get("arc_easy", {}).get("activation") == "f32")["tasks"]
    for row in report["rows"]:
        if "arc_easy" in row["tasks"]:
            arc, grande = row["tasks"]["arc_easy"], row["tasks"].get("winogrande")
            lines.append(f"| {row['name']} | {arc['activation']} | {percent(arc, 'accuracy')} | {paired(arc, base['arc_easy'], 'right')} | "
                         f"{percent(arc, 'normalized_accuracy')} | {paired(arc, base['arc_easy'], 'right_normalized')} | {percent(grande, 'accuracy')} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; {base['arc_easy']['questions']} and 1267 questions, no examples given; differences question by "
                              f"question.")


def original_answers() -> dict:
    """arc_easy of the file's own weights."""
    report = json.loads((ROOT / "bench/results/tasks.json").read_text())
    return next(row for row in report["rows"] if row["tasks"].get("arc_easy", {}).get("activation") == "f32")["tasks"]["arc_easy"]


def changed(task: dict, base: dict) -> str:
    """Questions that were answered rightly by one of two models alone."""
    return f"{100 * sum(a != b for a, b in zip(task['right'], base['right'], strict=True)) / len(base['right']):.1f} %"


def answers(row: dict, base: dict) -> str:
    """arc_easy of a row: points, questions changed, points by length."""
    if "tasks" in row:
        task = row["tasks"]["arc_easy"]
        return f"{paired(task, base, 'right')} | {changed(task, base)} | {paired(task, base, 'right_normalized')}"
    return f"{100 * (row['accuracy'] - base['accuracy']):+.1f} | - | -" if "accuracy" in row else "- | - | -"


def mixes(report: dict) -> str:
    """Rows that differ in what they were trained on, all compared on the same held-out sequences."""
    kinds = ("chat", "rewritten", "word")
    lines = ["| format | start | mixture | text in blocks, batches | at T 2 | decay | seed | " + " | ".join(f"held-out: {kind}" for kind in ("text", *kinds))
             + " | WikiText-2, ratio | TinyStories | arc_easy, points | changed | by length |", "|---" * (12 + len(kinds) + 1) + "|"]
    base = original_answers()
    for r in report["mixes"]:
        options = dict(option.partition("=")[::2] for option in r["options"])
        soft, decay, seed = (options.get(name, default) for name, default in (("soft-share", "-"), ("decay", "-"), ("seed", "0")))
        text = ", ".join(f"{100 * float(options.get(name, default)):.0f} %" for name, default in (("block-text-share", 1), ("text-share", 0.3)))
        held = " | ".join(f"{value:.4f}" for value in (r["after"]["kl"], *(r["after"]["kinds"][kind] for kind in kinds)))
        measured = " | ".join(f"{r['recovered'][key]:.3f}" if "recovered" in r else "-" for key in ("ratio", "tiny_ratio"))
        lines.append(f"| {r['format']} g{r['group']} | {r['fit']} | {r['mix']} | {text} | {soft} | {decay} | {seed} | {held} | {measured} | {answers(r, base)} |")
    return "\n".join(lines) + (f"\n\n{report['model']} on {report['device']}, 14M tokens after 200 steps of blocks; KL divergence on held-out sequences, 32 of each "
                              "kind (16 of the text).")


def mean(values: list, digits: int) -> str:
    """Of those that were measured, with the error of the mean where there are several."""
    values = [v for v in values if v is not None]
    error = f" ± {statistics.stdev(values) / len(values)**0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{error}" if values else "-"


OTHER_MIXES = {"asked": "questions", "exam": "questions in the test's form"}


def losses(report: dict) -> str:
    """Recipes by format, each with the mean over its seeds."""
    lines = ["| format | bits/weight | tokens | rate | T | else | seeds | held-out: text | word | question | rms | near | agree | WikiText-2, ratio | TinyStories | "
             "arc_easy, points | changed | by length | winogrande |", "|---" * 19 + "|"]
    base, recipes = report["teacher_answers"], {}
    for r in report["losses"]:
        recipes.setdefault(":".join(part for part in r["row"].split(":") if not part.startswith("seed=")), []).append(r)

    def points(rows: list, key: str, answers: str, base: dict) -> str:
        if any(answers not in r for r in rows):
            return "-"
        if len(rows) == 1:
            return paired(rows[0][answers], base, key)
        return mean([100 * (r[answers][key].count("1") - base[key].count("1")) / len(base[key]) for r in rows], 1)

    for rows in recipes.values():
        first, options = rows[0], {"soft-temperature": "4" if "mix" in rows[0] else "2", **dict(option.partition("=")[::2] for option in rows[0]["options"])}
        other = [f"{name.replace('-', ' ')} {options[name]}".strip() for name in
                 ("soft-share", "exchange", "piece", "hidden-weight", "stream-weight", "score-weight", "alone", "train-embedding")
                 if name in options and (name, options[name]) != ("soft-share", "0.5")]
        named = {"recipe": first.get("recipe"), "batch": options.get("batch")}
        other = [f"{key} {value}" for key, value in named.items() if value] + other
        other += ["no blocks"] if options.get("method") == "full" else []
        other += [OTHER_MIXES[first["mix"]]] if "mix" in first else []
        other += [f"text {100 * float(options['text-share']):.0f} %"] if options["text-share"] != "0.25" else []
        values = [mean([r["after"]["kl"] for r in rows], 4), *(mean([r["after"]["kinds"].get(kind) for r in rows], 4) for kind in ("word", "question"))]
        values += [mean([r.get(key) for r in rows], 3) for key in ("rms", "near", "agree")]
        values += [mean([r.get("recovered", {}).get(key) for r in rows], 3) for key in ("ratio", "tiny_ratio")]
        share = mean([float(changed(r["answers"], base).rstrip(" %")) for r in rows if "answers" in r], 1)
        values += [points(rows, "right", "answers", base), share if share == "-" else share + " %"]
        values += [points(rows, "right_normalized", "answers", base), points(rows, "right", "winogrande", report["teacher_winogrande"])]
        lines.append(f"| {first['format']} g{first['group']} | {first['bits_per_weight']:.2f} | {first['tokens']} | {options['lr']} | {options['soft-temperature']} | "
                     f"{', '.join(other) or '-'} | {len(rows)} | {' | '.join(values)} |")
    return "\n".join(lines) + (f"\n\n{report['model']} on {report['device']}; half of the loss at T; 120 steps of blocks on 2,048 sequences, half of them text; text, where not said, 25 % of "
                              "batches, else the mixture of words; exact activations. Errors are of the mean over seeds; where there is one, of the questions.")


def noise(report: dict) -> str:
    lines = ["| noise, parts of a row's size | seed | KLD | top-1 | PPL, ratio | TinyStories, ratio | arc_easy, points | changed | by length |", "|---" * 9 + "|"]
    base = original_answers()

    def line(size: str, seed, measured: dict, row: dict) -> str:
        return (f"| {size} | {seed} | {measured['kld_mean']:.3f} | {measured['top1']:.3f} | {measured['ratio']:.3f} | {measured['tiny_ratio']:.3f} | "
                f"{answers(row, base)} |")

    for r in sorted(report["rows"], key=lambda r: (r["size"], r["seed"])):
        lines.append(line(f"{r['size']:g}", r["seed"], r, r))
    lines += [line(f"{r['row'].partition('noise-')[2].split(':')[0]}, distilled", 0, r["recovered"], r) for r in report["distilled"]]
    return "\n".join(lines) + f"\n\n{report['model']}; weights in int8 in groups of 64, int8 activations for the questions; {report['chunks']} chunks of 512."


PRINTERS = {"demo": demo, "rivals": rivals, "gpu_gemv": gpu_gemv, "gpu_seed": gpu_seed, "gpu_stack": gpu_stack, "gpu_formats": gpu_formats,
            "gpu_quantized_mm": gpu_quantized_mm, "gru_g2p": gru_g2p, "gru_denoise": gru_denoise, "gru_cpu": gru_cpu, "gru_gpu": gru_gpu,
            "quality": quality, "calibration": calibration, "recovery": recovery, "recovered": recovered, "best": best, "mixes": mixes, "losses": losses, "noise": noise,
            "activations": activations, "tasks": tasks}
FILES = {"activations": "tasks", **dict.fromkeys(("recovered", "best", "mixes", "losses"), "recovery"),
         **{name: "gpu" for name in PRINTERS if name.startswith("gpu_")}}  # others: their own names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()

        def fill(match: re.Match) -> str:
            name = FILES.get(match[1], re.sub("^steps_", "models_", match[1]))
            data = json.loads((ROOT / f"bench/results/{name}.json").read_text())
            kinds = {"gru_rivals": gru_rivals, "cpu": matmuls, "models": models, "steps": steps, "ways": ways, "threads": threads, "parts": parts, "rounds": rounds}
            printer = PRINTERS.get(match[1]) or kinds[match[1].rsplit("_", 1)[0] if match[1].startswith("gru_") else match[1].split("_")[0]]
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
