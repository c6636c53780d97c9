"""Tables of speed for print_tables.py: beside llama.cpp, matrix products and models on CPUs, products on GPUs. Each
takes a report of bench/results/."""

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

def rivals(report: dict) -> str:
    lines = ["| program | weights | bits/weight | prefill 128, tok/s | decode 64, tok/s |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['program']} | {row['weights']} | {row['bits_per_weight']:.2f} | {row['prefill_tok_s']:.0f} | "
                     f"{row['decode_tok_s']:.0f} |")
    return "\n".join(lines) + f"\n\n{report['cpu']}, {report['threads']} threads, {report['model']}; one run, programs in turn."


def optional(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


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
    """The seed's five shapes and a layer of the 2B-4T model: as it prints them (A100), and its kernel, cuBLAS and ours
    here."""
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
        # more rows never overlap
        row = {m: find(report, part="quantized_mm", bits=bits, m=m, overlap=m <= 2) for m in (1, 2, 8, 16, 64)}
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
