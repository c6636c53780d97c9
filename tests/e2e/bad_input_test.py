"""Files that are missing, cut, wrong or in the way: one error line, exit 1, nothing left behind."""
import contextlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import unittest
from pathlib import Path

import cli
from cli import CliTest, environment, files_below, make_model


class Sources(CliTest):
    def setUp(self):
        super().setUp()
        self.copy = self.dir / "copy"
        shutil.copytree(self.hf, self.copy)

    def refused_everywhere(self, path):
        out = self.dir / "out"
        self.refused("quantize", path, out, "--format", "int4")
        self.refused("import", path, out)
        self.refused("run", path, "-p", "x", "-n", 1)
        self.assertFalse(out.exists())
        self.assertEqual([f for f in os.listdir(self.dir) if "out" in f], [])

    def test_missing(self):
        self.refused_everywhere(self.dir / "absent")
        for name in ("config.json", "model.safetensors"):
            with self.subTest(name):
                shutil.move(self.copy / name, self.dir / "aside")
                self.refused_everywhere(self.copy)
                shutil.move(self.dir / "aside", self.copy / name)

    def test_not_a_model(self):
        (self.dir / "empty").mkdir()
        self.refused_everywhere(self.dir / "empty")
        (self.dir / "text").write_text("hello")
        self.refused_everywhere(self.dir / "text")
        (self.dir / "nothing").touch()
        self.refused_everywhere(self.dir / "nothing")
        self.refused_everywhere("/dev/null")
        os.mkfifo(self.dir / "pipe")  # nobody will ever write to it
        self.refused_everywhere(self.dir / "pipe")

    def test_pipes_in_place_of_files(self):
        """One without a writer is an error at once, whatever reads it; texts come through one with a writer, even if
        it is slow."""
        pipe, out = self.dir / "pipe", self.dir / "out"
        os.mkfifo(pipe)
        for args in (["tokenize", self.hf, "--file", pipe], ["run", self.hf, "--file", pipe], ["logits", self.hf, "--file", pipe],
                     ["ppl", self.hf, "--file", pipe], ["eval", self.hf, "--tasks", "ppl", "--text", pipe], ["chat", self.hf, "--render", pipe],
                     ["eval", self.hf, "--tasks", pipe], ["quantize", self.hf, out, "--format", "int4", "--recipe", pipe],
                     ["quantize", self.hf, out, "--format", "int4", "--calib", pipe],
                     ["ppl", self.hf, "-c", 16, "--file", self.copy / "config.json", "--against", pipe]):
            with self.subTest(args[0]):
                self.assertIn("pipe", self.refused(*args))
        self.assertFalse(out.exists())
        slow = f'"{cli.BINARY}" tokenize "{self.hf}" --json --no-special --file <(sleep 0.3; printf "a "; sleep 0.3; printf b)'
        read = subprocess.run(["bash", "-c", slow], capture_output=True, text=True, timeout=cli.TIMEOUT_S, env=cli.environment())
        self.assertEqual((read.returncode, json.loads(read.stdout)["text"]), (0, "a b"), read.stderr)
        self.assertEqual(json.loads(self.lowbit("tokenize", self.hf, "--json", "--file", "-", stdin=b"a b").stdout)["text"], "a b")

    def test_where_models_are_found(self):
        """Guesses at a name that is no model."""
        self.assertIn("lowbit downloads nothing", self.refused("inspect", "owner/model-name"))
        self.assertNotIn("downloads", self.refused("inspect", "./model-name"))
        self.assertIn("model: got an empty name", self.refused("verify", ""))
        (self.copy / "model.safetensors").unlink()
        for name in ("pytorch_model.bin", "pytorch_model.bin.index.json"):
            (self.copy / name).touch()
            self.assertIn("pickled weights are never read", self.refused("inspect", self.copy))
            (self.copy / name).unlink()
        self.assertNotIn("pickled", self.refused("inspect", self.copy))

    def test_code_beside_a_model_is_never_run(self):
        """config.json names modules that other readers would import; nor are they copied."""
        ran, out = self.dir / "ran", self.dir / "out"
        config = json.loads((self.copy / "config.json").read_text())
        classes = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own", "AutoTokenizer": ["tokenization_own.Own", None]}
        (self.copy / "config.json").write_text(json.dumps(config | {"auto_map": classes}))
        for name in ("configuration_own.py", "modeling_own.py", "tokenization_own.py"):
            (self.copy / name).write_text(f"open({str(ran)!r}, 'w')")
        self.lowbit("run", self.copy, "-p", "x", "-n", 1)
        self.lowbit("quantize", self.copy, out, "--format", "int4")
        self.lowbit("run", out, "-p", "x", "-n", 1)
        self.assertFalse(ran.exists())
        self.assertEqual([f for f in os.listdir(out) if f.endswith(".py")], [])

    def test_broken_config(self):
        good = json.loads((self.copy / "config.json").read_text())
        for change in ({"num_hidden_layers": -1}, {"num_hidden_layers": "two"}, {"hidden_size": 1 << 40},
                       {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"model_type": "pondering", "architectures": ["P"]},
                       {"vocab_size": 1 << 33}, {"hidden_size": 63}):
            with self.subTest(change):
                (self.copy / "config.json").write_text(json.dumps(good | change))
                self.assertIn(f"error: {self.copy}: config.json", self.refused("run", self.copy, "-p", "x", "-n", 1))
        for text in ("", "{", "[]", "null", "[" * 100000):
            with self.subTest(text[:10]):
                (self.copy / "config.json").write_text(text)
                self.refused("run", self.copy, "-p", "x", "-n", 1)

    def test_broken_weights(self):
        weights = self.copy / "model.safetensors"
        raw = weights.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:8 + length])
        name = "model.layers.1.self_attn.k_proj.weight"

        def write(new_header, data=None):
            text = json.dumps(new_header).encode()
            weights.write_bytes(struct.pack("<Q", len(text)) + text + (raw[8 + length:] if data is None else data))

        last = max((k for k in header), key=lambda k: header[k]["data_offsets"])
        write({k: v for k, v in header.items() if k != last}, raw[8 + length:][:header[last]["data_offsets"][0]])
        self.assertIn(last, self.refused("run", self.copy, "-p", "x"))
        write({k: v for k, v in header.items() if k != name})  # leaves a hole
        self.refused("run", self.copy, "-p", "x")
        write(header | {name: header[name] | {"shape": [64, 32]}})
        self.assertIn(name.removesuffix(".weight"), self.refused("run", self.copy, "-p", "x"))
        start = header[name]["data_offsets"][0]
        data = bytearray(raw[8 + length:])
        data[start:start + 4] = struct.pack("<f", float("nan"))
        write(header, data)
        self.assertIn(name.removesuffix(".weight"), self.refused("quantize", self.copy, self.dir / "out", "--format", "int4"))
        self.assertFalse((self.dir / "out").exists())

    def test_truncated(self):
        gguf = Path(make_model(self.dir / "m.gguf"))
        whole = gguf.read_bytes()
        cut = self.dir / "cut.gguf"
        rng = random.Random(7)
        for size in [0, 3, 4, 8, 24, *(rng.randrange(len(whole)) for _ in range(25)), len(whole) - 1]:
            with self.subTest(gguf=size):
                cut.write_bytes(whole[:size])
                error = self.refused("quantize", cut, self.dir / "out", "--format", "int2")
                self.assertIn("truncated" if size >= 4 else "not GGUF", error)
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            whole = (self.copy / name).read_bytes()
            for size in [0, 7, *(rng.randrange(len(whole)) for _ in range(12)), len(whole) - 1]:
                with self.subTest(name=name, size=size):
                    (self.copy / name).write_bytes(whole[:size])
                    error = self.refused("run", self.copy, "-p", "x", "-n", 1)
                    self.assertIn(str(self.copy), error)
                    if name.endswith(".json") and size > 0:
                        self.assertIn("is the file complete?", error)
            (self.copy / name).write_bytes(whole)
        self.assertFalse((self.dir / "out").exists())

    def test_control_characters_stay_out_of_the_terminal(self):
        errors = self.refused("run", self.dir / "a\x1b[31m\nb", "-p", "x")
        self.assertNotIn("\x1b", errors)


    @unittest.skipUnless(os.path.exists("/dev/zero"), "no /dev/zero on this machine")
    def test_a_text_without_end(self):
        for verb in (("tokenize", self.hf), ("run", self.hf), ("logits", self.hf)):
            self.assertIn("a device", self.refused(*verb, "--file", "/dev/zero"))
        self.assertIn("a device", self.refused("ppl", self.hf, "-f", "/dev/zero"))
        self.assertEqual(self.json("tokenize", self.hf, "--file", "/dev/null", "--no-special")["ids"], [])

    def test_a_broken_generation_config(self):
        (self.copy / "generation_config.json").write_text('{"eos_token_id": 2,')
        self.assertIn("generation_config.json", self.refused("run", self.copy, "-p", "x", "-n", 1))


class Checkpoints(CliTest):
    def test_nan_in_scales_is_found_by_verify(self):
        """With a right checksum: what run refuses, verify must not pass."""
        out = self.quantized("c", "--format", "int4")
        file = out / "model.safetensors"
        raw = bytearray(file.read_bytes())
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:8 + length])
        name = next(k for k in header if k.endswith(".scales") and header[k]["dtype"] == "F16")
        begin = 8 + length + header[name]["data_offsets"][0]
        raw[begin:begin + 2] = b"\x00\x7e"
        file.write_bytes(raw)
        got, wanted = re.search("got checksum ([0-9a-f]{16}), wanted ([0-9a-f]{16})", self.json("verify", out, code=1)["problems"][0]).groups()
        self.assertEqual(raw.count(wanted.encode()), 1)
        file.write_bytes(raw.replace(wanted.encode(), got.encode()))
        self.assertIn("NaN", self.refused("run", out, "-p", "x", "-n", 1))
        report = self.json("verify", out, code=1)
        self.assertEqual(len(report["problems"]), 1, report["problems"])
        self.assertIn("NaN or infinity in its scales", report["problems"][0])

    def test_a_format_note_that_lies_stops_run(self):
        out = self.quantized("c", "--format", "int4")
        file = out / "model.safetensors"
        raw = file.read_bytes()
        self.assertIn(b'"int4 g', raw)
        file.write_bytes(raw.replace(b'"int4 g', b'"int3 g', 1))
        self.assertIn("int3 g", self.refused("run", out, "-p", "x", "-n", 1))

    def test_files_of_two_checkpoints(self):
        one, two = self.quantized("one", "--format", "int4"), self.quantized("two", "--format", "int4", "--fit", "absmax")
        (one / "config.json").write_bytes((two / "config.json").read_bytes())
        self.assertIn("generation", self.refused("run", one, "-p", "x", "-n", 1))

    def test_what_was_private_stays_private(self):
        out = self.quantized("c", "--format", "int4")
        os.chmod(out, 0o700)
        os.chmod(out / "model.safetensors", 0o600)
        self.lowbit("quantize", self.hf, out, "--quiet", "--format", "int2", "--force")
        self.assertEqual(out.stat().st_mode & 0o777, 0o700)
        self.assertEqual((out / "model.safetensors").stat().st_mode & 0o777, 0o600)

    def test_every_flipped_byte_is_found(self):
        out = self.quantized("c", "--format", "int4")
        file = out / "model.safetensors"
        whole, rng = file.read_bytes(), random.Random(3)
        data_start = 8 + int.from_bytes(whole[:8], "little")
        for _ in range(25):
            at = rng.randrange(data_start, len(whole))
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1:])
            with self.subTest(at=at):
                report = self.json("verify", out, code=1)
                self.assertEqual(report["ok"], False)
                self.assertEqual(len(report["problems"]), 1, report["problems"])

    def test_truncated(self):
        out = self.quantized("c", "--format", "int4")
        rng = random.Random(5)
        for name in ("model.safetensors", "config.json"):
            whole = (out / name).read_bytes()
            for size in [0, 7, *(rng.randrange(len(whole)) for _ in range(12)), len(whole.rstrip()) - 1]:
                (out / name).write_bytes(whole[:size])
                with self.subTest(name=name, size=size):
                    self.refused("run", out, "-p", "x", "-n", 1)
                    done = self.lowbit("verify", out, code=1)
                    self.assertEqual(done.stderr.count(b"\n"), 1)
            (out / name).write_bytes(whole)
        self.assertEqual(self.json("verify", out)["ok"], True)

    def test_newer_version_and_unknown_format(self):
        out = self.quantized("c", "--format", "int4")
        text = (out / "config.json").read_text()
        for old, replacement, word in (('"format_version": 1', '"format_version": 99', "99"), ('"int4"', '"int4.5"', "int4.5")):
            self.assertTrue(old in text or old.replace(" ", "") in text)
            (out / "config.json").write_text(text.replace(old, replacement).replace(old.replace(" ", ""), replacement))
            self.assertIn(word, self.refused("run", out, "-p", "x", "-n", 1))

    def test_bad_recipe(self):
        recipe = self.dir / "recipe"
        for text in ("proj int9\n", "proj\n", "[proj int4\n", "proj int4 group=minus\n", "proj int4 colour=red\n"):
            with self.subTest(text):
                recipe.write_text(text)
                self.refused("quantize", self.hf, self.dir / "out", "--format", "int4", "--recipe", recipe)
        self.refused("quantize", self.hf, self.dir / "out", "--format", "int4", "--recipe", self.dir / "absent")
        self.refused("quantize", self.hf, self.dir / "out", "--format", "int4", "--keep", "[proj")
        self.assertFalse((self.dir / "out").exists())


class Targets(CliTest):
    def test_unwritable(self):
        (self.dir / "file").write_text("in the way")
        for target in (self.dir / "file", self.dir / "file" / "out", "/proc/lowbit", self.dir / "no" / "such" / "parent" / "x",
                       self.dir / ("n" * 300), ""):
            with self.subTest(str(target)):
                if str(target).endswith("parent/x"):
                    # Making the parents and refusing are both fine, half a checkpoint is not.
                    done = subprocess.run([cli.BINARY, "quantize", self.hf, target, "--format", "int4"],
                                          capture_output=True, env=environment())
                    self.assertIn(done.returncode, (0, 1))
                    continue
                self.refused("quantize", self.hf, target, "--format", "int4")
        self.assertEqual((self.dir / "file").read_text(), "in the way")

    @contextlib.contextmanager
    def mounted(self, options):
        """A folder that is a file system of its own; skips where that is not allowed."""
        disk = self.dir / "disk"
        disk.mkdir()
        can = shutil.which("mount") and os.geteuid() == 0
        if not can or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "lowbit-test", disk], capture_output=True).returncode != 0:
            self.skipTest("needs root and the right to mount a tmpfs")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)

    def refuses_to_write(self, folder):
        """Every verb that makes files says where else to."""
        text = self.dir / "text"
        text.write_text("the cat and the dog are here. " * 20)
        checkpoint = self.quantized("checkpoint", "--format", "int4")
        for call in (("quantize", self.hf, folder / "out", "--format", "int4"), ("import", self.hf, folder / "out"),
                     ("quantize", self.hf, folder / "out", "--format", "int2", "--calib", text, "--calib-tokens", 64),
                     ("ppl", self.hf, "-f", text, "-c", 64, "--save-logits", folder / "out"),
                     ("report", checkpoint, "-o", folder / "out")):
            with self.subTest(call[0]):
                self.assertIn("choose a place where you may write", self.refused(*call))
                self.assertEqual(os.listdir(folder), [])

    def test_read_only_folder(self):
        closed = self.dir / "closed"
        closed.mkdir(mode=0o500)
        if os.access(closed, os.W_OK):
            self.skipTest("this user may write everywhere")
        self.refuses_to_write(closed)

    def test_read_only_disk(self):
        with self.mounted("ro") as disk:
            self.refuses_to_write(disk)

    def test_files_that_do_not_fit(self):
        text, page, logits = self.dir / "text", self.dir / "page.html", self.dir / "logits"
        text.write_text("the cat and the dog are here. " * 20)
        self.unwritten(logits, "ppl", self.hf, "-f", text, "-c", 64, "--save-logits", logits)
        self.unwritten(page, "report", self.quantized("c", "--format", "int4"), "-o", page)
        for verb in (("import",), ("quantize", "--format", "int4")):
            self.refused(verb[0], self.hf, self.dir / "out", *verb[1:], file_bytes=1000)
            self.assertEqual([f for f in os.listdir(self.dir) if "out" in f], [])

    def test_full_disk(self):
        with self.mounted("size=96k") as disk:
            self.refused("quantize", self.hf, disk / "out", "--format", "int8")
            self.assertEqual(files_below(disk), {})
            self.assertEqual(os.listdir(disk), [])
            self.refused("import", self.hf, disk / "out")
            self.assertEqual(os.listdir(disk), [])


if __name__ == "__main__":
    unittest.main()
