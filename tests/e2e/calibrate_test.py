"""quantize --calib: what a calibration text changes, and what it refuses."""
import hashlib
import json
import unittest

from cli import CliTest, files_below, make_model

WORDS = "the river runs past old stone houses while people talk about bread and rain".split()


def text(count):
    return " ".join(WORDS[(i * i + i // 7) % len(WORDS)] for i in range(count))


class Calibrate(CliTest):
    def setUp(self):
        super().setUp()
        self.text = self.dir / "text.txt"
        self.text.write_text(text(1500))

    def calibrated(self, name, *options):
        return self.json("quantize", self.hf, self.dir / name, "--format", "int3", "--group", 32, "--calib", self.text,
                         "--calib-tokens", "2K", *options)

    def outputs(self, report):
        errors = {x["name"]: x["output_error"] for x in report["layers"] if "output_error" in x}
        self.assertEqual(len(errors), 2 * 7)
        return sum(errors.values())

    def test_feedback_and_refit_lower_the_output_error(self):
        gptq, refit = (self.outputs(self.calibrated(fit, "--fit", fit)) for fit in ("gptq", "refit"))
        self.assertLess(refit, gptq)
        self.assertEqual(self.json("verify", self.dir / "refit")["ok"], True)
        self.assertTrue(self.greedy(self.dir / "refit"))

    def test_the_checkpoint_names_its_text(self):
        self.calibrated("out")
        fit = json.loads((self.dir / "out/config.json").read_text())["quantization_config"]["fit"]
        self.assertEqual(fit["calibration"]["text_sha256"], hashlib.sha256(self.text.read_bytes()).hexdigest())
        self.assertGreaterEqual(fit["calibration"]["tokens"], 256)

    def test_same_bytes_for_any_thread_count_and_isa(self):
        self.calibrated("a", "--threads", 1)
        self.calibrated("b", "--threads", 2)
        self.calibrated("c", "--isa", "scalar")
        self.assertEqual(files_below(self.dir / "a"), files_below(self.dir / "b"))
        self.assertEqual(files_below(self.dir / "a"), files_below(self.dir / "c"))

    def test_recipes_and_kept_layers(self):
        recipe = self.dir / "recipe"
        recipe.write_text("v_proj keep\ndown_proj int4 fit=lsq\nup_proj int2 fit=wls\n")
        report = self.calibrated("out", "--recipe", recipe)
        formats = {x["name"].split(".")[-1]: (x["format"], "output_error" in x) for x in report["layers"] if "layers.1." in x["name"]}
        self.assertEqual(formats["v_proj"], ("f32", False))
        self.assertEqual(formats["down_proj"], ("int4", False))
        self.assertEqual(formats["up_proj"], ("int2", False))
        self.assertEqual(formats["q_proj"], ("int3", True))

    def test_every_source_and_format(self):
        gguf = make_model(self.dir / "tiny.gguf", "--dtype", "q8_0")
        for name in ("int8", "int4", "int2", "ternary", "binary", "fp8"):
            with self.subTest(name):
                self.json("quantize", gguf, self.dir / name, "--format", name, "--calib", self.text, "--calib-tokens", "512")
                self.assertEqual(self.json("verify", self.dir / name)["ok"], True)

    def test_refused(self):
        out = self.dir / "out"
        for fit in ("wls", "gptq", "refit"):
            self.assertIn("--calib", self.refused("quantize", self.hf, out, "--format", "int4", "--fit", fit))
        call = ("quantize", self.hf, out, "--format", "int4", "--calib")
        self.assertIn("missing.txt", self.refused(*call, self.dir / "missing.txt"))
        short = self.dir / "short.txt"
        short.write_text("too short")
        self.assertIn("window", self.refused(*call, short))
        self.refused(*call, self.dir)
        self.refused(*call, self.text, "--calib-tokens", "0", code=2)
        self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
