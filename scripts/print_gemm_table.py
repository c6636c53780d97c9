#!/usr/bin/env python3
"""Prints the table of docs/cuda-gemm.md from a results file, or with --check compares the page with it.

Usage: print_gemm_table.py [--check] bench/results/gemm-h200.json
       print_gemm_table.py --from-log LOG name clocks   makes the results file of the output of lowbit_gemm_bench
"""
import json
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/cuda-gemm.md"
BEGIN, END = "<!-- table: gemm-h200.json -->", "<!-- end of table -->"
TARGETS = {("w2a8-bitnet", 2048, 13824): 100, ("w2a8-bitnet", 512, 13824): 28,
           ("w4a16-g128", 1, 4096): 5, ("w4a16-g128", 16, 4096): 5, ("w4a16-g128", 64, 4096): 8, ("w4a16-g128", 256, 4096): 14,
           ("w4a8-g128", 1, 4096): 5, ("w4a8-g128", 16, 4096): 5, ("w4a8-g128", 64, 4096): 8, ("w4a8-g128", 256, 4096): 14,
           ("w4a8-row", 1, 4096): 5, ("w4a8-row", 16, 4096): 5, ("w4a8-row", 64, 4096): 8, ("w4a8-row", 256, 4096): 14,
           ("w4a16-g128", 1, 14336): 10, ("w4a16-g128", 64, 14336): 13, ("w4a8-g128", 1, 14336): 10, ("w4a8-g128", 64, 14336): 13,
           ("w2a8-8192", 8192, 8192): 785, ("w4a8-8192", 8192, 8192): 785, ("w8a8-8192", 8192, 8192): 785}


def from_log(log: Path, machine: str, clocks: str) -> dict:
    rows, head = [], {}
    for line in log.read_text().splitlines():
        record = json.loads(line) if line.startswith("{") else {}
        if "row" in record:
            rows.append(record)
        else:
            head.update(record)
    return {"machine": machine, "clocks": clocks, **head, "rows": rows}


def table(results: dict) -> str:
    shapes, lines = {}, []
    for r in results["rows"]:
        shapes.setdefault((r["row"], r["m"], r["n"], r["k"]), []).append(r)
    for (name, m, n, k), rows in shapes.items():
        ours = {r["launch"]: r for r in rows if r["impl"] == "lowbit"}
        rivals = {r["impl"]: r["us"] for r in rows if r["impl"].startswith("cublas")}
        best = min((r["us"] for r in ours.values()), default=None)
        if best is None:
            continue
        kernel = next(iter(ours.values()))
        cell = lambda us: "-" if us is None else f"{us:.1f}"
        half = rivals.get("cublas_f16", rivals.get("cublas_bf16"))
        target = TARGETS.get((name, m, n))
        lines.append(f"| {name} | {m} | {n} x {k} | {kernel['kernel'].removeprefix('sm90_')}, {kernel['split']} "
                     f"| {cell(ours['plain']['us'])} | {cell(ours['dependent']['us'])} | {cell(half)} | {cell(rivals.get('cublas_int8'))} "
                     f"| {2e-6 * m * n * k / best:.0f} | {cell(target)} |")
    return "\n".join(["| weights, x | M | N x K | tile, split | plain us | dependent us | cuBLAS 16 bit us | cuBLAS int8 us | TOP/s | goal us |",
                      "|---|---|---|---|---|---|---|---|---|---|", *lines])


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--from-log"]:
        print(json.dumps(from_log(Path(arguments[1]), arguments[2], arguments[3]), indent=1))
        return 0
    text = table(json.loads(Path(arguments[-1]).read_text()))
    if arguments[0] != "--check":
        print(text)
        return 0
    page = PAGE.read_text()
    same = page[page.index(BEGIN) + len(BEGIN):page.index(END)].strip() == text
    print("docs/cuda-gemm.md: " + ("the table is up to date" if same else "the table differs from the results"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
