"""scripts/demo.py on a tiny model, and the pictures of scripts/draw_bits.py."""
import json
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import cli
from cli import SOURCE, CliTest, environment, make_model

sys.path.insert(0, str(SOURCE / "scripts"))
import demo_page  # noqa: E402
import draw_bits  # noqa: E402

FIGURE = {"name": "f", "kind": "plot", "title": "a < b", "x_label": "bits", "y_label": "ratio", "log_x": False, "log_y": True}


def row(name, bits, ratio, ruined=False):
    return {"format": name, "bits_per_weight": bits, "bytes": 1000, "ppl": 20 * ratio, "ratio": ratio, "ruined": ruined, "kld_mean": 0.1, "top1": 0.9, "prefill_tok_s": 10.0,
            "decode_tok_s": 100 / bits, "text": f"{name} <writes> & ends", "warnings": []}


class Pictures(unittest.TestCase):
    def test_places_follow_the_numbers(self):
        svg = draw_bits.draw({**FIGURE, "series": [{"name": "s", "line": True, "marks": True, "points": [[4, 1.0, 0, "four"], [2, 4.0, 0, "two"], [3, 2.0, 0, ""]]}]})
        marks = [(float(c.get("cx")), float(c.get("cy"))) for c in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}circle")]
        self.assertEqual(marks, sorted(marks))  # from few bits to many, downwards as the loss falls
        (x2, y2), (x3, y3), (x4, y4) = marks
        self.assertAlmostEqual(x3 - x2, x4 - x3, delta=0.2)
        self.assertAlmostEqual(y3 - y2, y4 - y3, delta=0.2)  # a factor of two each: logarithmic
        self.assertIn(">a &lt; b</text>", svg)

    def test_ticks_are_round_and_inside(self):
        for low, high, log in ((1.9, 4.4, False), (0.97, 6.1, True), (1, 5000, True), (57000, 63000, False)):
            marks = draw_bits.ticks(low, high, log)
            self.assertTrue(2 <= len(marks) <= 14 and marks == sorted(marks) and low <= marks[0] and marks[-1] <= high, (low, high, marks))

    def test_what_others_beat_is_left_out(self):
        self.assertEqual(draw_bits.undominated([(2, 1.5), (3, 1.2), (3.5, 1.3), (4, 1.0)]), [(2, 1.5), (3, 1.2), (4, 1.0)])

    def test_the_readmes_picture_is_what_the_results_say(self):
        self.assertEqual(draw_bits.PICTURE.read_text(), draw_bits.draw(draw_bits.readme_figure()))

    def test_garbage_is_apart_and_off_the_scale(self):
        report = {"rows": [row("original", 5, 1.0), row("int4 calibrated", 4.25, 1.1), row("trellis2 calibrated", 2.25, 2.0), row("int2", 2.25, 4600.0, ruined=True)], "cpu": "a CPU", "threads": 2,
                  "text": "a text", "chunks": 8, "context": 512, "prompt": "Once"}
        quality, speed = demo_page.figures(report)
        garbage = next(s for s in quality["series"] if "garbage" in s["name"])["points"]
        self.assertEqual(len(garbage), 1)
        self.assertLess(garbage[0][1], 4)
        self.assertIn("4,600 times", garbage[0][3])
        page = demo_page.page(report, [quality, speed])
        self.assertLess(page.index("<svg"), page.index("<table"))  # opens with the picture
        self.assertEqual((page.count("<svg"), page.count("class=ruined")), (2, 1))
        self.assertIn("int2 &lt;writes&gt; &amp; ends", page)


class Demo(CliTest):
    def test_rows_picture_and_report(self):
        data, out = self.dir / "data", self.dir / "out"
        (data / "text").mkdir(parents=True)
        for name in ("wiki.test.raw", "wikitext2_raw_train_part.txt"):
            (data / "text" / name).write_text(cli.text(3000))
        call = [sys.executable, SOURCE / "scripts/demo.py", "--lowbit", cli.BINARY, "--model", make_model(self.dir / "model", "--context", "512"), "--out", out, "--chunks", "1",
                "--formats", "int4 calibrated", "int2", "--torch-python", "/bin/false"]
        done = subprocess.run([*map(str, call)], capture_output=True, text=True, timeout=5 * cli.TIMEOUT_S, env=environment(LOWBIT_DATA=str(data)))
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        rows = json.loads((out / "report.json").read_text())["rows"]
        self.assertEqual([r["format"] for r in rows], ["original", "int4 calibrated", "int2"])
        self.assertLess(done.stdout.index("demo.html"), done.stdout.index("| format |"))
        self.assertEqual((out / "demo.png").is_file(), "demo.png" in done.stdout)
        self.assertEqual(len(re.findall("<svg", (out / "demo.html").read_text())), 2)
        self.assertIn("-m lowbit.recover", done.stdout)  # without a GPU it prints what to run


if __name__ == "__main__":
    unittest.main()
