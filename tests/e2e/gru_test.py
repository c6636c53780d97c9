"""lowbit gru: from arrays of another project to an integer network, and what bad input gets."""
import ctypes
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import zipfile

import cli
from cli import CliTest, gru_files, npy

DATA = pathlib.Path(os.environ.get("LOWBIT_DATA") or cli.SOURCE / ".." / "shared" / "data")


def floats(path):
    data = path.read_bytes()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    return struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])


class Examples(CliTest):
    """Broken weights and sounds end the examples with one error line and no file."""

    def run_example(self, name, *args):
        binary, data = pathlib.Path(cli.BINARY).parent / f"example_{name}", DATA / "rnn"
        if not binary.exists() or not data.is_dir():
            self.skipTest(f"needs {binary} and {data}")
        done = subprocess.run([binary, *map(str, args)], capture_output=True, env=cli.environment(), timeout=cli.TIMEOUT_S)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.decode(), r"\Aerror: [^\n]+\n\Z")
        return done.stderr.decode()

    def test_denoise(self):
        sound, out = self.dir / "in.wav", self.dir / "out.wav"

        def wav(samples, rate=16000):
            data = struct.pack(f"<{len(samples)}f", *samples)
            sound.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, rate, 4 * rate, 4, 32)
                              + b"data" + struct.pack("<I", len(data)) + data)

        network = DATA / "rnn" / "nsnet2"
        for samples, rate, word in (([math.nan] * 4000, 16000, "no numbers"), ([1e30] * 4000, 16000, "louder"), ([0.0] * 4000, 8000, "8000"),
                                    ([0.0] * 100, 16000, "512")):
            wav(samples, rate)
            self.assertIn(word, self.run_example("denoise", network, sound, out))
        sound.write_bytes(sound.read_bytes()[:30])
        self.run_example("denoise", network, sound, out)
        self.run_example("denoise", self.dir, sound, out)
        wav([0.0] * 4000)
        self.run_example("denoise", network, sound, self.dir / "no" / "such" / "out.wav")
        self.assertEqual(os.listdir(self.dir), ["in.wav"])

    def test_denoise_writes_through_no_link(self):
        """Whoever may write into the folder must not have another file written by leaving a link at OUT.part."""
        sound, out, victim = self.dir / "in.wav", self.dir / "out.wav", self.dir / "victim"
        samples = struct.pack("<4000h", *([100] * 4000))
        sound.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
                          + b"data" + struct.pack("<I", len(samples)) + samples)
        victim.write_bytes(b"precious")
        (self.dir / "out.wav.part").symlink_to(victim)
        binary = pathlib.Path(cli.BINARY).parent / "example_denoise"
        if not binary.exists():
            self.skipTest(f"no {binary}")
        done = subprocess.run([binary, DATA / "rnn" / "nsnet2", sound, out], capture_output=True)
        self.assertEqual(victim.read_bytes(), b"precious")
        if (DATA / "rnn" / "nsnet2").exists():
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(os.listdir(self.dir)), ["in.wav", "out.wav", "victim"])

    def test_denoise_a_stream(self):
        """Samples from stdin, frame by frame, give the file that the whole sound gives."""
        binary = pathlib.Path(cli.BINARY).parent / "example_denoise"
        if not binary.exists():
            self.skipTest(f"needs {binary}")
        rng, net = random.Random(5), self.dir / "net"
        net.mkdir()

        def weights(name, *shape, size=0.5):
            (net / f"{name}.npy").write_bytes(npy(shape, [rng.gauss(0, size) for _ in range(math.prod(shape))]))

        inputs, hidden, dense = 7, 5, 6
        weights("onnx__MatMul_166", 257, inputs, size=0.02)
        for name, rows, columns in ((207, hidden, dense), (208, dense, dense), (209, dense, 257)):
            weights(f"onnx__MatMul_{name}", rows, columns)
        for name, columns in (("fc1", inputs), ("fc2", dense), ("fc3", dense), ("fc4", 257)):
            weights(f"{name}_bias", columns)
        for first, columns in ((184, inputs), (204, hidden)):
            weights(f"onnx__GRU_{first}", 1, 3 * hidden, columns)
            weights(f"onnx__GRU_{first + 1}", 1, 3 * hidden, hidden)
            weights(f"onnx__GRU_{first + 2}", 1, 6 * hidden)

        def wav(path, raw):
            path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(raw)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
                             + b"data" + struct.pack("<I", len(raw)) + raw)

        raw = b"".join(struct.pack("<h", int(3000 * rng.gauss(0, 1)) % 8000) for _ in range(5000))
        wav(net / "noisy.wav", raw[:6000])

        def run(*args, given=b""):
            return subprocess.run([binary, net, *map(str, args)], capture_output=True, input=given, env=cli.environment(), timeout=cli.TIMEOUT_S)

        for size in (1024, 2 * 1536, len(raw)):  # two hops, six, and a part of one
            wav(self.dir / "in.wav", raw[:size])
            whole = run(self.dir / "in.wav", self.dir / "whole.wav", "--calibrate", net / "noisy.wav")
            self.assertEqual(whole.returncode, 0, whole.stderr)
            stream = run("-", self.dir / "stream.wav", given=raw[:size])
            self.assertEqual(stream.returncode, 0, stream.stderr)
            self.assertEqual((self.dir / "stream.wav").read_bytes(), (self.dir / "whole.wav").read_bytes())
            self.assertIn(b"x real time", stream.stdout)
        piped = run("-", "-", given=raw)
        self.assertEqual((piped.returncode, len(piped.stdout)), (0, len(raw)), piped.stderr)
        for given in (b"", raw[:1023]):
            short = run("-", self.dir / "short.wav", given=given)
            self.assertEqual((short.returncode, short.stderr), (1, b"error: -: got fewer than 512 samples\n"))
        (net / "noisy.wav").unlink()
        self.assertIn(b"noisy.wav", run("-", self.dir / "short.wav", given=raw).stderr)
        self.assertEqual(sorted(os.listdir(self.dir)), ["in.wav", "net", "stream.wav", "whole.wav"])

    def test_g2p(self):
        whole = DATA / "rnn" / "g2p"
        self.run_example("g2p", self.dir, "word")
        if whole.is_dir():
            with zipfile.ZipFile(whole / "checkpoint20.npz") as source, zipfile.ZipFile(self.dir / "checkpoint20.npz", "w") as cut:
                for name in source.namelist():
                    if name != "dec_emb.npy":
                        cut.writestr(name, source.read(name))
        self.assertIn("dec_emb", self.run_example("g2p", self.dir, "word"))


class Gru(CliTest):
    def setUp(self):
        super().setUp()
        self.net, self.x = self.dir / "net", self.dir / "x.npy"
        self.net.mkdir()
        weights, x = gru_files(random.Random(1))
        for name, data in weights.items():
            (self.net / name).write_bytes(data)
        self.x.write_bytes(x)
        self.ranges, self.model, self.y = self.dir / "r.json", self.dir / "net.lbgru", self.dir / "y.npy"

    def quantize(self, *options):
        self.lowbit("gru", "calibrate", self.net, "--data", self.x, "-o", self.ranges, "--quiet")
        return self.json("gru", "quantize", self.net, "--ranges", self.ranges, "-o", self.model, *options)

    def test_tuned_scales_come_nearer(self):
        plain = self.quantize("--preset", "seed8")
        tuned = self.dir / "tuned.json"
        report = self.json("gru", "tune", self.net, "--ranges", self.ranges, "--data", self.x, "-o", tuned)
        self.assertKeys(report, "source target preset start_sqnr_db sqnr_db tried changes")
        self.assertGreater(report["sqnr_db"], report["start_sqnr_db"])
        self.assertKeys(report["changes"][0], "cell tensor before after sqnr_db")
        self.assertEqual(report["changes"][-1]["sqnr_db"], report["sqnr_db"])
        self.ranges = tuned
        after = self.json("gru", "quantize", self.net, "--ranges", tuned, "-o", self.model, "--preset", "seed8")
        self.assertNotEqual(after["cells"][0]["scales"], plain["cells"][0]["scales"])
        last = {c["tensor"]: c["after"] for c in report["changes"]}
        for tensor, scale in last.items():
            self.assertEqual(after["cells"][0]["scales"][tensor], scale)
        verified = self.json("gru", "verify", self.model, "--input", self.x, "--net", self.net)
        self.assertTrue(verified["ok"])

    def test_calibration_from_given_states(self):
        states, wrong = self.dir / "h0.npy", self.dir / "wrong.npy"
        states.write_bytes(npy((1, 3, 7), [0.97] * 21))
        wrong.write_bytes(npy((1, 3, 6), [0.97] * 18))
        call = ("gru", "calibrate", self.net, "--data", self.x, "-o", self.ranges)
        plain, given = self.json(*call), self.json(*call, "--h0", states)
        self.assertLess(plain["cells"][0]["output.h"][1], 0.97)
        self.assertNotEqual(plain["cells"], given["cells"])
        self.assertEqual(plain["left_out"], [])
        self.refused(*call, "--h0", wrong)

    def test_the_whole_way(self):
        report = self.json("gru", "calibrate", self.net, "--data", self.x, "--method", "ema", "-o", self.ranges)
        self.assertEqual((report["steps"], report["layers"], report["method"]), (36, 1, "ema"))
        report = self.quantize("--preset", "accurate")
        self.assertKeys(report, "source target preset config parameters bytes float_bytes ratio cells")
        self.assertEqual(report["cells"][0]["scales"]["gate.update_output"], {"shift": 15, "zero_point": 0})
        run = self.json("gru", "run", self.model, "--input", self.x, "-o", self.y, "--trace", "--final", self.dir / "f.npy")
        self.assertEqual(run["shape"], [12, 3, 7])
        exact = self.dir / "float.npy"
        self.lowbit("gru", "run", self.model, "--input", self.x, "-o", exact, "--float", "--net", self.net)
        a, b = floats(self.y), floats(exact)
        self.assertLess(max(abs(p - q) for p, q in zip(a, b)), 0.05)
        self.assertNotEqual(a, b)
        self.assertEqual(floats(self.dir / "f.npy"), a[-21:])
        self.assertIn(b"'shape': (1, 3, 7, )", (self.dir / "f.npy").read_bytes())
        self.assertIn(b"'shape': (1, 36, 28, )", (self.dir / "y.trace.npy").read_bytes())
        self.assertEqual(len(floats(self.dir / "y.trace.npy")), 12 * 3 * 4 * 7)
        verified = self.json("gru", "verify", self.model, "--input", self.x, "--net", self.net)
        self.assertTrue(verified["ok"])
        self.assertIn("stream", [t["name"] for t in verified["targets"]])
        self.assertGreater(min(t["sqnr_db"] for t in verified["tensors"]), 20)
        self.assertEqual(len(verified["sqnr_by_step"]), 12)
        self.assertEqual({len(t["by_step"]) for t in verified["tensors"]}, {12})

    def test_every_instruction_set_gives_the_same_file(self):
        self.quantize()
        seen = set()
        for isa in ("scalar", "avx2", "avx512", "amx"):
            done = subprocess.run([cli.BINARY, "gru", "run", self.model, "--input", self.x, "-o", self.y, "--isa", isa],
                                  capture_output=True, env=cli.environment())
            if done.returncode == 0:
                seen.add(self.y.read_bytes())
        self.assertEqual(len(seen), 1)

    def test_files_that_do_not_fit(self):
        self.quantize()
        for verb, *args in (("calibrate", self.net, "--data", self.x), ("quantize", self.net, "--ranges", self.ranges),
                            ("search", self.net, "--ranges", self.ranges, "--input", self.x, "--floor", 20),
                            ("encodings", self.model), ("run", self.model, "--input", self.x)):
            with self.subTest(verb):
                self.unwritten(self.y, "gru", verb, *args, "-o", self.y)

    def test_formats_from_a_file(self):
        bits = self.dir / "bits.json"
        bits.write_text(json.dumps({"preset": "w8a16", "weight.W": {"bits": 4}, "weight.R": {"bits": 4}, "rounding": "feedback"}))
        report = self.quantize("--bits", bits, "--data", self.x)
        self.assertEqual(report["config"]["weight.W"]["bits"], 4)
        self.assertIn("--data", self.refused("gru", "quantize", self.net, "--ranges", self.ranges, "-o", self.model,
                                             "--bits", bits))

    def test_weights_with_zero_points(self):
        bits = self.dir / "bits.json"
        asymmetric = {"bits": 8, "unsigned": True, "symmetric": False}
        bits.write_text(json.dumps({"weight.W": asymmetric, "weight.R": asymmetric, "granularity": "gate"}))
        self.quantize("--bits", bits)
        verified = self.json("gru", "verify", self.model, "--input", self.x, "--net", self.net)
        self.assertTrue(verified["ok"])

    def test_a_search_gives_formats_that_keep_the_floor(self):
        self.quantize()
        found = self.dir / "found.json"
        report = self.json("gru", "search", self.net, "--ranges", self.ranges, "--input", self.x, "--floor", "25", "-o", found)
        self.assertGreaterEqual(report["sqnr_db"], 25)
        quantized = self.quantize("--bits", found)
        self.assertEqual(quantized["bytes"], report["bytes"])
        self.refused("gru", "search", self.net, "--ranges", self.ranges, "--input", self.x, "--floor", "149", "-o", found)

    def test_encodings_go_out_and_come_in(self):
        self.quantize()
        encodings, again, z = self.dir / "net.encodings", self.dir / "again.lbgru", self.dir / "z.npy"
        self.lowbit("gru", "encodings", self.model, "-o", encodings, "--quiet")
        self.assertEqual(json.loads(encodings.read_text())["version"], "1.0.0")
        self.lowbit("gru", "quantize", self.net, "--encodings", encodings, "-o", again, "--quiet")
        self.lowbit("gru", "run", self.model, "--input", self.x, "-o", self.y, "--quiet")
        self.lowbit("gru", "run", again, "--input", self.x, "-o", z, "--quiet")
        self.assertEqual(self.y.read_bytes(), z.read_bytes())

    def test_the_c_abi_gives_the_same_numbers(self):
        library = cli.shared_library()
        self.quantize()
        self.lowbit("gru", "run", self.model, "--input", self.x, "-o", self.y, "--quiet")
        wanted, x = floats(self.y), floats(self.x)
        lib = ctypes.CDLL(str(library))

        class Args(ctypes.Structure):
            _fields_ = [("struct_size", ctypes.c_size_t), ("steps", ctypes.c_int64), ("batch", ctypes.c_int64),
                        ("batch_first", ctypes.c_int32), ("x", ctypes.c_void_p), ("h0", ctypes.c_void_p), ("lengths", ctypes.c_void_p),
                        ("y", ctypes.c_void_p), ("final_state", ctypes.c_void_p)]

        gru = ctypes.c_void_p()
        self.assertEqual(lib.lb_gru_open(str(self.model).encode(), None, ctypes.byref(gru)), 0)
        inputs, outputs = (ctypes.c_float * len(x))(*x), (ctypes.c_float * len(wanted))()
        args = Args(ctypes.sizeof(Args), 12, 3, 0, ctypes.addressof(inputs), None, None, ctypes.addressof(outputs), None)
        self.assertEqual(lib.lb_gru_run(gru, ctypes.byref(args)), 0)
        self.assertEqual(tuple(outputs), wanted)
        for name, size in (("input", 5), ("output", 7), ("state_size", 7)):
            self.assertEqual(getattr(lib, "lb_gru_" + name)(gru), size)
        lib.lb_gru_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        step = (ctypes.c_float * 21)()
        for t in range(12):
            self.assertEqual(lib.lb_gru_step(gru, ctypes.addressof(inputs) + 4 * 15 * t, 3, ctypes.addressof(step)), 0)
            self.assertEqual(tuple(step), wanted[21 * t:21 * (t + 1)])
        lib.lb_gru_reset(gru)
        self.assertEqual(lib.lb_gru_step(gru, ctypes.addressof(inputs), 3, ctypes.addressof(step)), 0)
        self.assertEqual(tuple(step), wanted[:21])
        args.struct_size = 8
        self.assertEqual(lib.lb_gru_run(gru, ctypes.byref(args)), 1)
        lib.lb_gru_close(gru)
        self.assertNotEqual(lib.lb_gru_open(b"/nonexistent", None, ctypes.byref(gru)), 0)

    def test_the_c_abi_names_impossible_sizes(self):
        program = pathlib.Path(cli.BINARY).parent / "lowbit_capi_test"
        if not program.exists():
            self.skipTest(f"no {program}")
        self.quantize()
        done = subprocess.run([program, "gru", self.model], capture_output=True, env=cli.environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_bad_input_is_named(self):
        self.quantize()
        wrong = self.dir / "wrong.npy"
        wrong.write_bytes(npy((4, 9), [0.0] * 36))
        self.assertIn("5", self.refused("gru", "run", self.model, "--input", wrong, "-o", self.y))
        wrong.write_bytes(npy((2, 5), [float("nan")] * 10))
        self.assertIn("NaN", self.refused("gru", "calibrate", self.net, "--data", wrong, "-o", self.ranges))
        cut = self.dir / "cut.lbgru"
        cut.write_bytes(self.model.read_bytes()[:-3])
        self.refused("gru", "run", cut, "--input", self.x, "-o", self.y)
        bits = self.dir / "bits.json"
        bits.write_text('{"output.h": {"bits": 17}}')
        self.assertIn("output.h", self.refused("gru", "quantize", self.net, "--ranges", self.ranges, "-o", self.model,
                                               "--bits", bits))
        self.refused("gru", "quantize", self.dir / "absent.onnx", "--ranges", self.ranges, "-o", self.model)
        self.refused("gru", "calibrate", self.net, "--data", self.x, "-o", self.ranges, "--method", "guess", code=2)
