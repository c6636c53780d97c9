"""The example reader against lowbit: every format, scale and zero kind, bit for bit, through PyPI safetensors.

    python check_read_checkpoint.py PATH_TO_lowbit_io_dump
"""

import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from safetensors import safe_open
except ImportError as missing:
    print(f"no package {missing.name}: pip install numpy safetensors")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
import read_checkpoint


def main():
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.argv[1], out], check=True)
        raw, layers = read_checkpoint.open_checkpoint(out + "/checkpoint")
        with safe_open(out + "/checkpoint/model.safetensors", framework="numpy") as f:
            assert set(f.keys()) == set(raw)
            assert all("xxh3." + name in f.metadata() for name in raw)
        bad = compared = 0
        with safe_open(out + "/expected.safetensors", framework="numpy") as expected:
            for name in expected.keys():
                got, want = read_checkpoint.decode(raw, layers, name), expected.get_tensor(name)
                compared += 1
                if got.dtype != np.float32 or not np.array_equal(got.view(np.uint32), want.view(np.uint32)):
                    bad += 1
                    print("differs:", name, layers.get(name), np.abs(got - want).max())
    print(f"{compared - bad} of {compared} weights equal bit for bit")
    return 1 if bad or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
