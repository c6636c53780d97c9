"""Traces: what a run computed, and where two part."""
import json
import os
import re
import struct
import unittest
from pathlib import Path

from cli import SOURCE, CliTest, make_model, text

STORIES = Path(os.environ.get("LOWBIT_DATA") or SOURCE.parent / "shared/data") / "lm/stories260K"


class Traces(CliTest):
    def trace(self, name, model, *options, n=6, prompt="the river runs"):
        """The text, and the path of its trace."""
        out = self.dir / name
        run = ("run", model, "-p", prompt, "-n", n, "--temp", 0, "--ignore-eos", *options)
        done = self.lowbit(*run, "--trace", out)
        self.assertEqual(done.stdout, self.lowbit(*run).stdout, "a trace changes nothing")
        return done.stdout, out

    def compare(self, a, b, *options, code=0):
        return self.json("trace", a, b, *options, code=code)

    def check_backends(self, model):
        """Every way to compute a model has the reference's bits at every tap; rounded activations part behind the first
        layer that reads them."""
        for act in ("int8", "f32"):
            _, want = self.trace("ref", model, "--isa", "ref", "--act", act)
            for name, options in (("best", ()), ("scalar", ("--isa", "scalar")), ("one", ("--threads", 1))):
                _, got = self.trace(name, model, "--act", act, *options)
                found = self.compare(got, want)
                self.assertEqual((found["same"], found["first_difference"], found["parted"]), (True, None, None))
                self.assertTrue(all(tap["equal"] and tap["rows"] > 0 for tap in found["taps"]))

    def test_all_backends_agree(self):
        self.check_backends(self.hf)
        self.check_backends(self.quantized("int4", "--format", "int4"))

    @unittest.skipUnless(STORIES.exists(), "no stories260K: set LOWBIT_DATA")
    def test_all_backends_agree_on_a_real_model(self):
        self.check_backends(STORIES)
        self.check_backends(self.quantized("stories", "--format", "int4", source=STORIES))

    def test_rounded_activations_differ_behind_their_first_reader(self):
        model = self.quantized("int4", "--format", "int4")
        _, a = self.trace("a", model, "--act", "int8", n=1)
        _, b = self.trace("b", model, "--act", "f32", n=1)
        found = self.compare(a, b, code=1)
        self.assertEqual(found["first_difference"]["tap"], "blocks.0.attn_out")
        self.assertEqual(found["first_difference"], found["taps"][1]["first_difference"])
        self.assertTrue(found["taps"][0]["equal"])
        self.assertLess(found["taps"][1]["relative_rms"], 0.1)
        self.assertEqual((found["got"]["activation"], found["wanted"]["activation"]), ("int8", "f32"))
        most = max(tap["relative_rms"] for tap in found["taps"])
        self.assertTrue(self.compare(a, b, "--tolerance", 1.01 * most)["same"])
        self.assertFalse(self.compare(a, b, "--tolerance", 0.5 * most, code=1)["same"])
        shown = self.lowbit("trace", a, b, "--top", 2, "--tolerance", 0, code=1).stdout.decode()
        self.assertEqual(len(re.findall(r" differ ", shown)), 2)
        self.assertIn("first tap above 0: blocks.0.attn_out, ", shown)
        self.assertRegex(shown.splitlines()[-1], r"^first difference: blocks\.0\.attn_out, position \d+, column \d+: \S+ vs \S+$")

    def test_two_formats(self):
        """The runs choose other tokens in the end; what comes before is compared."""
        _, a = self.trace("a", self.quantized("int2", "--format", "int2"), n=24)
        _, b = self.trace("b", self.hf, n=24)
        found = self.compare(a, b, code=1)
        prompt = len(self.json("tokenize", self.hf, "-p", "the river runs")["ids"])
        self.assertEqual(found["first_difference"]["tap"], "blocks.0.attn_norm")  # the embedding has other bits
        self.assertGreaterEqual(found["tokens"], prompt)
        self.assertEqual(found["parted"]["position"], found["tokens"])
        self.assertIn(f"tokens part at position {found['tokens']}: ", self.lowbit("trace", a, b, code=1).stdout.decode())

    def test_what_is_in_one(self):
        _, path = self.trace("a", self.hf, "--act", "f32", n=5)
        prompt = len(self.json("tokenize", self.hf, "-p", "the river runs")["ids"])
        found = self.json("trace", path)
        self.assertKeys(found, "path lowbit model family activation isa device passes tokens taps first_not_finite")
        self.assertEqual((found["tokens"], found["passes"], found["family"]), (prompt + 4, 5, "llama"))
        rows = {tap["tap"]: (tap["rows"], tap["width"], tap["nan"], tap["infinite"]) for tap in found["taps"]}
        self.assertEqual(rows["blocks.1.ffn_act"], (prompt + 4, 172, 0, 0))
        self.assertEqual(rows["final_norm"], (5, 64, 0, 0))
        self.assertEqual(rows["logits"], (5, 300, 0, 0))
        self.assertIn("first NaN or infinity: none", self.lowbit("trace", path).stdout.decode())

    def test_a_long_prompt_in_several_passes(self):
        model = self.models / "long"
        if not model.exists():
            make_model(model, "--context", "1024")
        (self.dir / "text").write_text(text(170))
        run = ("run", model, "--file", self.dir / "text", "-n", 2, "--trace")
        self.lowbit(*run, self.dir / "a")
        self.lowbit(*run, self.dir / "b", "--isa", "scalar", "--threads", 1)
        self.assertGreater(self.json("trace", self.dir / "a")["passes"], 2)
        self.assertTrue(self.compare(self.dir / "a", self.dir / "b")["same"])

    def test_an_overflow_is_found(self):
        """The run fails, and its trace says where: a weight so large that the product has no finite value."""
        copy = self.dir / "copy"
        copy.mkdir()
        for name in os.listdir(self.hf):
            (copy / name).write_bytes((Path(self.hf) / name).read_bytes())
        raw = bytearray((copy / "model.safetensors").read_bytes())
        length = int.from_bytes(raw[:8], "little")
        start = 8 + length + json.loads(raw[8:8 + length])["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
        raw[start:start + 4 * 64] = struct.pack("<f", 3e38) * 64  # its first row
        (copy / "model.safetensors").write_bytes(raw)
        out = self.dir / "a"
        self.refused("run", copy, "-p", "the river", "--act", "f32", "--ignore-eos", "--trace", out)
        found = self.json("trace", out)["first_not_finite"]
        self.assertEqual((found["tap"], found["column"]), ("blocks.1.ffn_act", 0))

    def test_what_is_refused(self):
        _, a = self.trace("a", self.hf, n=2)
        _, b = self.trace("b", self.hf, n=2, prompt="bread and rain")
        self.assertRegex(self.refused("trace", a, b, code=2), r"a, token 0: got \d+, wanted \d+ as in ")
        _, c = self.trace("c", make_model(self.dir / "wide", "--ffn", "180"), n=2)
        self.assertIn("blocks.0.ffn_act of 172 columns, wanted blocks.0.ffn_act of 180", self.refused("trace", a, c, code=2))
        self.assertIn("no such file", self.refused("trace", a, self.dir / "absent", code=2))
        (self.dir / "d").write_bytes(a.read_bytes()[:-1])
        self.assertIn("is the file complete?", self.refused("trace", a, self.dir / "d", code=2))
        self.assertIn("another kind of file", self.refused("trace", Path(self.hf) / "model.safetensors", code=2))
        self.assertIn("'ref'", self.refused("bench", "matmul", "--format", "int4", "--isa", "ref"))

    def test_a_trace_that_cannot_be_written(self):
        out = self.dir / "trace"
        self.unwritten(out, "run", self.hf, "-p", "x", "-n", 3, "--trace", out)
        # in the prompt's pass
        error = self.refused("run", self.hf, "-p", text(20), "-n", 3, "--trace", out, file_bytes=20000)
        self.assertIn(f"{out}: got File too large", error)
        self.assertEqual(os.listdir(self.dir), [])


if __name__ == "__main__":
    unittest.main()
