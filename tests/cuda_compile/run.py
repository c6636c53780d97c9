#!/usr/bin/env python3
"""Compiles format_on_device.cu for every architecture lowbit supports. Without nvcc it says so and counts as
skipped."""
import shutil
import subprocess
import sys
from pathlib import Path

ARCHITECTURES = ["80", "86", "89", "90a"]
SKIPPED = 77


def main(root: Path, out: Path) -> int:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("no nvcc: the CUDA toolkit is not installed")
        return SKIPPED
    out.mkdir(parents=True, exist_ok=True)
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    command = [nvcc, "-std=c++20", "-O2", "--threads=2", *targets, f"-I{root}/include", f"-I{root}/src", "-c",
               str(root / "tests/cuda_compile/format_on_device.cu"), "-o", str(out / "format_on_device.o")]
    ccache = shutil.which("ccache")
    done = subprocess.run(([ccache] if ccache else []) + command, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
