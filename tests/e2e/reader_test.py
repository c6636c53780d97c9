"""The NumPy reader in examples/ and lowbit decode the same weights from the same files."""
import importlib.util
import subprocess
import sys
import unittest

from cli import FORMATS, SOURCE, CliTest, make_model

READER = SOURCE / "examples" / "read_checkpoint.py"
MISSING = [m for m in ("numpy", "safetensors") if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
@unittest.skipUnless(READER.exists(), "examples/read_checkpoint.py is not there")
class Reader(CliTest):
    def test_errors_agree(self):
        """What the reader decodes is as far from the source as `quantize` says."""
        import numpy as np
        from safetensors.numpy import load_file
        spec = importlib.util.spec_from_file_location("read_checkpoint", READER)
        reader = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reader)
        source = load_file(f"{self.hf}/model.safetensors")
        for name in FORMATS:
            with self.subTest(name):
                out = self.dir / name
                report = self.json("quantize", self.hf, out, "--format", name)
                decoded = reader.read_checkpoint(out)
                for layer in report["layers"]:
                    weight = source.get(layer["name"], source.get(layer["name"] + ".weight"))
                    got = decoded.get(layer["name"], decoded.get(layer["name"] + ".weight"))
                    error = float(np.sum((weight - got) ** 2, dtype=np.float64) / np.sum(weight ** 2, dtype=np.float64))
                    self.assertAlmostEqual(error, layer["rel_error"], delta=1e-6 + 1e-4 * error, msg=layer["name"])


if __name__ == "__main__":
    unittest.main()
