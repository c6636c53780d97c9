"""quantize --calib: what a calibration text changes, and what it refuses."""
import hashlib
import json
import shutil
import struct
import time
import unittest
from pathlib import Path

from cli import TIMEOUT_S, CliTest, all_but_generation, files_below, interrupt, make_model, start, text

def change(model, changes):
    """Rewrites f32 tensors of a Hugging Face directory: changes[name](list of values) edits in place."""
    path = Path(model) / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + length]).items():
        if name in changes:
            begin, end = (8 + length + x for x in entry["data_offsets"])
            values = list(struct.unpack(f"<{(end - begin) // 4}f", data[begin:end]))
            changes[name](values)
            data[begin:end] = struct.pack(f"<{len(values)}f", *values)
    path.write_bytes(data)


def tensor_bytes(model, name):
    data = (Path(model) / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
    return data[8 + length + begin:8 + length + end]


class Calibrate(CliTest):
    def setUp(self):
        super().setUp()
        self.text = self.dir / "text.txt"
        self.text.write_text(text(1500))

    def calibrated(self, name, *options, format="int3"):
        return self.json("quantize", self.hf, self.dir / name, "--format", format, "--group", 32, "--calib", self.text,
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

    def test_what_was_measured_is_said_in_place_of_a_guess(self):
        guessed, measured = (next(w for w in report["warnings"] if "layers lose too much" in w) for report in (
            self.json("quantize", self.hf, self.dir / "plain", "--format", "binary", "--group", 32), self.calibrated("calibrated", "--force", format="binary")))
        self.assertIn("expect garbage", guessed)
        self.assertNotIn("garbage", measured)
        self.assertIn("times the source's", measured)

    def test_trellises(self):
        codebook, gptq, refit = (self.outputs(self.calibrated(f"{form} {fit}", "--fit", fit, "--force", format=form))
                                 for form, fit in (("codebook2", "refit"), ("trellis2", "gptq"), ("trellis2", "refit")))
        self.assertLess(refit, gptq)
        self.assertLess(refit, 0.8 * codebook)
        self.calibrated("auto", "--threads", 1, "--force", format="trellis2")
        self.calibrated("again", "--threads", 2, "--isa", "scalar", "--force", format="trellis2")
        self.assertEqual(files_below(self.dir / "auto"), files_below(self.dir / "again"))
        self.assertTrue(self.greedy(self.dir / "auto"))

    def test_asymmetric_fits(self):
        self.calibrated("a", "--fit", "asymmetric", "--threads", 1)
        self.calibrated("b", "--fit", "asymmetric", "--threads", 2, "--isa", "scalar")
        self.assertEqual(files_below(self.dir / "a"), files_below(self.dir / "b"))
        old = self.lowbit("quantize", self.hf, self.dir / "old", "--format", "int3", "--group", 32, "--calib", self.text, "--fit", "align")
        self.assertIn("--fit asymmetric", old.stderr.decode())  # the old name says the new one
        self.calibrated("refit", "--fit", "refit")
        codes = [(self.dir / name / "model.safetensors").read_bytes() for name in ("a", "refit")]
        self.assertNotEqual(*codes)
        # A layer reads the outputs of the block's quantized layers before it.
        recipe = self.dir / "recipe"
        outputs = []
        for name in ("binary", "int8"):
            recipe.write_text(f"v_proj {name}\n")
            self.calibrated(f"v-{name}", "--fit", "align", "--recipe", recipe)
            outputs.append(tensor_bytes(self.dir / f"v-{name}", "model.layers.0.self_attn.o_proj.weight.codes"))
        self.assertNotEqual(*outputs)
        # Of itself for few values and enough text.
        self.text.write_text(text(20000))
        for name, fit in (("long-auto", "auto"), ("long-align", "asymmetric"), ("long-refit", "refit")):
            self.json("quantize", self.hf, self.dir / name, "--format", "int3", "--calib", self.text, "--calib-tokens", "8K", "--fit", fit)
        self.assertEqual(*(all_but_generation(self.dir / name / "model.safetensors") for name in ("long-auto", "long-align")))
        self.assertNotEqual(*((self.dir / name / "model.safetensors").read_bytes() for name in ("long-auto", "long-refit")))
        self.text.write_text(text(1500))
        recipe = self.dir / "recipe"  # a layer that is not aligned, between others that are
        recipe.write_text("o_proj int3 group=32 fit=refit\n_proj int3 group=32 fit=align\n")
        self.calibrated("mixed", "--recipe", recipe)
        self.assertTrue(self.greedy(self.dir / "mixed"))
        self.assertIn("--calib", self.refused("quantize", self.hf, self.dir / "x", "--format", "int3", "--fit", "align"))

    def test_a_hadamard_transform_at_run_time_keeps_the_function(self):
        call = ("--format", "int8", "--group", 32, "--calib", self.text)
        plain = self.json("quantize", self.hf, self.dir / "plain", *call)
        turned = self.json("quantize", self.hf, self.dir / "turned", *call, "--hadamard")
        self.assertAlmostEqual(turned["held_out"]["source_ppl"] / plain["held_out"]["source_ppl"], 1, delta=1e-4)
        self.assertAlmostEqual(turned["held_out"]["ratio"], 1, delta=0.01)
        configs = [json.loads((self.dir / name / "config.json").read_text())["quantization_config"] for name in ("plain", "turned")]
        self.assertEqual([c["format_version"] for c in configs], [1, 2])
        self.assertNotIn("online_hadamard", configs[0])
        block = configs[1]["online_hadamard"]["mlp.down_proj"]
        self.assertEqual(block & (block - 1), 0)
        ppl = {name: self.json("ppl", self.dir / name, "-f", self.text, "-c", 64, "--chunks", 4, "--act", "f32")["ppl"] for name in ("plain", "turned")}
        self.assertAlmostEqual(ppl["turned"] / ppl["plain"], 1, delta=0.01)
        self.assertEqual(self.json("verify", self.dir / "turned")["ok"], True)
        self.json("import", self.dir / "turned", self.dir / "copy")  # keeps it
        self.assertEqual(self.greedy(self.dir / "copy", n=6), self.greedy(self.dir / "turned", n=6))
        self.json("quantize", self.dir / "turned", self.dir / "again", "--format", "int4", "--group", 32)
        again = json.loads((self.dir / "again/config.json").read_text())["quantization_config"]
        self.assertEqual((again["format_version"], again["online_hadamard"]), (2, {"mlp.down_proj": block}))
        self.assertIn("--hadamard", self.refused("quantize", self.dir / "turned", self.dir / "x", "--format", "int4", "--hadamard"))
        self.json("quantize", self.hf, self.dir / "both", *call, "--hadamard", "--rotate", "--smooth", "0.5", "--threads", 2)
        config = self.dir / "turned/config.json"  # an older reader would take it for a plain model
        config.write_text(config.read_text().replace('"format_version": 2', '"format_version": 1'))
        self.assertIn("online_hadamard", self.refused("run", self.dir / "turned", "-p", "a"))

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

    def test_on_a_gpu(self):
        """Gives the bytes of the CPU; without a GPU an error that says so."""
        call = ("quantize", self.hf, self.dir / "gpu", "--format", "int3", "--group", 32, "--device", "cuda")
        self.assertIn("--calib", self.refused(*call))
        doctor = self.json("doctor")
        if doctor["gpu"] is None:
            error = self.refused(*call, "--calib", self.text)
            self.assertIn("compute capability" if doctor["cuda_built"] else "nvcc", error)
            self.assertFalse((self.dir / "gpu").exists() or (self.dir / "gpu.calibration").exists())
            self.skipTest("no CUDA device of compute capability 8.0 or higher")
        self.assertIn("CUDA device 99", self.refused(*call[:-1], "cuda:99", "--calib", self.text))
        self.calibrated("cpu")
        times = self.calibrated("gpu", "--device", "cuda")["calibration_seconds"]
        self.assertEqual(set(times), {"measure", "fit", "advance"})
        self.assertEqual(files_below(self.dir / "cpu"), files_below(self.dir / "gpu"))
        for name in ("cpu", "cuda"):
            self.calibrated(f"aligned-{name}", "--fit", "align", "--hadamard", "--device", name)
        self.assertEqual(files_below(self.dir / "aligned-cpu"), files_below(self.dir / "aligned-cuda"))
        budget = ("--target-bpw", 3.5, "--group", 32, "--calib", self.text, "--calib-tokens", "2K", "--smooth", "0.5")
        for name in ("cpu", "cuda"):
            self.json("quantize", self.hf, self.dir / f"mixed-{name}", *budget, "--device", name)
        self.assertEqual(files_below(self.dir / "mixed-cpu"), files_below(self.dir / "mixed-cuda"))

    def test_recipes_and_kept_layers(self):
        recipe = self.dir / "recipe"
        recipe.write_text("v_proj keep\ndown_proj int4 fit=lsq\nup_proj int2 fit=wls\n")
        report = self.calibrated("out", "--recipe", recipe)
        formats = {x["name"].split(".")[-1]: (x["format"], "output_error" in x) for x in report["layers"] if "layers.1." in x["name"]}
        self.assertEqual(formats["v_proj"], ("f32", False))
        self.assertEqual(formats["down_proj"], ("int4", False))
        self.assertEqual(formats["up_proj"], ("int2", False))
        self.assertEqual(formats["q_proj"], ("int3", True))

    def test_migrated_outliers_keep_the_function(self):
        """An outlier channel in a norm: with one scale per token the others drown in it, unless it has moved into the
        weights."""
        model = self.dir / "outlier"
        shutil.copytree(self.hf, model)

        def grow(values):
            values[3] *= 300

        change(model, {f"model.layers.{i}.{n}.weight": grow for i in range(2) for n in ("input_layernorm", "post_attention_layernorm")})
        call = ("--format", "int8", "--calib", self.text, "--fit", "lsq")
        plain = self.json("quantize", model, self.dir / "plain", *call, "--force")
        moved = self.json("quantize", model, self.dir / "moved", *call, "--smooth", "0.5", "--force")
        self.assertAlmostEqual(moved["held_out"]["source_ppl"] / plain["held_out"]["source_ppl"], 1, delta=1e-3)
        self.assertNotEqual(files_below(self.dir / "plain"), files_below(self.dir / "moved"))
        self.json("quantize", model, self.dir / "again", *call, "--smooth", "0.5", "--threads", 2, "--force")
        self.assertEqual(files_below(self.dir / "moved"), files_below(self.dir / "again"))
        fit = json.loads((self.dir / "moved/config.json").read_text())["quantization_config"]["fit"]
        self.assertEqual(fit["smooth"], 0.5)

        def loss(name):
            """The cost of activations with one scale per token."""
            ppl = {act: self.json("ppl", self.dir / name, "-f", self.text, "-c", 64, "--chunks", 4, "--act", act)["ppl"]
                   for act in ("f32", "int8-row")}
            return abs(ppl["int8-row"] / ppl["f32"] - 1)

        self.assertLess(loss("moved"), loss("plain"))
        self.assertIn("--calib", self.refused("quantize", model, self.dir / "x", "--format", "int8", "--smooth", "0.5"))

    def test_rotation_keeps_the_function(self):
        plain = self.json("quantize", self.hf, self.dir / "plain", "--format", "int8", "--group", 32, "--calib", self.text)
        turned = self.json("quantize", self.hf, self.dir / "turned", "--format", "int8", "--group", 32, "--calib", self.text, "--rotate")
        self.assertAlmostEqual(turned["held_out"]["source_ppl"] / plain["held_out"]["source_ppl"], 1, delta=1e-3)
        self.assertAlmostEqual(turned["held_out"]["ratio"], 1, delta=0.01)
        names = {x["name"] for x in turned["layers"]}
        self.assertIn("lm_head", names)
        self.assertEqual(self.json("verify", self.dir / "turned")["ok"], True)
        self.assertEqual(self.greedy(self.dir / "turned", "--act", "f32", n=4), self.greedy(self.dir / "plain", "--act", "f32", n=4))

    def test_a_byte_budget(self):
        call = ("quantize", self.hf, self.dir / "a", "--target-bpw", 3.5, "--group", 32, "--calib", self.text, "--calib-tokens", "2K",
                "--keep", "layers.0.*k_proj")
        report = self.json(*call, "--threads", 1)
        self.assertLessEqual(report["bits_per_weight"], 3.5)
        self.assertGreater(report["bits_per_weight"], 3.0)
        formats = {x["name"]: x["format"] for x in report["layers"]}
        self.assertGreater(len(set(formats.values()) - {"int8", "f32"}), 1)
        self.assertEqual(formats["model.layers.0.self_attn.k_proj"], "f32")
        self.assertEqual(formats["model.layers.0.mlp.gate_proj"], formats["model.layers.0.mlp.up_proj"])
        self.json(*call[:2], self.dir / "b", *call[3:], "--threads", 2)
        self.assertEqual(files_below(self.dir / "a"), files_below(self.dir / "b"))
        self.assertTrue(any(name.startswith(("codebook", "trellis")) for name in formats.values()), formats)
        without = self.json(*call[:2], self.dir / "z", *call[3:], "--zero")  # no trellis has offsets
        self.assertFalse(any(x["format"].startswith("trellis") for x in without["layers"]))
        self.assertIn("budget", self.refused(*call[:2], self.dir / "c", "--target-bpw", 1.5, *call[5:], "--quiet"))
        self.assertIn("--calib", self.refused("quantize", self.hf, self.dir / "d", "--target-bpw", 3))
        self.refused("quantize", self.hf, self.dir / "d", "--target-bpw", 3, "--format", "int4", code=2)
        self.refused("quantize", self.hf, self.dir / "d", code=2)

    def test_every_source_and_format(self):
        gguf = make_model(self.dir / "tiny.gguf", "--dtype", "q8_0")
        for name in ("int8", "int4", "int2", "ternary", "binary", "fp8"):
            with self.subTest(name):
                self.json("quantize", gguf, self.dir / name, "--format", name, "--calib", self.text, "--calib-tokens", "512")
                self.assertEqual(self.json("verify", self.dir / name)["ok"], True)

    def test_refused(self):
        out = self.dir / "out"
        for fit, said in (("wls", "wls"), ("gptq", "gptq"), ("refit", "refit"), ("asymmetric", "asymmetric"), ("align", "asymmetric")):
            error = self.refused("quantize", self.hf, out, "--format", "int4", "--fit", fit)
            self.assertIn(f"--fit {said}: got no text", error)
            self.assertIn("--calib FILE", error)
        call = ("quantize", self.hf, out, "--format", "int4", "--calib")
        self.assertIn("missing.txt", self.refused(*call, self.dir / "missing.txt"))
        short = self.dir / "short.txt"
        short.write_text("too short")
        self.assertIn("sequence", self.refused(*call, short))
        binary = self.dir / "binary"
        for data in (bytes(range(256)) * 40, "text".encode("utf-16") * 999, b"text and zeros\0" * 999):
            binary.write_bytes(data)
            self.assertIn("wanted a text in UTF-8", self.refused(*call, binary))
        self.refused(*call, "", code=2)
        self.refused(*call, self.dir)
        self.refused(*call, self.text, "--calib-tokens", "0", code=2)
        narrow = self.dir / "narrow"  # config.json says less than the embedding is wide
        shutil.copytree(self.hf, narrow)
        config = json.loads((narrow / "config.json").read_text())
        (narrow / "config.json").write_text(json.dumps(config | {"hidden_size": config["hidden_size"] // 2}))
        self.assertIn("hidden_size", self.refused("quantize", narrow, out, "--format", "int4", "--calib", self.text))
        self.assertFalse(out.exists())


class HeldOut(CliTest):
    """A model that repeats its last token for sure, until its embedding is ruined on purpose."""

    def setUp(self):
        super().setUp()
        self.model = self.dir / "echo"
        shutil.copytree(self.hf, self.model)

        def clear(values):
            values[:] = [0.0] * len(values)

        def outweigh(values):  # a row of another token that no text has
            width, z = 64, 3 + ord("z")
            values[50 * width:51 * width] = [-1e4 * v for v in values[z * width:(z + 1) * width]]

        def sharpen(values):
            values[:] = [100.0] * len(values)
        layers = {f"model.layers.{i}.{part}.weight": clear for i in range(2) for part in ("self_attn.o_proj", "mlp.down_proj")}
        change(self.model, layers | {"model.embed_tokens.weight": outweigh, "model.norm.weight": sharpen})
        self.text = self.dir / "text.txt"
        self.text.write_text("z" * 4000)
        self.recipe = self.dir / "recipe"
        self.recipe.write_text("embed_tokens int8 group=tensor fit=absmax\n")
        self.call = ("quantize", self.model, self.dir / "out", "--format", "int4", "--group", 32, "--calib", self.text, "--calib-tokens", "1K")

    def test_a_sound_result(self):
        held = self.json(*self.call)["held_out"]
        self.assertKeys(held, "tokens was_seen source_ppl ppl ratio same_token continued sure_tokens same_where_sure")
        self.assertFalse(held["was_seen"])
        self.assertLess(held["source_ppl"], 1.5)
        self.assertAlmostEqual(held["ratio"], 1, delta=0.1)
        self.assertEqual([held["same_token"], held["same_where_sure"]], [1, 1])  # the text is one letter
        self.assertGreater(held["continued"], 100)

    def test_a_broken_result_needs_force(self):
        broken = (*self.call, "--recipe", self.recipe)
        error = self.refused(*broken)
        self.assertIn("times the source's", error)
        self.assertIn("--force", error)
        self.assertFalse((self.dir / "out").exists())
        self.assertIn("--keep", error)
        report = self.json(*self.call)  # other options may follow a refusal at once
        self.assertEqual(report["resumed_blocks"], 0)
        shutil.rmtree(self.dir / "out")
        self.refused(*broken)
        report = self.json(*broken, "--force")
        self.assertEqual(report["resumed_blocks"], 2)  # nothing is calibrated twice
        self.assertGreater(report["held_out"]["ratio"], 3)
        self.assertTrue(any("broken" in warning for warning in report["warnings"]))
        self.assertEqual(self.json("verify", self.dir / "out")["ok"], True)
        self.assertFalse((self.dir / "out.calibration").exists())

    def test_a_text_too_short_to_spare_any(self):
        self.text.write_text("z" * 600)
        held = self.json(*self.call)["held_out"]
        self.assertTrue(held["was_seen"])
        self.assertAlmostEqual(held["ratio"], 1, delta=0.1)

    def test_no_more_than_half_of_a_short_text_is_held_out(self):
        self.text.write_text("z" * 2300)
        held = self.json(*self.call[:-1], "64K")["held_out"]
        fit = json.loads((self.dir / "out/config.json").read_text())["quantization_config"]["fit"]
        self.assertFalse(held["was_seen"])
        self.assertGreaterEqual(fit["calibration"]["tokens"], held["tokens"])

    def test_activations_that_overflow_are_named(self):
        def explode(values):
            values[:] = [3e38] * len(values)
        change(self.model, {"model.layers.1.input_layernorm.weight": explode})
        self.assertIn("layers.1.self_attn.q_proj", self.refused(*self.call))

    def test_silent_channels_and_one_single_direction(self):
        def silence(values):
            values[3:9] = [0.0] * 6
        change(self.model, {"model.layers.0.input_layernorm.weight": silence})  # the text is one token: H has rank 1
        self.assertAlmostEqual(self.json(*self.call)["held_out"]["ratio"], 1, delta=0.1)


class Resume(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.big = make_model(cls.models / "big", "--hidden", "192", "--layers", "5", "--ffn", "500")
        cls.text = cls.models / "text.txt"
        cls.text.write_text(text(9000))

    def call(self, name, *options):
        return ("quantize", self.big, self.dir / name, "--format", "int3", "--calib", self.text, "--calib-tokens", "8K", *options)

    def stop_after_block(self, name, block, stop, *options):
        """Starts a run and stops it once a block is there; its state is left."""
        process = start(*self.call(name, *options))
        marker, end = self.dir / f"{name}.calibration" / f"block-{block}.json", time.monotonic() + TIMEOUT_S
        while not marker.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        stop(process)
        process.communicate()
        self.assertTrue(marker.exists())
        self.assertFalse((self.dir / name).exists())

    def test_same_bytes_after_kill_9(self):
        self.lowbit(*self.call("whole", "--threads", 1))
        whole = files_below(self.dir / "whole")
        for block in (0, 2):
            with self.subTest(block):
                name = f"killed{block}"
                self.stop_after_block(name, block, lambda process: process.kill())
                report = self.json(*self.call(name, "--threads", 2))
                self.assertGreater(report["resumed_blocks"], block)
                self.assertEqual(files_below(self.dir / name), whole)
                self.assertFalse((self.dir / f"{name}.calibration").exists())

    def test_ctrl_c_keeps_the_finished_blocks_and_damaged_ones_are_done_again(self):
        self.lowbit(*self.call("whole"))
        said = []
        self.stop_after_block("out", 1, lambda process: said.append(interrupt(process)[1].decode()))
        self.assertIn("stopped: the same command goes on where it stopped; ", said[0].splitlines()[-1])
        self.assertIn("out.calibration holds what is done", said[0])
        block = self.dir / "out.calibration/block-0/model.safetensors"
        data = bytearray(block.read_bytes())
        data[-5] ^= 1
        block.write_bytes(data)
        report = self.json(*self.call("out"))
        self.assertIn(report["resumed_blocks"], (1, 2, 3))
        self.assertEqual(files_below(self.dir / "out"), files_below(self.dir / "whole"))

    def test_a_folder_of_someone_else_is_left_alone(self):
        other = self.dir / "out.calibration"
        other.mkdir()
        (other / ".tmp-run.json-1-0").write_text("{")  # what a kill in the very first moment leaves
        self.json(*self.call("out"))
        other.mkdir()
        (other / "thesis.txt").write_text("years of work")
        self.assertIn("other files", self.refused(*self.call("out", "--force")))
        self.assertEqual((other / "thesis.txt").read_text(), "years of work")

    def test_the_state_of_another_run_is_refused(self):
        self.stop_after_block("out", 0, lambda process: process.kill())
        error = self.refused(*self.call("out", "--seed", 5))
        self.assertIn("out.calibration", error)
        self.assertIn("--force", error)
        self.assertEqual(self.json(*self.call("out", "--seed", 5, "--force"))["resumed_blocks"], 0)


if __name__ == "__main__":
    unittest.main()
