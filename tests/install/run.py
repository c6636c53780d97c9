#!/usr/bin/env python3
"""Installs a build into a fresh prefix, builds the consumer project against it, and runs it."""
import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--consumer", type=Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--flags", default="")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    prefix, build = options.work / "prefix", options.work / "build"
    env = dict(os.environ, CXXFLAGS=options.flags)
    for command in (
        ["cmake", "--install", str(options.build), "--prefix", str(prefix)],
        ["cmake", "-S", str(options.consumer), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={options.compiler}"],
        ["cmake", "--build", str(build)],
        [str(build / "consumer")],
    ):
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            print(" ".join(command), done.stdout, done.stderr, sep="\n")
            return 1
    print(done.stdout, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
