#!/usr/bin/env python3
"""Every test that docs/hardening.md names is there."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def known_tests():
    names = set()
    for path in [*ROOT.glob("src/**/*_test.cc"), *ROOT.glob("tests/**/*_test.cc")]:
        names.update(f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M))
    for path in ROOT.glob("tests/e2e/*_test.py"):
        suite = ""
        for kind, name in re.findall(r"^(class| {4}def) (\w+)", path.read_text(), re.M):
            suite = name if kind == "class" else suite
            names.add(f"{suite}.{name}")
    return names


def main():
    text, known = (ROOT / "docs/hardening.md").read_text(), known_tests()
    named = re.findall(r"`([A-Z]\w+\.\w+)`", text)
    missing = [name for name in named if name not in known and not name.endswith(".md")]
    missing += [path for path in re.findall(r"`((?:src|scripts|tests)/[^` ]+)`", text) if not (ROOT / path).exists()]
    if missing or not named:
        sys.exit(f"docs/hardening.md names tests that are not there: {', '.join(missing) or 'none at all'}")
    print(f"{len(named)} tests of docs/hardening.md are there")


main()
