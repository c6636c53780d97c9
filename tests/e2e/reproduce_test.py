"""bench/quality/reproduce.py: every row of the tables of docs/quality.md and docs/lab/recipes-log.md, and how it is
made."""
import json
import re
import subprocess
import sys
import unittest

import cli
from cli import SOURCE, CliTest, environment, make_model

SCRIPT = SOURCE / "bench/quality/reproduce.py"


class Reproduce(CliTest):
    def reproduce(self, *options, code=0):
        done = subprocess.run([sys.executable, SCRIPT, *map(str, options)], capture_output=True, text=True, timeout=cli.TIMEOUT_S, env=environment())
        self.assertEqual(done.returncode, code, done.stderr[-2000:])
        return done.stderr if code else done.stdout

    def test_every_table_and_row(self):
        made = [line.split("\t") for line in self.reproduce("--list").splitlines()]
        rows = {part: {name: how for p, name, how in made if p == part} for part, _, _ in made}
        page = "".join((SOURCE / name).read_text() for name in ("docs/quality.md", "docs/lab/recipes-log.md"))
        self.assertEqual(set(re.findall(r"<!-- table: (\w+) -->", page)), {"quality", "activations", "tasks", "noise", "losses"})
        for part, file, key in (("quality", "quality", "rows"), ("tasks", "tasks", "rows"), ("losses", "recovery", "losses")):
            recorded = json.loads((SOURCE / f"bench/results/{file}.json").read_text())[key]
            self.assertEqual(set(rows[part]), {row["name" if part == "tasks" else "step" if part == "quality" else "row"] for row in recorded})
        self.assertFalse([name for part in ("quality", "noise") for name, how in rows[part].items() if "record" in how])
        sys.path.insert(0, str(SOURCE / "bench/quality"))
        import reproduce
        self.assertLessEqual(set(reproduce.MADE), set(rows["tasks"]))  # none of a row that is no more

    def test_rows_are_measured_and_compared(self):
        data, work = self.dir / "data", self.dir / "work"
        (data / "text").mkdir(parents=True)
        for i, name in enumerate(("wiki.test.raw", "wikitext2_raw_train_part.txt", "tinystories_excerpt.txt")):
            (data / "text" / name).write_text(cli.text(3000 + i))
        call = ("quality", "--model", make_model(self.dir / "model", "--context", "512"), "--data", data, "--work", work, "--lowbit", cli.BINARY, "--chunks", 2, "--tiny-chunks", 2,
                "--only", "int4:lsq", "int3:wls")
        told = self.reproduce(*call)
        rows = json.loads((work / "results/quality.json").read_text())["rows"]
        self.assertEqual([row["step"] for row in rows], ["int4:lsq", "int3:wls"])
        self.assertRegex(told, r"quality: 0 of 2 rows as on the page\n")
        for step in ("int4 | lsq", "int3 | wls"):
            for where in ("here", "page"):
                self.assertIn(f"\n  {where} | {step} | ", told)
        self.assertEqual(self.reproduce(*call), told)  # nothing is measured twice
        told = self.reproduce("quality", "--model", self.dir / "none", "--data", data, "--work", self.dir / "other", "--lowbit", cli.BINARY, "--only", "int4:lsq", code=1)
        self.assertRegex(told.splitlines()[-1], r"^error: .*none")
        self.assertNotIn("Traceback", told)


if __name__ == "__main__":
    unittest.main()
