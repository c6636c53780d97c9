"""lowbit gru: from arrays of another project to an integer network, and what bad input gets."""
import json
import math
import random
import struct
import subprocess

import cli
from cli import CliTest


def npy(shape, values):
    """A float32 .npy file as bytes."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({''.join(f'{n}, ' for n in shape)}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values)


def floats(path):
    data = path.read_bytes()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    return struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])


class Gru(CliTest):
    def setUp(self):
        super().setUp()
        rng = random.Random(1)
        c, h = 5, 7
        draw = lambda *shape: npy(shape, [rng.gauss(0, 0.4) for _ in range(math.prod(shape))])
        self.net = self.dir / "net"
        self.net.mkdir()
        for name, shape in {"w_ih": (3 * h, c), "w_hh": (3 * h, h), "b_ih": (3 * h,), "b_hh": (3 * h,)}.items():
            (self.net / f"{name}.npy").write_bytes(draw(*shape))
        self.x = self.dir / "x.npy"
        self.x.write_bytes(npy((12, 3, c), [rng.gauss(0, 1) for _ in range(12 * 3 * c)]))
        self.ranges, self.model, self.y = self.dir / "r.json", self.dir / "net.lbgru", self.dir / "y.npy"

    def quantize(self, *options):
        self.lowbit("gru", "calibrate", self.net, "--data", self.x, "-o", self.ranges, "--quiet")
        return self.json("gru", "quantize", self.net, "--ranges", self.ranges, "-o", self.model, *options)

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
        self.assertEqual(len(floats(self.dir / "y.trace.npy")), 12 * 3 * 4 * 7)
        verified = self.json("gru", "verify", self.model, "--input", self.x, "--net", self.net)
        self.assertTrue(verified["ok"])
        self.assertIn("stream", [t["name"] for t in verified["targets"]])
        self.assertGreater(min(t["sqnr_db"] for t in verified["tensors"]), 20)
        self.assertEqual(len(verified["sqnr_by_step"]), 12)

    def test_every_instruction_set_gives_the_same_file(self):
        self.quantize()
        seen = set()
        for isa in ("scalar", "avx2", "avx512"):
            done = subprocess.run([cli.BINARY, "gru", "run", self.model, "--input", self.x, "-o", self.y, "--isa", isa],
                                  capture_output=True, env=cli.environment())
            if done.returncode == 0:
                seen.add(self.y.read_bytes())
        self.assertEqual(len(seen), 1)

    def test_formats_from_a_file(self):
        bits = self.dir / "bits.json"
        bits.write_text(json.dumps({"preset": "w8a16", "weight.W": {"bits": 4}, "weight.R": {"bits": 4}, "rounding": "feedback"}))
        report = self.quantize("--bits", bits, "--data", self.x)
        self.assertEqual(report["config"]["weight.W"]["bits"], 4)
        self.assertIn("--data", self.refused("gru", "quantize", self.net, "--ranges", self.ranges, "-o", self.model,
                                             "--bits", bits))

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
