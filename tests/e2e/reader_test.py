"""The NumPy reader in examples/ and lowbit decode the same weights from the same files."""
import importlib.util
import unittest

from cli import FORMATS, SOURCE, CliTest

READER = SOURCE / "examples" / "read_checkpoint.py"
MISSING = [m for m in ("numpy", "safetensors") if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
@unittest.skipUnless(READER.exists(), "examples/read_checkpoint.py is not there")
class Reader(CliTest):
    def test_errors_agree(self):
        """The reader's numbers are as far from the source as `quantize` says."""
        import numpy as np
        from safetensors.numpy import load_file
        spec = importlib.util.spec_from_file_location("read_checkpoint", READER)
        reader = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reader)
        source = load_file(f"{self.hf}/model.safetensors")
        plain = [f"--format {name}" for name in (*FORMATS, "ternary-packed", "int2odd", "int3odd", "codebook3")]
        scalings = [f"--format int4 {o}" for o in ("--scale pow2", "--scale double", "--scale bf16", "--scale f32", "--zero",
                                                   "--group tensor", "--group row", "--group 32")]
        for i, options in enumerate(plain + scalings):
            with self.subTest(options):
                out = self.dir / str(i)
                report = self.json("quantize", self.hf, out, *options.split())
                raw, layers = reader.open_checkpoint(str(out))
                self.assertGreaterEqual(len(report["layers"]), 14)
                for layer in report["layers"]:
                    name = layer["name"].removesuffix(".weight") + ".weight"
                    weight, got = source[name], reader.decode(raw, layers, name)
                    error = float(np.sum((weight - got) ** 2, dtype=np.float64) / np.sum(weight**2, dtype=np.float64))
                    self.assertAlmostEqual(error, layer["rel_error"], delta=1e-7 + 1e-4 * error, msg=layer["name"])


if __name__ == "__main__":
    unittest.main()
