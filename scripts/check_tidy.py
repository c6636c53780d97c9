#!/usr/bin/env python3
"""clang-tidy over the library and the tools. A file whose preprocessed text passed before is not looked at again.

Most of its time goes into the standard headers, so the files of a folder are looked at as one translation unit that
includes them all; files that cannot stand together (two of them use one name for different things) are split until they
can.
"""
import collections
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "build/tidy/compile_commands.json"  # with a line for each file
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lowbit-tidy"
MOST_TOGETHER = 14  # more would leave one core waiting for the last group of the other
OPTIONS = ["--quiet", f"--config-file={ROOT / '.clang-tidy'}", "--extra-arg=-Wno-unknown-warning-option",
           "--extra-arg=-fconstexpr-steps=100000000"]
GCC_ALONE = "-mmemset-strategy="


def wanted(path: Path) -> bool:
    relative = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return relative.parts[0] in ("src", "tools") and not path.stem.endswith("_test")


def compiler_line(entry: dict) -> list[str]:
    """The entry's compiler and flags, without the file and the output."""
    words = [w for w in shlex.split(entry["command"]) if "ccache" not in w and not w.startswith(GCC_ALONE)]
    for option in ("-o", "-c"):
        at = words.index(option)
        del words[at:at + 2]
    return words


def stamp_of(entry: dict) -> Path:
    command = [*compiler_line(entry), "-E", entry["file"]]
    text = subprocess.run(command, cwd=entry["directory"], capture_output=True, check=True).stdout
    text = text.replace(str(ROOT).encode(), b".")  # one clone's stamps serve another
    return CACHE / hashlib.sha256(text + (ROOT / ".clang-tidy").read_bytes()).hexdigest()


def groups_of(entries: list[dict]) -> list[list[dict]]:
    """Files of one folder, language and set of flags; the largest groups first."""
    alike = collections.defaultdict(list)
    for entry in entries:
        path = Path(entry["file"])
        alike[(path.parent, path.suffix, *compiler_line(entry))].append(entry)
    groups = []
    for entries_alike in alike.values():
        count = -(-len(entries_alike) // MOST_TOGETHER)
        groups += [entries_alike[i::count] for i in range(count)]
    return sorted(groups, key=len, reverse=True)


def check(group: list[dict]) -> list[str]:
    """Findings of clang-tidy in the files of a group."""
    flags = compiler_line(group[0])
    with tempfile.TemporaryDirectory() as folder:
        together = Path(group[0]["file"])
        if len(group) > 1:
            together = Path(folder) / ("all" + together.suffix)
            together.write_text("".join(f'#include "{entry["file"]}"  // NOLINT\n' for entry in group))
            flags.append("-Wno-shadow")  # a file's locals and another file's names
            parsed = subprocess.run([*flags, "-w", "-fsyntax-only", str(together)], cwd=group[0]["directory"], capture_output=True)
            if parsed.returncode != 0:
                half = len(group) // 2
                return check(group[:half]) + check(group[half:])
        done = subprocess.run(["clang-tidy", *OPTIONS, str(together), "--", *flags[1:]], cwd=group[0]["directory"],
                              capture_output=True, text=True)
    if done.returncode != 0:
        return [done.stdout + done.stderr]
    for entry in group:
        entry["stamp"].touch()
    return []


def main() -> int:
    if not DATABASE.exists():
        configured = subprocess.run(["cmake", "--preset", "release", "-B", "build/tidy", "-DLOWBIT_UNITY=OFF"], cwd=ROOT, capture_output=True, text=True)
        if configured.returncode != 0:
            print(configured.stdout + configured.stderr, file=sys.stderr)
            return 1
    CACHE.mkdir(parents=True, exist_ok=True)
    entries = {e["file"]: e for e in json.loads(DATABASE.read_text()) if wanted(Path(e["file"]))}.values()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for entry, stamp in zip(entries, pool.map(stamp_of, entries)):
            entry["stamp"] = stamp
        groups = groups_of([e for e in entries if not e["stamp"].exists()])
        findings = [text for texts in pool.map(check, groups) for text in texts]
    for text in findings:
        print(text, file=sys.stderr)
    print(f"clang-tidy: {len(entries)} files, {len(findings)} groups of them with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
