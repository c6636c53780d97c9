#!/usr/bin/env python3
"""Looks at a build's programs, library and objects for what hardening promises: check_hardening.py BUILD

Programs are position independent; nothing is writable that the linker has resolved (full RELRO, no lazy binding); no
stack or code is both writable and executable; buffers are guarded (stack protector, FORTIFY); every object of ours has
CET's landing pads where its compiler has them. Exit 77 when the build was made without (LOWBIT_HARDENING=OFF, or
sanitizers).
"""
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path


def readelf(options: str, *files: Path) -> str:
    return subprocess.run(["readelf", options, "-W", *map(str, files)], capture_output=True, check=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def problems_of(linked: Path, is_program: bool, flags: set[str]) -> list[str]:
    header, segments, dynamic, symbols = (readelf(option, linked) for option in ("-h", "-l", "-d", "--dyn-syms"))
    wanted = {
        "position independent": "DYN" in header and (not is_program or "INTERP" in segments),
        "no lazy binding (-z now)": bool(re.search(r"\((FLAGS|FLAGS_1)\).*\bNOW\b|BIND_NOW", dynamic)),
        "RELRO": "GNU_RELRO" in segments,
        "no executable stack": bool(re.search(r"GNU_STACK.*\bRW\s", segments)),
        "no segment both writable and executable": not re.search(r"LOAD.*\bRWE\b", segments),
        "no text relocations": "TEXTREL" not in dynamic,
        "no search path": "RPATH" not in dynamic,
    }
    if "-fstack-protector-strong" in flags:
        wanted["stack protector"] = "__stack_chk_fail" in symbols
    if "-D_FORTIFY_SOURCE=2" in flags:
        wanted["FORTIFY"] = bool(re.search(r"__\w+_chk\b(?<!__stack_chk)", symbols))
    return [f"{linked.name}: not {name}" for name, held in wanted.items() if not held]


def objects_without_landing_pads(build: Path, commands: list[dict]) -> list[str]:
    objects = []
    for entry in commands:
        words = shlex.split(entry["command"])
        if "-fcf-protection=full" in words:
            objects.append(Path(entry["directory"], words[words.index("-o") + 1]))
    objects = [o for o in objects if o.exists()]
    if not objects:
        return []
    notes = re.split(r"^File: ", readelf("-n", *objects, objects[0]), flags=re.M)[1:]  # with two files each is named
    return [f"{note.splitlines()[0]}: no IBT and SHSTK" for note in notes if not re.search(r"IBT.*SHSTK", note)]


def main(build: Path) -> int:
    commands = json.loads((build / "compile_commands.json").read_text())
    flags = {word for entry in commands for word in shlex.split(entry["command"])}
    if "-fstack-protector-strong" not in flags or any(f.startswith("-fsanitize") for f in flags):
        print("this build is not hardened (LOWBIT_HARDENING=OFF, or sanitizers)")
        return 77
    linked = [(build / "bin/lowbit", True), *((path, False) for path in sorted((build / "lib").glob("liblowbit.so")))]
    problems = [p for path, is_program in linked for p in problems_of(path, is_program, flags)]
    problems += objects_without_landing_pads(build, commands)
    print("\n".join(problems) or f"hardening: {' and '.join(path.name for path, _ in linked)} have it")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
