#!/usr/bin/env python3
"""Prints the README's tables from the JSON in bench/results/, between their markers; with --check only says whether they differ.

  <!-- table: demo --> ... <!-- end -->     bench/results/demo.json      (build/demo/report.json of scripts/demo.sh)
  <!-- table: rivals --> ... <!-- end -->   bench/results/rivals.json    (bench/rivals/compare.py)
  <!-- table: gru_g2p --> and gru_denoise   the same names               (examples/check_accuracy.py --write)
  <!-- table: gru_cpu --> ... <!-- end -->  bench/results/gru_cpu.json   (lowbit_gru_bench)
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


PRINTERS = {"demo": demo, "rivals": rivals, "gru_g2p": gru_g2p, "gru_denoise": gru_denoise, "gru_cpu": gru_cpu}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()

        def fill(match: re.Match) -> str:
            data = json.loads((ROOT / f"bench/results/{match[1]}.json").read_text())
            return f"<!-- table: {match[1]} -->\n{PRINTERS[match[1]](data)}\n<!-- end -->"

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
