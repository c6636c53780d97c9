"""The closing summary of scripts/run_tests.py."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import run_tests  # noqa: E402


class Summary(unittest.TestCase):
    def test_skips_are_grouped_by_reason(self):
        skips = [("a.one", "no torch: pip install torch"), ("b.two", ""), ("c.three", "no torch: pip install torch"),
                 ("d.four", "no /tmp/x/file3"), ("e.five", "no /tmp/y/file17")]
        self.assertEqual(run_tests.skip_lines(skips), [
            "skipped 2: no torch: pip install torch (a.one, c.three)",
            "skipped 2: no /tmp/x/file3 (d.four, e.five)",
            "skipped 1: no reason given (b.two)"])

    def test_many_names_are_cut(self):
        lines = run_tests.skip_lines([(f"t.{i}", "no GPU") for i in range(47)])
        self.assertEqual(lines, ["skipped 47: no GPU (t.0, t.1, t.2, t.3 and 43 more)"])

    def test_nothing_skipped(self):
        self.assertEqual(run_tests.skip_lines([]), [])


if __name__ == "__main__":
    unittest.main()
