"""eval: multiple choice by log-likelihood."""
import json
import math
import unittest

from cli import CliTest

WORDS = ["stone", "river", "bread", "rain", "people", "old houses"]


class Eval(CliTest):
    def write(self, name, lines):
        path = self.dir / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def task(self, *lines, options=()):
        return self.json("eval", self.hf, "--tasks", self.write("task.jsonl", lines), *options)["tasks"][0]

    def question(self, gold, n=0):
        return {"query": f"Question: which word {n}?", "choices": WORDS, "gold": gold}

    def test_one_choice_wins_and_only_one(self):
        right = [self.task(self.question(gold)) for gold in range(len(WORDS))]
        for report in right:
            self.assertKeys(report, "name questions accuracy accuracy_error normalized_accuracy normalized_accuracy_error")
        self.assertEqual(sum(r["accuracy"] for r in right), 1)
        self.assertEqual(sum(r["normalized_accuracy"] for r in right), 1)

    def test_the_context_is_what_is_compared(self):
        contexts = ["The man went to the " + word for word in WORDS[:2]]
        winner = max((0, 1), key=lambda g: self.task(
            {"context_options": contexts, "continuation": "and slept", "gold": g})["accuracy"])
        both = self.task({"context_options": contexts, "continuation": "and slept", "gold": winner},
                         {"context_options": contexts[::-1], "continuation": "and slept", "gold": 1 - winner})
        self.assertEqual(both["accuracy"], 1)

    def test_shares_and_errors(self):
        winner = next(g for g in range(len(WORDS)) if self.task(self.question(g))["accuracy"] == 1)
        lines = [self.question(winner)] * 3 + [self.question((winner + 1) % len(WORDS))]
        report = self.task(*lines)
        self.assertEqual((report["questions"], report["accuracy"]), (4, 0.75))
        self.assertAlmostEqual(report["accuracy_error"], math.sqrt(0.75 * 0.25 / 3))
        self.assertEqual(self.task(*lines, options=("--questions", 3))["accuracy"], 1)

    def test_same_answers_for_any_thread_count_and_isa(self):
        lines = [self.question(n % len(WORDS), n) for n in range(12)]
        reports = [self.task(*lines, options=o) for o in (("--threads", 1), ("--threads", 2), ("--isa", "scalar"))]
        for report in reports:
            report.pop("seconds")
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(reports[0], reports[2])

    def test_text_report(self):
        out = self.lowbit("eval", self.hf, "--tasks", self.write("a.jsonl", [self.question(0)])).stdout.decode()
        self.assertRegex(out, r"accuracy")

    def test_refused(self):
        self.assertIn("nowhere", self.refused("eval", self.hf, "--tasks", "nowhere"))
        for line in ({"query": "q", "choices": ["a"], "gold": 0}, {"query": "q", "choices": ["a", "b"], "gold": 2},
                     {"query": "q", "choices": ["a", 1], "gold": 0}, {"continuation": "x", "gold": 0}, {}):
            path = self.write("bad.jsonl", [self.question(0), line])
            self.assertIn("bad.jsonl:2", self.refused("eval", self.hf, "--tasks", path))
        (self.dir / "not.jsonl").write_text("not JSON\n")
        self.assertIn("not.jsonl:1", self.refused("eval", self.hf, "--tasks", self.dir / "not.jsonl"))
        (self.dir / "empty.jsonl").write_text("")
        self.refused("eval", self.hf, "--tasks", self.dir / "empty.jsonl")
        long = self.write("long.jsonl", [{"query": "word " * 2000, "choices": ["a", "b"], "gold": 0}])
        self.refused("eval", self.hf, "--tasks", long)
        self.refused("eval", self.hf, code=2)


if __name__ == "__main__":
    unittest.main()
