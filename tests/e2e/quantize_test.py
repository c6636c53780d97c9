"""import, quantize, verify, inspect: what they report and what lies on the disk afterwards."""
import hashlib
import json
import os
import re
import shutil
import unittest
from pathlib import Path

from cli import FORMATS, CliTest, files_below, make_model

CODE_BITS = {"int8": 8, "int4": 4, "int3": 3, "int2": 2, "ternary": 2, "binary": 1, "fp8": 8}


class Quantize(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bf16 = make_model(cls.models / "bf16", "--dtype", "bf16", "--untied")
        cls.gguf = make_model(cls.models / "tiny.gguf", "--dtype", "q8_0")

    def test_every_format(self):
        for name in FORMATS:
            with self.subTest(name):
                out = self.dir / name
                report = self.json("quantize", self.bf16, out, "--format", name)
                self.assertKeys(report, "bits_per_weight bits_per_weight_total bytes seconds layers")
                for layer in report["layers"]:
                    self.assertKeys(layer, "name format group rel_error")
                linear = [x for x in report["layers"] if "proj" in x["name"]]
                self.assertEqual(len(linear), 2 * 7)
                self.assertEqual({x["format"] for x in linear}, {name})
                # One f16 scale per row or per group of 64; the short last group of 172 = 2 * 64 + 44 costs a bit more.
                self.assertGreaterEqual(report["bits_per_weight"], CODE_BITS[name])
                self.assertLess(report["bits_per_weight"], CODE_BITS[name] + 0.5)
                self.assertEqual(self.json("verify", out)["ok"], True)
                self.assertTrue(self.greedy(out))
                self.assertTrue(self.greedy(out, "--act", "f32"))

    def test_trellises(self):
        for name, bits, rival in (("trellis2", 2, "codebook2"), ("trellis3", 3, "codebook3")):
            error = {}
            for format in (name, rival):
                report = self.json("quantize", self.bf16, self.dir / format, "--format", format)
                error[format] = sum(x["rel_error"] for x in report["layers"] if "proj" in x["name"])
                # tables of matrices this small count
                self.assertAlmostEqual(report["bits_per_weight"], bits, delta=0.6)
            self.assertLess(error[name], 0.8 * error[rival])
            self.assertEqual(self.json("verify", self.dir / name)["ok"], True)
            self.assertEqual(self.greedy(self.dir / name, "--act", "f32"), self.greedy(self.dir / name, "--act", "f32", "--isa", "scalar"))
            kernels = [k for k in self.json("inspect", self.dir / name, "--kernels")["kernels"] if "proj" in k["layer"]]
            self.assertTrue(all("codebook4 in memory" in k["reason"] or f"matmul_{name}_" in k["kernel"] for k in kernels), kernels[0])
        for options, wanted in (("--zero", "zero points"), ("--fit absmax", "method absmax")):
            self.assertIn(f"trellis2 with {wanted}", self.refused("quantize", self.bf16, self.dir / "x", "--format", "trellis2", *options.split()))

    def test_errors_of_layers_fall_with_bits(self):
        errors = []
        for name in ("int8", "int4", "int3", "int2", "binary"):
            layers = self.json("quantize", self.bf16, self.dir / name, "--format", name)["layers"]
            errors.append(sum(x["rel_error"] for x in layers if "proj" in x["name"]))
        self.assertEqual(errors, sorted(errors))
        self.assertGreater(errors[0], 0)

    def test_checkpoint_layout(self):
        out = self.quantized("int4", "--format", "int4")
        names = {f.name for f in out.iterdir()}
        self.assertLessEqual({"config.json", "model.safetensors", "tokenizer.json"}, names)
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual((config["quant_method"], config["format_version"]), ("lowbit", 1))
        raw = (out / "model.safetensors").read_bytes()
        header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
        codes = header["model.layers.0.mlp.down_proj.weight.codes"]
        self.assertEqual((codes["dtype"], codes["shape"]), ("U8", [64, 86]))
        self.assertEqual(header["model.layers.0.mlp.down_proj.weight.scales"]["shape"], [64, 3])

    def test_a_source_without_a_tokenizer(self):
        source, out = self.dir / "source", self.dir / "out"
        shutil.copytree(self.hf, source)
        (source / "tokenizer.json").unlink()
        self.assertIn("no tokenizer", self.json("quantize", source, out, "--format", "int4")["warnings"][0])
        self.assertIn("tokenizer.json", self.refused("run", out, "-p", ""))
        shutil.copy(Path(self.hf) / "tokenizer.json", out)
        self.assertEqual(self.greedy(out), self.greedy(self.quantized("whole", "--format", "int4")))

    def test_the_source_is_named_by_its_hash(self):
        for source, weights in ((Path(self.gguf), Path(self.gguf)), (Path(self.bf16), Path(self.bf16) / "model.safetensors")):
            want = hashlib.sha256(weights.read_bytes()).hexdigest()
            for verb, options in (("import", ()), ("quantize", ("--format", "int8"))):
                out = self.dir / f"{verb}-{source.name}"
                self.json(verb, source, out, *options)
                fit = json.loads((out / "config.json").read_text())["quantization_config"]["fit"]
                self.assertEqual(fit["source_sha256"], want)

    def test_same_bytes_for_any_thread_count(self):
        for name in ("int4", "ternary"):
            a = self.quantized(name + "1", "--format", name, "--threads", 1)
            b = self.quantized(name + "2", "--format", name, "--threads", 2)
            self.assertEqual(files_below(a), files_below(b))

    def test_options_change_what_is_stored(self):
        seen = {}
        for options in ("", "--group 32", "--group 128", "--group row", "--group tensor", "--scale bf16", "--scale f32",
                        "--scale pow2", "--scale double", "--zero", "--fit absmax", "--fit mse", "--embedding int4",
                        "--embedding keep", "--head int4", "--head keep", "--keep layers[.]0[.]", "--keep q_proj --keep o_proj"):
            with self.subTest(options):
                out = self.quantized(f"q{len(seen)}", "--format", "int4", *options.split(), source=self.bf16)
                self.assertEqual(self.json("verify", out)["ok"], True)
                content = files_below(out)["model.safetensors"]
                self.assertNotIn(content, seen, f"the same as {seen.get(content)!r}")
                seen[content] = options
                self.assertTrue(self.greedy(out))

    def test_keep(self):
        layers = self.json("quantize", self.bf16, self.dir / "k", "--format", "int4", "--keep", "q_proj", "--keep",
                           "layers[.]1[.]mlp")["layers"]
        for layer in layers:
            kept = "q_proj" in layer["name"] or "layers.1.mlp" in layer["name"]
            if "proj" in layer["name"]:
                self.assertEqual(layer["format"] == "int4", not kept, layer)

    def test_recipe(self):
        recipe = self.dir / "recipe.txt"
        recipe.write_text("# first match wins\ndown_proj  int8 group=row\nlayers[.]0[.]  int2 group=32\n")
        layers = self.json("quantize", self.bf16, self.dir / "r", "--format", "int4", "--recipe", recipe)["layers"]
        for layer in layers:
            if "proj" not in layer["name"]:
                continue
            wanted = ("int8" if "down_proj" in layer["name"] else "int2" if ".layers.0." in layer["name"] else "int4")
            self.assertEqual(layer["format"], wanted, layer)

    def test_from_gguf_and_from_checkpoint(self):
        out = self.quantized("from_gguf", "--format", "int4", source=self.gguf)
        self.assertEqual(self.json("verify", out)["ok"], True)
        again = self.quantized("again", "--format", "int2", source=out)
        self.assertEqual(self.json("verify", again)["ok"], True)
        self.assertTrue(self.greedy(again))

    def test_names_with_spaces_and_letters_of_any_kind(self):
        """As absolute and as relative names, with and without a slash at their end."""
        folder = self.dir / "größe und maß" / "模型 -n"
        folder.mkdir(parents=True)
        text = folder / "ein text.txt"
        text.write_text("bread and rain " * 200)
        self.lowbit("quantize", self.hf, f"{folder.name}/zwei bit/", "--format", "int2", "--calib", f"{folder.name}/ein text.txt", cwd=folder.parent)
        out = folder / "zwei bit"
        self.assertEqual(sorted(os.listdir(folder)), ["ein text.txt", "zwei bit"])
        self.assertEqual(self.json("verify", out)["path"], str(out))
        self.assertEqual(self.json("inspect", f"../{folder.name}/zwei bit", cwd=folder)["path"], f"../{folder.name}/zwei bit")
        self.assertEqual(len(self.greedy(f"{out}/", n=3)), 3)
        self.assertGreater(self.json("ppl", out, "-f", text, "-c", 64)["ppl"], 1)

    def test_existing_target(self):
        out = self.quantized("out", "--format", "int4")
        before = files_below(out)
        self.assertIn(str(out), self.refused("quantize", self.hf, out, "--format", "int2"))
        self.assertEqual(files_below(out), before)
        self.lowbit("quantize", self.hf, out, "--format", "int2", "--force")
        self.assertNotEqual(files_below(out), before)
        self.assertEqual(self.json("verify", out)["ok"], True)
        # --force is for checkpoints, not for whatever lies there.
        other = self.dir / "precious"
        other.mkdir()
        (other / "thesis.txt").write_text("years of work")
        self.refused("quantize", self.hf, other, "--format", "int2", "--force")
        self.assertEqual(files_below(other), {"thesis.txt": b"years of work"})
        self.assertEqual({f.name for f in self.dir.iterdir()}, {"out", "precious"}, "left something behind")

    def test_text_report(self):
        done = self.lowbit("quantize", self.hf, self.dir / "t", "--format", "int4")
        text = done.stdout.decode().replace(str(self.dir), "")
        self.assertIn("bits per weight", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)


class Import(CliTest):
    def check(self, source, dequantized):
        out = self.dir / "imported"
        report = self.json("import", source, out)
        self.assertKeys(report, "tensors bytes dequantized")
        self.assertEqual(report["dequantized"], dequantized)
        self.assertGreater(report["tensors"], 15)
        self.assertEqual(self.json("verify", out)["ok"], True)
        self.assertEqual(self.greedy(out, "--act", "f32"), self.greedy(source, "--act", "f32"))
        self.refused("import", source, out)
        self.lowbit("import", source, out, "--force")

    def test_hugging_face(self):
        for dtype in ("f32", "f16", "bf16"):
            with self.subTest(dtype):
                self.dir = Path(self.models / f"import_{dtype}")
                self.dir.mkdir()
                self.check(make_model(self.dir / "hf", "--dtype", dtype), [])

    def test_gguf(self):
        self.check(make_model(self.dir / "f32.gguf"), [])

    def test_gguf_with_a_grid_lowbit_has(self):
        self.check(make_model(self.dir / "q8.gguf", "--dtype", "q8_0"), [])

    def test_gguf_and_hugging_face_are_the_same_model(self):
        gguf = make_model(self.dir / "same.gguf")
        self.assertEqual(self.greedy(gguf, "--act", "f32"), self.greedy(self.hf, "--act", "f32"))


class Inspect(CliTest):
    def test_model(self):
        out = self.quantized("int4", "--format", "int4")
        for path, kind in ((self.hf, "huggingface"), (out, "lowbit"), (make_model(self.dir / "m.gguf"), "gguf")):
            report = self.json("inspect", path)
            self.assertKeys(report, "tensors bits_per_weight bytes kernels")
            self.assertEqual(report["kind"], kind)
            self.assertIn("model.layers.0.mlp.down_proj.weight", {t["name"] for t in report["tensors"]})
            self.assertCounted(t["name"] for t in report["tensors"])
            text = self.lowbit("inspect", path).stdout.decode().replace(str(self.models), "")
            self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def assertCounted(self, names):
        """Names in the order in which people count: layer 2 before layer 10."""
        names = list(names)
        self.assertEqual(names, sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]))

    def test_layers_in_order(self):
        deep = make_model(self.dir / "deep", "--layers", "12")
        self.lowbit("quantize", deep, self.dir / "deep-int4", "--format", "int4")
        for path in (deep, self.dir / "deep-int4"):
            names = [t["name"] for t in self.json("inspect", path)["tensors"]]
            self.assertCounted(names)
            self.assertLess(names.index("model.layers.2.mlp.up_proj.weight"), names.index("model.layers.10.mlp.up_proj.weight"))
            self.assertCounted(k["layer"] for k in self.json("inspect", path, "--kernels")["kernels"])

    def test_formats(self):
        listed = {f["name"] for f in self.json("inspect", "--formats")["formats"]}
        self.assertLessEqual(set(FORMATS), listed)
        text = self.lowbit("inspect", "--formats").stdout.decode()
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        every = self.lowbit("inspect", "--formats", "--all").stdout.decode()
        self.assertLessEqual(max(map(len, every.splitlines())), 100)
        shown, of_every = ({line.split()[0] for line in t.splitlines() if line and line[0].islower()} - {"format"} for t in (text, every))
        self.assertEqual(of_every, listed)
        self.assertEqual(listed - shown, {"uint4", "int2", "int3odd", "int2-transposed", "int2-planes", "int3-planes", "int4-planes", "ternary-planes"})
        when = {f["name"]: f["when"] for f in self.json("inspect", "--formats")["formats"]}
        self.assertEqual({name for name, text in when.items() if text}, shown)
        for name in listed:
            self.assertGreater(len(self.lowbit("inspect", "--format", name).stdout), 20)
        self.assertIn("layout", self.json("inspect", "--format", "int2"))

    def test_kernels(self):
        every = self.json("inspect", "--kernels")["kernels"]
        names = {k["name"] for k in every}
        self.assertTrue(any(k["isa"] == "scalar" and k["runs_here"] for k in every), names)
        out = self.quantized("int4", "--format", "int4")
        layers = self.json("inspect", out, "--kernels")["kernels"]
        self.assertGreaterEqual(len(layers), 14)
        for choice in layers:
            self.assertKeys(choice, "layer kernel reason")
            self.assertTrue(choice["reason"])
        shown = self.lowbit("inspect", out, "--kernels").stdout.decode()
        for choice in layers:
            self.assertRegex(shown, re.escape(choice["kernel"]) + r", \d+ layers?:\n  " + re.escape(choice["reason"]) + "\n")
            self.assertRegex(shown, re.escape(choice["layer"]) + " +" + re.escape(choice["kernel"]) + "\n")
        for isa in ("scalar", "avx2"):
            if any(k["isa"] == isa and k["runs_here"] for k in every):
                forced = self.json("inspect", out, "--kernels", "--isa", isa)["kernels"]
                names = ("__scalar", "__ref") if isa == "scalar" else (f"__{isa}",)
                self.assertTrue(all(any(n in c["kernel"] for n in names) for c in forced), forced)
        self.assertLessEqual(max(map(len, self.lowbit("inspect", "--kernels").stdout.decode().splitlines())), 100)

    def test_kernels_of_a_gpu(self):
        """Chosen without a device: a build with CUDA says what each layer would get there and why."""
        out = self.quantized("int4", "--format", "int4")
        if not self.json("doctor")["cuda_built"]:
            self.assertIn("cuda", self.refused("inspect", out, "--kernels", "--device", "cuda").lower())
            return
        for device in ("cuda", "cuda:0"):
            layers = self.json("inspect", out, "--kernels", "--device", device)["kernels"]
            self.assertGreaterEqual(len(layers), 14)
            for choice in layers:
                self.assertIn("__cuda_", choice["kernel"])
                self.assertTrue(choice["reason"])


if __name__ == "__main__":
    unittest.main()
