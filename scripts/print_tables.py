#!/usr/bin/env python3
"""Prints the README's tables from the JSON in bench/results/, between their markers; with --check only says whether they differ.

  <!-- table: demo --> ... <!-- end -->     bench/results/demo.json      (build/demo/report.json of scripts/demo.sh)
  <!-- table: rivals --> ... <!-- end -->   bench/results/rivals.json    (bench/rivals/compare.py)
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


PRINTERS = {"demo": demo, "rivals": rivals}


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
