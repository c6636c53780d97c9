#!/usr/bin/env python3
"""clang-tidy over the library and the tools. A file whose preprocessed text passed before is not looked at again."""
import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "build/release/compile_commands.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lowbit-tidy"


def wanted(path: Path) -> bool:
    relative = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return relative.parts[0] in ("src", "tools") and not path.stem.endswith("_test")


def key_of(entry: dict) -> str:
    words = [w for w in shlex.split(entry["command"]) if "ccache" not in w]
    words[words.index("-o") + 1] = "-"
    words[words.index("-c")] = "-E"
    text = subprocess.run(words, cwd=entry["directory"], capture_output=True, check=True).stdout
    text = text.replace(str(ROOT).encode(), b".")  # one clone's stamps serve another
    return hashlib.sha256(text + (ROOT / ".clang-tidy").read_bytes()).hexdigest()


def check(entry: dict) -> tuple[str, str]:
    stamp = CACHE / key_of(entry)
    if stamp.exists():
        return entry["file"], ""
    done = subprocess.run(["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                           "--extra-arg=-fconstexpr-steps=100000000", "-p", str(DATABASE.parent), entry["file"]], capture_output=True, text=True)
    if done.returncode == 0:
        stamp.touch()
        return entry["file"], ""
    return entry["file"], done.stdout + done.stderr


def main() -> int:
    if not DATABASE.exists():
        configured = subprocess.run(["cmake", "--preset", "release"], cwd=ROOT, capture_output=True, text=True)
        if configured.returncode != 0:
            print(configured.stdout + configured.stderr, file=sys.stderr)
            return 1
    CACHE.mkdir(parents=True, exist_ok=True)
    entries = [e for e in json.loads(DATABASE.read_text()) if wanted(Path(e["file"]))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, entries))
    bad = [(name, text) for name, text in results if text]
    for _, text in bad:
        print(text, file=sys.stderr)
    print(f"clang-tidy: {len(results)} files, {len(bad)} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
