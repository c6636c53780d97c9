#!/usr/bin/env python3
"""The cost of int8 activations, and answers of checkpoints to questions: perplexity by activation, arc_easy and
winogrande, one JSON.

  checkpoints.py NAME=CHECKPOINT... [--lowbit BIN] [--data DIR] [--acts f32,int8,int8-row] [--tasks arc_easy,winogrande]
      [--out bench/results/tasks.json]

Each part is kept as soon as it is measured; what is in the JSON already is not measured again. Questions are answered
with int8 activations, those to the original (NAME original) with exact ones. Which questions were answered rightly is
kept: differences are those of the same questions.
"""
import argparse
import json
import os
from pathlib import Path

from jobs import ROOT, Bench, Pool, say


class Checkpoints:
    def __init__(self, bench: Bench, pool: Pool, out: Path, exact: str = "original"):
        self.bench, self.pool, self.out, self.exact = bench, pool, out, exact
        self.report = json.loads(out.read_text()) if out.exists() else {**bench.machine(), "rows": []}

    def row(self, name: str) -> dict:
        with self.bench.lock:
            found = [row for row in self.report["rows"] if row["name"] == name]
            if not found:
                found = [{"name": name, "ppl": {}, "tasks": {}}]
                self.report["rows"].append(found[0])
        return found[0]

    def activation(self, name: str, path, activation: str) -> None:
        self.row(name)["ppl"][activation] = self.bench.perplexity(path, "wiki.test.raw", self.bench.chunks, activation)["ppl"]
        self.bench.save(self.out, self.report)

    def task(self, name: str, path, task: str) -> None:
        activation = "f32" if name == self.exact else "int8"
        done = self.bench.lowbit("eval", path, "--tasks", task, "--act", activation)["tasks"][0]
        self.row(name)["tasks"][task] = {"activation": activation, **{key: done[key] for key in (
            "questions", "accuracy", "accuracy_error", "normalized_accuracy", "normalized_accuracy_error", "right", "right_normalized", "seconds")}}
        say(f"{name}: {task} {done['accuracy']:.4f} in {done['seconds']:.0f} s")
        self.bench.save(self.out, self.report)

    def submit(self, name: str, path, acts, tasks, number: int) -> list:
        row = self.row(name)
        jobs = [self.pool.submit(number, self.activation, name, path, act) for act in acts if act not in row["ppl"]]
        return jobs + [self.pool.submit(number, self.task, name, path, task) for task in tasks if task not in row["tasks"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--acts", default="f32,int8,int8-row")
    parser.add_argument("--tasks", default="arc_easy,winogrande")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of each job")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/tasks.json")
    o = parser.parse_args()
    os.environ.setdefault("LOWBIT_DATA", str(o.data))
    work = Checkpoints(Bench(o.lowbit, "default", o.data, o.out.parent, o.chunks, 0, o.threads), Pool(o.jobs), o.out)
    lists = [[part for part in text.split(",") if part] for text in (o.acts, o.tasks)]
    for job in [job for text in o.checkpoints for job in work.submit(*text.split("=", 1), *lists, 0)]:
        job.result()


if __name__ == "__main__":
    main()
