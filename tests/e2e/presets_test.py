"""quantize --preset and --calib self: one command, no data."""
import json
import os
import random
import resource
import struct
import subprocess
import time
import unittest
from pathlib import Path

import cli
from cli import ERROR_LINE, CliTest, environment, files_below, interrupt, make_model, sanitized, start, text

CALIB = ("--calib-tokens", "2K")


class Presets(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reports = {}

    def preset(self, name):
        if name not in self.reports:
            self.reports[name] = self.json("quantize", self.hf, self.models / name, "--preset", name, *CALIB, "--force")
        return self.reports[name]

    def test_each_size_from_nothing_but_the_model(self):
        bits = {}
        for name, most in (("best", 4.25), ("balanced", 3.25), ("small", 2.25)):
            with self.subTest(name):
                report = self.preset(name)
                bits[name] = report["bits_per_weight"]
                self.assertLessEqual(bits[name], most)
                self.assertGreater(bits[name], most - 0.5)
                self.assertEqual(self.json("verify", self.models / name)["ok"], True)
                self.assertTrue(self.greedy(self.models / name))
                fit = json.loads((self.models / name / "config.json").read_text())["quantization_config"]["fit"]
                self.assertEqual((fit["preset"], fit["calibration"]["written_by"]), (name, "the model itself"))
        self.assertEqual(sorted(bits.values()), [bits["small"], bits["balanced"], bits["best"]])

    def test_what_was_chosen_and_why(self):
        report = self.preset("balanced")
        chosen = {layer: part["chosen"] for part in report["choices"] for layer in part["layers"]}
        layers = {x["name"]: x for x in report["layers"] if x["name"] in chosen}
        self.assertEqual(len(layers), 2 * 7)
        for name, layer in layers.items():
            self.assertEqual(chosen[name]["format"].split(" ")[0], layer["format"])
        for part in report["choices"]:
            self.assertKeys(part["chosen"], "format bits_per_weight divergence")
            self.assertGreater(part["chosen"]["divergence"], 0)
            if part["smaller"]:
                self.assertLess(part["smaller"]["bits_per_weight"], part["chosen"]["bits_per_weight"])
                self.assertGreater(part["smaller"]["divergence"], part["chosen"]["divergence"])
            if part["larger"]:
                self.assertGreater(part["larger"]["bits_per_weight"], part["chosen"]["bits_per_weight"])
                self.assertLess(part["larger"]["divergence"], part["chosen"]["divergence"])
        table = self.lowbit("quantize", self.hf, self.dir / "again", "--preset", "balanced", *CALIB, "--force").stdout.decode()
        self.assertRegex(table, r"chosen +bits/weight +divergence +one size smaller +one larger +layers")
        self.assertEqual(files_below(self.dir / "again"), files_below(self.models / "balanced"))

    def test_embedding_and_head_are_chosen_apart(self):
        for preset in ("best", "balanced"):
            report = self.preset(preset)
            ends = {layer: end for end in report["embedding_head"] for layer in end["layers"]}
            stored = {x["name"]: x["format"] for x in report["layers"] if "embed" in x["name"] or "lm_head" in x["name"]}
            self.assertEqual(sorted(ends), sorted(stored))
            limit = 0.05 * min(0.5, sum(part["chosen"]["divergence"] for part in report["choices"]))
            for name, end in ends.items():
                self.assertEqual(end["chosen"]["format"].split(" ")[0], stored[name])
                if stored[name] != "int8":
                    self.assertLessEqual(end["chosen"]["divergence"], limit)
                if end["smaller"]:
                    self.assertGreater(end["smaller"]["divergence"], limit)
        said = self.json("quantize", self.hf, self.dir / "said", "--preset", "best", *CALIB, "--embedding", "int4")
        self.assertEqual(said["embedding_head"], [])
        self.assertEqual({x["format"] for x in said["layers"] if "embed" in x["name"]}, {"int4"})

    def test_the_same_bytes_for_any_thread_count_and_isa(self):
        call = ("--format", "int4", "--group", 32, "--calib", "self", *CALIB)
        for name, options in (("a", ("--threads", 1)), ("b", ("--threads", 2)), ("c", ("--isa", "scalar")), ("d", ("--seed", 3))):
            self.json("quantize", self.hf, self.dir / name, *call, *options)
        a, b, c, d = (files_below(self.dir / name) for name in "abcd")
        self.assertEqual(a, b)
        self.assertEqual(a, c)
        self.assertNotEqual(a["model.safetensors"], d["model.safetensors"])  # another text

    def test_goes_on_where_it_stopped(self):
        out = self.dir / "out"
        call = ("quantize", make_model(self.dir / "big", "--layers", "4"), out, "--preset", "small", *CALIB, "--force")
        whole = files_below(self.whole(call))
        state = Path(f"{out}.calibration")
        for seen in ("text.json", "formats.json", "block-1.json"):
            process = start(*call)
            while not (state / seen).exists() and process.poll() is None:
                time.sleep(0.01)
            said = interrupt(process)[1].decode()
            self.assertTrue(out.exists() or (state / seen).exists(), seen)
            self.assertTrue(out.exists() or "goes on where it stopped" in said, said)
        report = self.json(*call)
        self.assertKeys(report, "choices resumed_blocks")
        self.assertTrue(report["choices"])
        self.assertEqual(files_below(out), whole)
        self.assertFalse(state.exists())

    def test_stopped_while_it_writes_it_leaves_nothing(self):
        out, before = self.dir / "out", sorted(self.dir.iterdir())
        call = ("quantize", self.hf, out, "--preset", "small", "--quiet")
        for stop in (interrupt, lambda process: process.kill()):
            process = start(*call, "--calib-tokens", "4M")
            while not Path(f"{out}.calibration/run.json").exists() and process.poll() is None:
                time.sleep(0.01)
            stop(process)
            process.wait()
            if stop is interrupt:
                self.assertEqual(sorted(self.dir.iterdir()), before)
        self.json("quantize", self.hf, out, "--preset", "best", *CALIB)  # whatever was begun before

    def whole(self, call):
        out = self.dir / "whole"
        self.json(*call[:2], out, *call[3:])
        return out

    def test_a_text_of_the_users_own(self):
        file = self.dir / "text.txt"
        file.write_text(text(1500))
        report = self.json("quantize", self.hf, self.dir / "own", "--preset", "best", "--calib", file, *CALIB)
        self.assertGreater(report["held_out"]["tokens"], 0)
        fit = json.loads((self.dir / "own/config.json").read_text())["quantization_config"]["fit"]["calibration"]
        self.assertNotIn("written_by", fit)

    def test_a_model_that_is_as_small_is_refused(self):
        small = self.quantized("q2", "--format", "ternary-packed", "--group", "row")
        for preset in ("best", "balanced", "small"):
            self.assertIn("bits per weight in its linear layers", self.refused("quantize", small, self.dir / "x", "--preset", preset, *CALIB))
        self.assertFalse((self.dir / "x.calibration").exists())

    def test_a_bitnet_is_ternary_whatever_its_file_stores(self):
        model = Path(make_model(self.dir / "bitnet", "--dtype", "bf16"))
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
        (model / "config.json").write_text(json.dumps(config))
        for preset in ("best", "small"):
            self.assertIn("bits per weight in its linear layers", self.refused("quantize", model, self.dir / "x", "--preset", preset, *CALIB))

    def of_family(self, name, config, tensors):
        """The tests' model as another family: with more tensors, of random numbers, and other lines in its config."""
        model = Path(make_model(self.dir / name))
        config = json.loads((model / "config.json").read_text()) | config
        (model / "config.json").write_text(json.dumps(config))
        raw, rng = (model / "model.safetensors").read_bytes(), random.Random(3)
        size = int.from_bytes(raw[:8], "little")
        header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
        for tensor, (count, mean) in tensors.items():
            values = struct.pack(f"<{count}f", *(rng.gauss(mean, 0.1) for _ in range(count)))
            header[tensor] = {"dtype": "F32", "shape": [count], "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        return model

    def test_other_families_than_llama(self):
        layers = [f"model.layers.{i}.self_attn." for i in range(2)]
        biases = {f"{layer}{x}_proj.bias": (n, 0) for layer in layers for x, n in (("q", 64), ("k", 32), ("v", 32))}
        norms = {f"{layer}{x}_norm.weight": (16, 1) for layer in layers for x in "qk"}
        for family, tensors in (("qwen2", biases), ("qwen3", norms)):
            model = self.of_family(family, {"model_type": family, "architectures": [f"{family.title()}ForCausalLM"], "head_dim": 16}, tensors)
            for preset, most in (("best", 4.25), ("small", 2.25)):
                with self.subTest(family, preset=preset):
                    out = self.dir / f"{family}-{preset}"
                    report = self.json("quantize", model, out, "--preset", preset, *CALIB, "--force")
                    self.assertLessEqual(report["bits_per_weight"], most)
                    stored = {x["name"]: x for x in self.json("inspect", out)["tensors"]}
                    self.assertEqual(set(tensors) - set(stored), set())
                    self.assertTrue(self.greedy(out))

    def test_no_room_in_memory_is_a_named_error(self):
        if sanitized():
            self.skipTest("a sanitizer wants more address space than any limit here")
        codes, program = [], (os.stat(cli.BINARY).st_size >> 20) + 20
        for mebibytes in range(program, program + 120, 20):
            out = self.dir / f"out{mebibytes}"
            done = subprocess.run([cli.BINARY, "quantize", self.hf, out, "--preset", "best", *CALIB, "--quiet", "--threads", "2"], capture_output=True,
                                  timeout=60, env=environment(), stdin=subprocess.DEVNULL,
                                  preexec_fn=lambda most=mebibytes << 20: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
            codes.append(done.returncode)
            if done.returncode == 127:
                continue  # no room for the program itself
            self.assertIn(done.returncode, (0, 1), (mebibytes, done.stderr[-500:]))
            self.assertEqual(out.exists(), done.returncode == 0)
            if done.returncode == 1:
                self.assertRegex(done.stderr.decode(errors="replace"), ERROR_LINE)
                if Path(f"{out}.calibration").exists():  # so it was under way
                    self.assertNotIn(b"bad_alloc", done.stderr)
        self.assertEqual(codes[-1], 0)

    def peak_bytes(self, *call):
        process = subprocess.Popen([cli.BINARY, *map(str, call), "--quiet"], env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss * 1024

    def test_a_token_costs_its_two_hidden_states(self):
        if sanitized():
            self.skipTest("freed memory is kept back")
        model = make_model(self.dir / "wide", "--hidden", "256", "--ffn", "1024", "--heads", "8", "--kv-heads", "8", "--context", "512")
        few, many = 4096, 20480
        peaks = [self.peak_bytes("quantize", model, self.dir / f"of{tokens}", "--format", "int4", "--fit", "asymmetric", "--calib", "self", "--calib-tokens",
                                 tokens, "--force") for tokens in (few, many)]
        states = (many - few) * 256 * 4 * 2  # nothing more: so small a model leaves no room for rows inside a block
        self.assertLess(peaks[1] - peaks[0], 1.25 * states)

    def test_refused(self):
        self.assertIn("--smooth", self.refused("quantize", self.hf, self.dir / "x", "--format", "int4", "--calib", "self", "--smooth", "0.5"))
        self.assertIn("at least", self.refused("quantize", self.hf, self.dir / "x", "--preset", "best", "--calib-tokens", 2))
        self.assertFalse((self.dir / "x").exists())


if __name__ == "__main__":
    unittest.main()
