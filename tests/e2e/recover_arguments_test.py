"""python -m lowbit.recover: its options and their old names. Needs no torch."""
import contextlib
import importlib.util
import io
import sys
import unittest

from cli import SOURCE

MISSING = [m for m in ("numpy", "xxhash") if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
class Arguments(unittest.TestCase):
    """Read without torch."""

    def setUp(self):
        sys.path.insert(0, str(SOURCE / "python"))
        self.addCleanup(sys.path.remove, str(SOURCE / "python"))

    def parsed(self, *options):
        from lowbit.recover.__main__ import parser
        return parser().parse_args(["start", "--teacher", "t", "--data", "d", *options])

    def test_old_names_work_and_name_the_new_ones(self):
        from lowbit.recover.arguments import say_renamed
        old = self.parsed("--window", "64", "--held", "x", "--settle", "1", "--exchange", "0.5", "--block-windows", "3")
        new = self.parsed("--sequence-length", "64", "--held-out", "x", "--latent-shrink", "1", "--swap-spans", "0.5", "--block-sequences", "3")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            say_renamed(old)
            say_renamed(new)
        self.assertEqual(vars(old), vars(new))
        self.assertEqual(said.getvalue().splitlines(), [f"note: {a} is now {b}" for a, b in (
            ("--window", "--sequence-length"), ("--held", "--held-out"), ("--settle", "--latent-shrink"), ("--exchange", "--swap-spans"),
            ("--block-windows", "--block-sequences"))])

    def test_help(self):
        from lowbit.recover.__main__ import parser
        brief, full = parser().format_help(), parser(everything=True).format_help()
        shown = {action.option_strings[-1] for action in parser()._actions if action.option_strings and action.help != "==SUPPRESS=="}
        self.assertLessEqual(len(shown), 13)
        for option in ("--lr-scales", "--swap-spans", "--sample-mix"):
            self.assertNotIn(option, brief)
            self.assertIn(option, full)
        for text in (brief, full):
            self.assertNotIn("--window", text)


if __name__ == "__main__":
    unittest.main()
