#!/usr/bin/env python3
"""Prints the tables of the README and of docs/ from the JSON in bench/results/, between their markers; with --check
only says whether they differ.

  <!-- table: demo --> ... <!-- end -->     bench/results/demo.json      (build/demo/report.json of scripts/demo.sh)
  <!-- table: rivals --> ... <!-- end -->   bench/results/rivals.json    (bench/rivals/compare.py)
  <!-- table: gpu_... --> ... <!-- end -->  bench/results/gpu.json       (bench/gpu/device_matmul_bench.cc); gpu_seed:
                                            and bitnet_a100.json
  <!-- table: cpu_NAME --> ... <!-- end --> bench/results/cpu_NAME.json  (bench/rivals/matmul.py)
  <!-- table: rounds_NAME --> ... <!-- end --> the same name             (bench/rivals/rounds.py)
  <!-- table: models_NAME --> and steps_NAME bench/results/models_NAME.json (bench/rivals/models.py)
  <!-- table: ways_NAME --> ... <!-- end --> bench/results/ways_NAME.json (lowbit_alternatives_bench, with --mib 512 and
      0)
  <!-- table: gru_g2p --> and gru_denoise   the same names               (examples/check_accuracy.py --write)
  <!-- table: gru_cpu --> ... <!-- end -->  bench/results/gru_cpu.json   (lowbit_gru_bench)
  <!-- table: gru_rivals_NAME -->          the same name                    (bench/rivals/gru.py)
  <!-- table: gru_gpu --> ... <!-- end -->  bench/results/gru_gpu.json   (lowbit_gru_device_bench,
                                            bench/rivals/cudnn_gru.py under "cudnn")
  <!-- table: quality --> ... <!-- end -->  bench/results/quality.json   (bench/quality/ladder.py)
  <!-- table: calibration --> ... <!-- end --> bench/results/calibration.json (bench/quality/calibration_device.py)
  <!-- table: presets --> ... <!-- end -->  bench/results/presets.json (the commands in it), presets_llama_cpp.json
                                            (bench/rivals/presets.py)
  <!-- table: presets_choices --> ... <!-- end --> the same name (the command in it)
  <!-- table: recovery_presets --> ... <!-- end --> the same name (the commands of docs/recovery.md), presets.json and
                                            presets_choices.json
  <!-- table: recovery -->, recovered, best (with quality.json), mixes, losses bench/results/recovery.json
      (bench/quality/recovery.py)
  <!-- table: noise --> ... <!-- end -->    bench/results/noise.json     (bench/quality/noise.py)
  <!-- table: activations -->, tasks ... <!-- end --> bench/results/tasks.json  (bench/quality/checkpoints.py)
"""
import argparse
import json
import re
import sys
from pathlib import Path

from demo import table as demo_table
from tables_gru import gru_cpu, gru_denoise, gru_g2p, gru_gpu, gru_rivals
from tables_quality import activations, best, calibration, losses, mixes, noise, presets, presets_choices, quality, recovered, recovery, recovery_presets, tasks
from tables_speed import (gpu_formats, gpu_gemv, gpu_quantized_mm, gpu_seed, gpu_stack, matmuls, models, parts, rivals, rounds, steps,
                          threads, ways)

ROOT = Path(__file__).resolve().parent.parent


def demo(report: dict) -> str:
    return (f"{demo_table(report)}\n\n{report['cpu']}, {report['isa']}, {report['threads']} threads; {report['text']}, "
            f"{report['chunks']} chunks of {report['context']} tokens; base: the file's own weights, f32 activations.")


PRINTERS = {"demo": demo, "rivals": rivals, "gpu_gemv": gpu_gemv, "gpu_seed": gpu_seed, "gpu_stack": gpu_stack, "gpu_formats": gpu_formats,
            "gpu_quantized_mm": gpu_quantized_mm, "gru_g2p": gru_g2p, "gru_denoise": gru_denoise, "gru_cpu": gru_cpu, "gru_gpu": gru_gpu,
            "quality": quality, "presets": presets, "presets_choices": presets_choices, "calibration": calibration, "recovery": recovery, "recovery_presets": recovery_presets, "recovered": recovered, "best": best, "mixes": mixes, "losses": losses, "noise": noise,
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
