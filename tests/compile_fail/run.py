#!/usr/bin/env python3
"""Compiles each case of bad_formats.cc: case 0 must pass, every other must fail with a static assertion."""
import subprocess
import sys
from pathlib import Path

CASES = 5


def main(compiler: str, root: Path) -> int:
    bad = []
    for case in range(CASES + 1):
        command = [compiler, "-std=c++20", "-fsyntax-only", f"-DCASE={case}", f"-I{root}/include", f"-I{root}/src",
                   str(root / "tests/compile_fail/bad_formats.cc")]
        done = subprocess.run(command, capture_output=True, text=True)
        right = done.returncode == 0 if case == 0 else done.returncode != 0 and "static assertion failed" in done.stderr
        print(f"case {case}: {'as it must be' if right else 'WRONG'}")
        if not right:
            bad.append(case)
            print(done.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
