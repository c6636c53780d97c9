#!/usr/bin/env python3
"""Installs a build into a fresh prefix, builds the consumer project and README's C and C++ programs against it, and
runs them; then README's Python."""
import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/e2e"))
import cli  # noqa: E402


def readme_block(language: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (SOURCE / "README.md").read_text(), re.S | re.M)
    assert len(blocks) == 1, f"README.md: got {len(blocks)} blocks of {language}, wanted one"
    return blocks[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--consumer", type=Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--flags", default="")
    options = parser.parse_args()
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    prefix, build, readme = work / "prefix", work / "build", work / "readme"
    readme.mkdir(parents=True)
    for language, name in (("cpp", "readme.cc"), ("c", "readme.c")):
        (readme / name).write_text(readme_block(language))
    env = dict(os.environ, CXXFLAGS=options.flags, CFLAGS=options.flags, LD_LIBRARY_PATH=str(prefix / "lib"), PYTHONPATH=str(SOURCE / "python"),
               LOWBIT_LIBRARY=str(prefix / "lib" / "liblowbit.so.0"))
    commands = [
        ["cmake", "--install", options.build.resolve(), "--prefix", prefix],
        ["cmake", "-S", options.consumer.resolve(), "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={options.compiler}",
         f"-DREADME_DIR={readme}"],
        ["cmake", "--build", build],
        [sys.executable, SOURCE / "scripts" / "make_test_model.py", work / "model"],
        [prefix / "bin" / "lowbit", "quantize", work / "model", work / "smol-int4", "--format", "int4", "--quiet"],
        [build / "consumer"], [build / "readme_cpp"], [build / "readme_c"],
    ]
    if shutil.which("pkg-config"):
        env["PKG_CONFIG_PATH"] = str(prefix / "lib" / "pkgconfig")
        commands += [["sh", "-c", f"${{CC:-cc}} {options.flags} -o readme_pc readme/readme.c $(pkg-config --cflags --libs lowbit)"], [work / "readme_pc"]]
    if all(importlib.util.find_spec(package) for package in ("numpy", "xxhash")):
        commands.append([sys.executable, "-c", readme_block("python")])
    for command in commands:
        added = cli.sanitized_environment(prefix / "lib" / "liblowbit.so.0") if command[0] == sys.executable else {}
        done = subprocess.run([str(word) for word in command], env={**env, **added}, cwd=work, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            print(" ".join(map(str, command)), done.stdout, done.stderr, sep="\n")
            return 1
        if command[0] in (build / "readme_c", work / "readme_pc"):
            assert done.stdout == "5\n", done.stdout
        if command[0] == build / "consumer":
            print(done.stdout, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
