#!/usr/bin/env python3
"""Measures the tables of docs/quality.md and docs/lab/recipes-log.md again, from nothing but the default model and the
test data, and prints what differs from the page.

  reproduce.py [quality|tasks|noise|losses ...] [--list] [--lowbit BIN] [--data DIR] [--work build/quality] [--gpus 0]
      [--jobs 1] [--only NAME ...]

Which rows there are is read from bench/results/; how the models of `tasks` are made is said in MADE. What is in
WORK/results is not measured again: a run goes on where the last one ended. Quantized rows need a CPU alone (minutes
each, the same figures on any machine). Rows that are trained need --gpus (3 to 4 minutes each on an H200; a GPU rounds
differently, so seeds differ by what the page says), and text sampled from the model needs torch. --list says of every
row how it is made.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from checkpoints import Checkpoints
from jobs import HALF_SAMPLED, ROOT, Bench, Pool, say
from ladder import Ladder

sys.path.insert(0, str(ROOT / "scripts"))
import print_tables  # noqa: E402

RESULTS = ROOT / "bench/results"
# parts and their tables of the pages
TABLES = {"quality": ("quality",), "tasks": ("activations", "tasks"), "noise": ("noise",), "losses": ("losses",)}
PAGES = ("docs/quality.md", "docs/lab/recipes-log.md")
GONE = ("piece=", "hidden-weight=", "stream-weight=", "alone")  # options of training that were tried and taken out
RECORD = "a record: llama.cpp's file, or an option of training or a form of questions that is gone"
MIXES = {  # name: tokens sampled, options of lowbit.sample
    "any": ("16M", "--sample-mix text=1,begin=1,any=2 --sample-min-p 0"),
    "anycool": ("16M", "--sample-mix text=1,begin=1,any=2 --sample-min-p 0 --sample-temperature 0.6,1"),
    "chats": ("8M", ""),
    "rewritten": ("8M", "--sample-mix text=1,rewritten=2,begin=1,chat=2,opening=3,any=1"),
    "rewritten12": ("12000K", "--sample-mix text=1,rewritten=2,begin=1,chat=2,opening=3,any=1"),
    "words": ("13600K", "--sample-mix word=6,chat=2,opening=2,begin=1"),
    "questions5": ("13600K", "--sample-mix question=5,word=3,chat=2,opening=2,begin=1"),
    "questions6": ("13600K", "--sample-mix question=6,word=3,chat=2,opening=2,begin=1"),
    "questions6 of 6400K": ("6400K", "--sample-mix question=6,word=3,chat=2,opening=2,begin=1"),
    "questions6 of 8200K": ("8200K", "--sample-mix question=6,word=3,chat=2,opening=2,begin=1"),
}


class Step(NamedTuple):
    """A checkpoint that `lowbit quantize` makes: a step of ladder.py, and the tokens of its calibration."""
    step: str
    tokens: int = 0


class Trained(NamedTuple):
    """A checkpoint that recovery.py makes: one of its rows, and the mixture of MIXES."""
    row: str
    mix: str


def earlier(row: str) -> str:
    """A row of the time when the loss had one temperature and scales were trained at ten times today's rate."""
    return row + "".join(f":{name}={value}" for name, value in (("soft-share", 0), ("lr-scales", "2e-4")) if f":{name}=" not in row)


CHATS, LONG = "calib-tokens=8192:block-steps=500:block-windows=1024", "calib-tokens=8192:block-windows=2048"
HALF = "block-text-share=0.5:text-share=0.25"
MADE = {
    "the file's own": "default",
    "the file's own, int8 activations": "default",
    "int8 per row": Step("int8:auto"),
    "int8 per row, `--smooth 0.5`": Step("int8:auto:smooth=0.5", 4096),
    "int8 per row, `--hadamard`": Step("int8:auto:hadamard"),
    "int4, calibrated on 8K tokens": Step("int4:refit", 8192),
    "int4, calibrated on 8K tokens, `--hadamard`": Step("int4:refit:hadamard", 8192),
    "codebook4 g40, scales double, calibrated on 8K tokens": Step("codebook4:refit:group=40,scale=double", 8192),
    "codebook3 g40, scales double, calibrated on 8K tokens": Step("codebook3:refit:group=40,scale=double", 8192),
    "trellis3, calibrated on 8K tokens": Step("trellis3:refit", 8192),
    "trellis2, calibrated on 8K tokens": Step("trellis2:refit", 8192),
    "trellis2 and trellis3, recipe v-early-trellis, calibrated on 8K tokens": Step("trellis2:refit:group=192,scale=double,recipe=v-early-trellis", 8192),
    "trellis2 and trellis3, recipe v-early-trellis-align, calibrated on 64K tokens": Step("trellis2:align:group=192,scale=double,recipe=v-early-trellis-align", 65536),
    "int4, calibrated on 64K tokens": Step("int4:refit", 65536),
    "int4, calibrated on 64K tokens, half of them sampled": Step(f"int4:refit:{HALF_SAMPLED}", 65536),
    "int4 g32, scales double, calibrated on 64K tokens, half of them sampled": Step(f"int4:refit:group=32,scale=double,{HALF_SAMPLED}", 65536),
    "int4, recovered": Trained(earlier("int4:64:8M:calib-tokens=8192:settle=1"), "anycool"),
    "int3, recovered (not settled)": Trained(earlier("int3:64:20M:calib-tokens=8192:settle=1"), "anycool"),
    "int3, recovered": Trained(earlier("int3:64:20M:calib-tokens=8192:lr=4e-4:block-steps=600:block-windows=1024"), "anycool"),
    "codebook3, recovered": Trained(earlier("codebook3:72:20M:calib-tokens=8192:block-steps=600:block-windows=1024"), "any"),
    "int2odd, recovered (10 % text)": Trained(earlier("int2odd:64:20M:calib-tokens=8192:text-share=0.1:settle=1"), "any"),
    "int2odd, recovered": Trained(earlier("int2odd:64:20M:calib-tokens=8192:lr=7e-4:block-steps=600:block-windows=1024"), "anycool"),
    "int4, recovered with chats and openings": Trained(earlier(f"int4:64:20M:{CHATS}:text-share=0.2:block-text-share=0.5"), "chats"),
    "int3, recovered with chats and openings": Trained(earlier(f"int3:64:20M:{CHATS}:block-text-share=0.5"), "chats"),
    "codebook3, recovered with chats and openings": Trained(earlier(f"codebook3:72:20M:{CHATS}:block-text-share=0.5"), "chats"),
    "int2odd, recovered with chats and openings": Trained(earlier(f"int2odd:64:20M:{CHATS}:block-text-share=0.5"), "chats"),
    "int2odd, recovered with chats and openings, blocks on text": Trained(earlier(f"int2odd:64:20M:{CHATS}:block-text-share=1"), "chats"),
    "ternary, recovered with chats and openings": Trained(earlier(f"ternary-packed:72:20M:{CHATS}:block-text-share=0.5"), "chats"),
    "codebook3, recovered with rewritten text too": Trained(earlier(f"codebook3:72:18.9M:{LONG}:block-steps=320:block-text-share=0.67:text-share=0.35"), "rewritten"),
    "ternary, recovered with rewritten text and the embedding":
        Trained(earlier(f"ternary-packed:72:18.9M:{LONG}:block-steps=320:block-text-share=0.5:block-lr=4e-4:train-embedding"), "rewritten"),
    "codebook4 g48, scales double, recovered": Trained(f"codebook4:48:18M:{LONG}:{HALF}:scale=double:block-steps=200:lr=2e-4:soft-share=0", "rewritten12"),
    "int2odd, recovered with rewritten text too, 17M tokens": Trained(earlier(f"int2odd:64:17M:{LONG}:{HALF}:block-steps=320:lr=1e-3"), "rewritten12"),
    "int2odd, recovered with rewritten text too, 14M tokens, 0.3 of the loss at temperature 2":
        Trained(f"int2odd:64:14M:{LONG}:{HALF}:block-steps=200:lr=1e-3:soft-share=0.3:soft-temperature=2", "rewritten12"),
}

ANSWERED = {  # rows of `tasks` that are rows of `losses`: by fields of their names
    **{f"codebook4 g40, scales double, recovered with half of the loss at temperature 4, seed {seed}": {"codebook4", "40", "11M", f"seed={seed}"} for seed in range(3)},
    "trellis2 and tables, recipe mlp-trellis, recovered on questions and scores, seed 0": {"recipe=mlp-trellis", "16M", "score-weight=0.2", "seed=0"},
    "codebook2 and codebook3, recipe vo-ends, recovered on questions and scores, seed 1": {"recipe=vo-ends", "12M", "score-weight=0.2", "seed=1"},
}


def recorded(part: str) -> list[dict]:
    return json.loads((RESULTS / f"{'recovery' if part == 'losses' else part}.json").read_text())["losses" if part == "losses" else "rows"]


def loss_row(row: dict) -> Trained | None:
    """None where an option is gone, or the questions were in the test's form ("exam")."""
    parts = [part for part in row["row"].split(":") if not part.startswith("mix=")]
    if any(part.startswith(GONE) for part in parts) or row.get("mix") == "exam":
        return None
    if "mix" in row:
        return Trained(":".join(parts), next(name for name, (tokens, sampling) in MIXES.items() if (row.get("sample", tokens), row["sampling"]) == (tokens, sampling)))
    return Trained(":".join(parts) + ("" if any(part.startswith("soft-temperature=") for part in parts) else ":soft-temperature=2"), "words")


def rows_of(part: str) -> dict:
    """Of each row of a part's tables what it is made of; None where nothing here makes it."""
    if part == "quality":
        return {row["step"]: Step(row["step"], 0 if row["fit"] == "lsq" else 65536) for row in recorded(part)}
    if part == "noise":
        return {f"{row['size']:g}:{row['seed']}": f"{row['size']:g}:{row['seed']}" for row in recorded(part)}
    if part == "losses":
        return {row["row"]: loss_row(row) for row in recorded(part)}
    # the plainest that has them
    by_fields = sorted(((set(row["row"].split(":")), row) for row in recorded("losses")), key=lambda pair: len(pair[0]))
    answered = {name: loss_row(next(row for has, row in by_fields if fields <= has)) for name, fields in ANSWERED.items()}
    return {row["name"]: {**MADE, **answered}.get(row["name"]) for row in recorded(part)}


class Reproduction:
    def __init__(self, bench: Bench, options):
        self.bench, self.o, self.results = bench, options, bench.work / "results"
        self.results.mkdir(exist_ok=True)

    def wanted(self, part: str) -> dict:
        rows = {name: made for name, made in rows_of(part).items() if made is not None and (not self.o.only or name in self.o.only)}
        return rows if self.o.gpus else {name: made for name, made in rows.items() if not isinstance(made, Trained)}

    def train(self, rows: list[Trained]) -> dict:
        """Reports of recovery.py by its rows; each mixture is a run of its own."""
        out = self.results / "trained.json"
        for mix, (tokens, sampling) in MIXES.items():
            names = list(dict.fromkeys(row.row for row in rows if row.mix == mix))
            if names:
                subprocess.run([sys.executable, Path(__file__).with_name("recovery.py"), *names, "--mix", f"{mix}={sampling}", "--sample", tokens, "--gpus",
                                str(self.o.gpus), "--calib-tokens", "8192", "--no-starts", "--out", out, "--work", self.bench.work, "--data", self.o.data, "--lowbit",
                                self.o.lowbit, "--model", self.o.model, "--jobs", str(self.o.jobs)], check=True)
        return {row["row"]: row for row in json.loads(out.read_text())["rows"]} if out.exists() else {}

    def checkpoint(self, made) -> Path | str:
        if isinstance(made, Step):
            return self.bench.quantize(*made)[0]
        return made if isinstance(made, str) else self.bench.work / f"recovered-{made.row.replace(':', '-')}"

    def quality(self) -> None:
        for job in Ladder(self.bench, Pool(self.o.jobs), self.results / "quality.json", 65536).submit(list(self.wanted("quality")), 0):
            job.result()

    def tasks(self) -> None:
        wanted, rows = self.wanted("tasks"), {row["name"]: row for row in recorded("tasks")}
        self.train([made for made in wanted.values() if isinstance(made, Trained)])
        work = Checkpoints(self.bench, Pool(self.o.jobs), self.results / "tasks.json", exact="the file's own")
        for name, made in wanted.items():
            for job in work.submit(name, self.checkpoint(made), list(rows[name]["ppl"]), list(rows[name]["tasks"]), 0):
                job.result()

    def noise(self) -> None:
        from noise import Noise  # needs NumPy
        out = self.results / "noise.json"
        noise = Noise(self.bench, out)
        noise.report.setdefault("distilled", [])
        done = {f"{row['size']:g}:{row['seed']}" for row in noise.report["rows"]}
        for name in self.wanted("noise"):
            if name not in done:
                noise.row(name)

    def losses(self) -> None:
        wanted = self.wanted("losses")
        trained = self.train(list(wanted.values()))
        rows, teacher = [], {"arc_easy": {}, "winogrande": {}}
        for name, made in wanted.items():
            row, original = trained[made.row], next(row for row in recorded("losses") if row["row"] == name)
            answers, teacher = ({task: row["choices"]["tasks"][task][whose] for task in teacher} for whose in ("model", "teacher"))
            rows.append({**{key: original[key] for key in ("row", "format", "group", "tokens", "options", "mix") if key in original},
                         "bits_per_weight": row["bits_per_weight"], "after": row["recovery"]["after"], "recovered": row["recovered"],
                         "answers": answers["arc_easy"], "winogrande": answers["winogrande"], **{key: row["choices"][key] for key in ("rms", "near", "agree")}})
        if rows:
            report = {**self.bench.machine(), "device": f"{self.o.gpus} GPUs", "losses": rows, "teacher_answers": teacher["arc_easy"],
                      "teacher_winogrande": teacher["winogrande"]}
            self.bench.save(self.results / "losses.json", report)

    def compare(self, part: str) -> None:
        """Prints the rows that were measured here and are not as the page has them, each above the page's."""
        file, page = self.results / f"{part}.json", "".join((ROOT / name).read_text() for name in PAGES)
        for table in TABLES[part] if file.exists() else ():
            _, _, *new = (line for line in print_tables.PRINTERS[table](json.loads(file.read_text())).splitlines() if line.startswith("|"))
            old = re.search(rf"<!-- table: {table} -->\n(.*?)\n<!-- end -->", page, re.S)[1].splitlines()
            others = [line for line in new if line not in old]
            print(f"{table}: {len(new) - len(others)} of {len(new)} rows as on the page")
            for line in others:
                print(f"  here {line}\n  page {max(old, key=lambda other: len(os.path.commonprefix([other, line])))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *TABLES], metavar="PART", help="quality, tasks, noise, losses [all]")
    parser.add_argument("--list", action="store_true", help="say how every row is made, and end")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows by their names in --list")
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--work", type=Path, default=ROOT / "build/quality")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="models quantized or measured at a time")
    parser.add_argument("--threads", type=int, help="of each of those")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--tiny-chunks", type=int, default=60)
    o = parser.parse_args()
    parts = o.parts or list(TABLES)
    if o.list:
        for part in parts:
            for name, made in rows_of(part).items():
                print(f"{part}\t{name}\t{made or RECORD}")
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("LOWBIT_DATA", str(o.data))
    try:
        work = Reproduction(Bench(o.lowbit, o.model, o.data, o.work, o.chunks, o.tiny_chunks, o.threads), o)
        for part in parts:
            say(f"{part}: {len(work.wanted(part))} of {len(rows_of(part))} rows")
            getattr(work, part)()
            work.compare(part)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
