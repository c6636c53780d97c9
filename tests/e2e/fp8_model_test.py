"""Models in FP8: quantized in blocks, run with activations of 8 bits, and to and from the forms of other tools."""
import json
import struct
import unittest
from pathlib import Path

import cli
from cli import CliTest

BLOCKS = ("--format", "fp8", "--group", "128x128")


def tensors_of(folder):
    """name -> (type, shape, bytes)."""
    data = (Path(folder) / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items()}


class Fp8Model(CliTest):
    def setUp(self):
        super().setUp()
        self.wide = cli.make_model(self.dir / "wide", "--hidden", "192", "--ffn", "320", "--heads", "4")

    def logits(self, model, *options):
        return self.json("logits", model, "-p", cli.text(12), "--all", "--top", 5, *options)["positions"]

    def test_blocks_of_rows_and_columns(self):
        model = self.quantized("blocks", *BLOCKS, source=self.wide)
        self.assertTrue(self.json("verify", model)["ok"])
        layers = {t["name"]: t for t in self.json("inspect", model)["tensors"]}
        layer = layers["model.layers.0.mlp.gate_proj.weight"]
        self.assertEqual((layer["shape"], layer["stored_as"]), ([320, 192], "fp8 128x128"))
        self.assertEqual(layer["bytes"], 320 * 192 + 3 * 2 * 4)  # codes, and six scales in f32
        half = self.quantized("half", *BLOCKS, "--scale", "f16", source=self.wide)
        self.assertLess(self.json("inspect", half)["bytes"], self.json("inspect", model)["bytes"])
        self.assertEqual(cli.all_but_generation(self.quantized("columns", "--format", "fp8", "--group", "1x128", source=self.wide) / "model.safetensors"),
                         cli.all_but_generation(self.quantized("same", "--format", "fp8", "--group", "128", source=self.wide) / "model.safetensors"))
        for wrong in ("128x", "x128", "0x128", "128x128x128"):
            self.assertIn("128x128", self.refused("quantize", self.wide, self.dir / "no", "--format", "fp8", "--group", wrong, code=2))
        int4 = self.quantized("int4", "--format", "int4", "--group", "16x32", source=self.wide)
        self.assertTrue(self.json("verify", int4)["ok"])

    def test_a_recipe_may_ask_for_blocks(self):
        recipe = self.dir / "recipe"
        recipe.write_text("mlp  fp8 group=128x128\n")
        model = self.quantized("mixed", "--format", "int8", "--recipe", recipe, source=self.wide)
        stored = {t["name"]: t["stored_as"] for t in self.json("inspect", model)["tensors"]}
        self.assertEqual(stored["model.layers.1.mlp.up_proj.weight"], "fp8 128x128")
        self.assertEqual(stored["model.layers.1.self_attn.q_proj.weight"], "int8 row")

    def test_activations_in_fp8(self):
        model = self.quantized("blocks", *BLOCKS, source=self.wide)
        exact, coded = self.logits(model, "--act", "f32"), self.logits(model, "--act", "fp8")
        self.assertNotEqual(exact, coded)
        self.assertEqual(coded, self.logits(model, "--act", "fp8", "--isa", "scalar"))
        kernels = {k["layer"]: k for k in self.json("inspect", model, "--kernels", "--act", "fp8")["kernels"]}
        self.assertIn("matmul_fp8_afp8g128_128x128__", kernels["model.layers.0.mlp.down_proj.weight"]["kernel"])
        other = kernels["model.embed_tokens.weight"]  # int8: x stays f32, and it says why
        self.assertIn("fp8 ones go with fp8 weights, not int8", other["reason"])
        self.assertEqual(self.json("run", model, "-p", "", "-n", 2, "--act", "fp8")["activation"], "fp8")

    def test_export_and_import_keep_every_code_and_scale(self):
        forms = {"128x128": ("fp8", "_scale_inv"), "row": ("compressed-tensors", "_scale"), "tensor": ("compressed-tensors", "_scale")}
        for group, (method, suffix) in forms.items():
            with self.subTest(group=group):
                own = self.quantized(f"own_{group}", "--format", "fp8", "--group", group, "--scale", "f32", source=self.wide)
                out, back, again = (self.dir / f"{name}_{group}" for name in ("out", "back", "again"))
                self.lowbit("export", own, out)
                written = tensors_of(out)
                name = "model.layers.0.mlp.gate_proj.weight"
                self.assertEqual(written[name][:2], ("F8_E4M3", [320, 192]))
                scales = {"128x128": [3, 2], "row": [320, 1], "tensor": [1]}[group]
                self.assertEqual(written[name + suffix][:2], ("F32", scales))
                self.assertEqual(written["model.embed_tokens.weight"][0], "BF16")
                config = json.loads((out / "config.json").read_text())["quantization_config"]
                self.assertEqual(config["quant_method"], method)
                self.lowbit("import", out, back)
                self.lowbit("export", back, again)
                self.assertEqual(tensors_of(again), written)
                self.assertEqual((again / "config.json").read_bytes(), (out / "config.json").read_bytes())
                for act in ("f32", "fp8"):
                    self.assertEqual(self.logits(back, "--act", act), self.logits(out, "--act", act))
                self.assertIn("--force", self.refused("export", own, out))
                self.lowbit("export", own, out, "--force")

    def test_what_is_not_exported_is_named(self):
        mixed = self.dir / "recipe"
        mixed.write_text("down_proj  fp8 group=row\n")
        model = self.quantized("mixed", *BLOCKS, "--recipe", mixed, source=self.wide)
        self.assertRegex(self.refused("export", model, self.dir / "out"), "gate_proj.*scales 128x128, wanted row")
        mixed.write_text("up_proj  int4\n")
        model = self.quantized("int4", *BLOCKS, "--recipe", mixed, source=self.wide)
        self.assertRegex(self.refused("export", model, self.dir / "out"), "up_proj.*int4")
        self.assertFalse((self.dir / "out").exists())
        kept = self.quantized("kept", *BLOCKS, "--keep", "down_proj", source=self.wide)
        self.lowbit("export", kept, self.dir / "kept_out")
        config = json.loads((self.dir / "kept_out/config.json").read_text())["quantization_config"]
        self.assertIn("model.layers.0.mlp.down_proj", config["modules_to_not_convert"])

    def test_e5m2_is_refused_by_name(self):
        out = self.dir / "out"
        self.lowbit("export", self.quantized("blocks", *BLOCKS, source=self.wide), out)
        path = out / "model.safetensors"
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        path.write_bytes(data[:8] + data[8:8 + size].replace(b"F8_E4M3", b"F8_E5M2") + data[8 + size:])
        self.assertIn("F8_E5M2", self.refused("import", out, self.dir / "own"))

    def test_bench(self):
        report = self.json("bench", "fp8", "-M", 3, "-N", 96, "-K", 200, "--groups", 5, "--warm", "--seconds", 0.01)
        self.assertKeys(report, "isa m n k groups threads cold bandwidth_gb_s rows")
        self.assertEqual([r["what"] for r in report["rows"]], ["act_quant", "norm, act_quant", "weight_quant", "gemm", "contiguous", "masked", "model", "model, f32 x",
                                                            "bf16, f32 x", "f32, f32 x"])
        for row in report["rows"]:
            self.assertTrue(row["checked"], row)
            self.assertGreater(row["seconds"], 0)
        beside = self.json("bench", "fp8", "-M", 2, "-N", 64, "-K", 128, "--groups", 1, "--warm", "--seconds", 0.01, "--vs", "scalar")
        self.assertEqual(beside["vs"]["what"], "gemm")
        self.assertAlmostEqual(beside["ratio"], beside["vs"]["seconds"] / beside["rows"][3]["seconds"])
        self.assertIn("instruction", self.lowbit("bench", "fp8", "--help").stdout.decode())
        self.refused("bench", "fp8", "--vs", "nothing", code=2)
        self.assertIn("fp8", self.json("bench", "matmul", "--format", "fp8", "--group", 128, "--act", "fp8", "-N", 64, "-K", 128, "--warm")["kernel"])


if __name__ == "__main__":
    unittest.main()
