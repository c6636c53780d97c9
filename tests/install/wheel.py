#!/usr/bin/env python3
"""Builds the wheel as `pip install .` does, installs it into a folder of its own and runs README's Python and the
command from there.

    python wheel.py WORK C++-COMPILER C-COMPILER
Exit code 77: a package is missing.
"""
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from run import SOURCE, readme_block

PACKAGES = {"numpy": "numpy", "xxhash": "xxhash", "pip": "pip", "scikit_build_core": "scikit-build-core"}


def main() -> int:
    missing = [package for module, package in PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        print(f"no package {missing[0]}: pip install {' '.join(missing)}")
        return 77
    work = Path(sys.argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # Compilers by name, warnings as errors and one root: what was compiled for the presets is taken from ccache.
    env = dict(os.environ, CXX=sys.argv[2], CC=sys.argv[3], CCACHE_BASEDIR=str(SOURCE), CCACHE_NOHASHDIR="1",
               PIP_DISABLE_PIP_VERSION_CHECK="1", CMAKE_BUILD_PARALLEL_LEVEL="2")
    for name in ("LOWBIT_LIBRARY", "LD_LIBRARY_PATH", "PYTHONPATH"):
        env.pop(name, None)

    def run(*command: object, **more: str) -> str:
        done = subprocess.run([str(word) for word in command], env={**env, **more}, cwd=work, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            sys.exit("\n".join([" ".join(map(str, command)), done.stdout, done.stderr]))
        return done.stdout

    pip = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", SOURCE, "--no-build-isolation", "--no-deps", "--no-index", "-w", work, "--config-settings=cmake.define.LOWBIT_WERROR=ON",
        "--config-settings=build-dir=build/wheel-test")
    (wheel,) = work.glob("lowbit-*-py3-none-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    wanted = ["lowbit/liblowbit.so", "lowbit/py.typed", "lowbit/runtime.py", "lowbit/recover/openings.txt"]
    assert all(name in names for name in wanted), names
    assert not any(name.endswith((".a", ".h", ".cmake")) for name in names), names
    site = work / "site"
    run(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel)
    command = site / "bin" / "lowbit"
    version = run(command, "--version").split()[-1]
    run(sys.executable, SOURCE / "scripts" / "make_test_model.py", work / "model")
    run(command, "quantize", work / "model", work / "smol-int4", "--format", "int4", "--quiet")
    program = readme_block("python") + "\nfrom lowbit.runtime import library\nprint(library()._name, library().lb_version().decode(), lowbit.__version__)"
    last = run(sys.executable, "-c", program, PYTHONPATH=str(site)).splitlines()[-1]
    assert last.split() == [str(site / "lowbit" / "liblowbit.so"), version, version], last
    return 0


if __name__ == "__main__":
    sys.exit(main())
