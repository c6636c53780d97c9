#!/usr/bin/env python3
"""Writes the tables of docs/adr/README.md: decisions from their pages (title and status), trials from the headings of
docs/lab."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = re.compile(r"# (\d{4}): (.+)\n\nStatus: (.+)\.\n")


def capital(title: str) -> str:
    return title[0].upper() + title[1:]


def main() -> int:
    index, decisions = ROOT / "docs/adr/README.md", []
    for path in sorted(index.parent.glob("[0-9]*.md")):
        parts = PAGE.match(path.read_text())
        if not parts:
            print(f"{path.relative_to(ROOT)}: wanted '# NUMBER: title', an empty line, 'Status: accepted.'", file=sys.stderr)
            return 1
        decisions.append(f"| [{parts[1]}]({path.name}) | {capital(parts[2])} | {parts[3]} |")
    found = [(number, title, path.stem) for path in (ROOT / "docs/lab").glob("*.md") for number, title in re.findall(r"^### (\d{4}): (.+)$", path.read_text(), re.M)]
    trials = [f"| {number} | {capital(title)} | [{page}](../lab/{page}.md) |" for number, title, page in sorted(found)]
    text = index.read_text()
    for head, rows in (("| # | decision | status |\n|---|---|---|\n", decisions), ("| # | title | page |\n|---|---|---|\n", trials)):
        start = text.index(head) + len(head)
        end = re.compile(r"(?:\|.*\n)*").match(text, start).end()
        text = text[:start] + "\n".join(rows) + "\n" + text[end:]
    index.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
