"""bench/quality/choices.py: pseudo choices and questions, scored in torch. Needs torch."""
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import unittest

import cli
from cli import SOURCE, CliTest, environment

MISSING = [m for m in ("numpy", "torch") if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
class Choices(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sys.path[:0] = [str(SOURCE / "python"), str(SOURCE / "bench/quality")]
        cls.start, cls.teacher = cls.models / "int3", cls.models / "teacher"
        for verb, out, options in (("quantize", cls.start, ("--format", "int3")), ("import", cls.teacher, ())):
            subprocess.run([cli.BINARY, verb, cls.hf, out, *options, "--quiet"], check=True, stdout=subprocess.DEVNULL, env=environment())

    def choices(self, checkpoint, *options):
        import choices
        import numpy as np
        rng = np.random.default_rng(0)
        np.savez(self.dir / "sequences.npz", sequences=rng.integers(3, 200, (12, 128), np.int32), kinds=np.array(["word"] * 8 + ["chat"] * 4))
        arguments, errors = ["choices.py", checkpoint, "--teacher", self.teacher, "--sequences", self.dir / "sequences.npz", "--lowbit", cli.BINARY, *options], io.StringIO()
        kept, sys.argv = sys.argv, list(map(str, arguments))
        try:
            with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(errors):
                choices.main()
        finally:
            sys.argv = kept
        return json.loads(said.getvalue())

    def test_questions_are_answered_as_by_the_runtime(self):
        """Choices of other lengths, and one whose first token depends on what stands before it."""
        words, questions = cli.text(90).split(), self.dir / "asked.jsonl"
        lines = [{"query": "Question: " + " ".join(words[3 * i:3 * i + 3]), "gold": i % 3, "choices": [words[i], " ".join(words[i + 1:i + 4]), "x" * (i % 4 + 1)]}
                 for i in range(24)]
        questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
        got = self.choices(self.start, "--questions", questions)["tasks"]["asked"]
        self.assertEqual(got["questions"], 24)
        for name, model in (("model", self.start), ("teacher", self.teacher)):
            wanted = self.json("eval", model, "--tasks", questions, "--act", "f32")["tasks"][0]
            self.assertEqual(got[name], {key: wanted[key] for key in ("right", "right_normalized")})
        self.assertGreater(got["rms"], 0)

    def test_contexts_of_one_continuation(self):
        """The form of winogrande: what differs stands before what is scored."""
        words, questions = cli.text(90).split(), self.dir / "asked.jsonl"
        lines = [{"context_options": [" ".join(words[3 * i:3 * i + n]) for n in (1, 3)], "continuation": words[i + 5] + ".", "gold": i % 2} for i in range(24)]
        questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
        got = self.choices(self.start, "--questions", questions)["tasks"]["asked"]
        for name, model in (("model", self.start), ("teacher", self.teacher)):
            wanted = self.json("eval", model, "--tasks", questions, "--act", "f32")["tasks"][0]
            self.assertEqual(got[name], {key: wanted[key] for key in ("right", "right_normalized")})
            self.assertIn("0", got[name]["right"])
            self.assertIn("1", got[name]["right"])

    def test_pseudo_choices(self):
        import choices
        import numpy as np
        sequences, kinds = np.arange(12 * 128).reshape(12, 128), np.array(["word"] * 8 + ["chat"] * 4)
        items = choices.pseudo_choices(sequences, kinds)
        self.assertEqual(len(items), 12)
        for item in items:
            (own, given), *others = item
            self.assertEqual(own, list(range(own[0], own[0] + len(own))))
            self.assertTrue(8 <= len(own) - given <= 20 and 12 <= given <= 96)
            whose = [ids[given] // 128 for ids, _ in item]
            self.assertEqual(len(set(whose)), 4)
            self.assertEqual(len({bool(kinds[w] == "word") for w in whose}), 1)
            self.assertTrue(all(ids[:given] == own[:given] and at == given for ids, at in others))
        same, other = self.choices(self.teacher), self.choices(self.start)
        self.assertEqual((same["prompts"], same["rms"], same["near"], same["agree"]), (12, 0, 0, 1))
        self.assertGreater(other["rms"], 0.01)
        self.assertGreater(other["near"], 0.01)
        for _ in range(2):  # writes the teacher's scores, then reads them
            again = self.choices(self.start, "--keep", self.dir / "scores")
            self.assertEqual([again[key] for key in ("rms", "near", "agree")], [other[key] for key in ("rms", "near", "agree")])
        self.assertTrue((self.dir / "scores/pseudo.npz").exists())


if __name__ == "__main__":
    unittest.main()
