#!/usr/bin/env python3
"""Runs the CTest suite of a build folder and prints one summary: what was skipped, by reason, then "N passed, N failed,
N skipped".

GoogleTest binaries are counted test by test from their XML, Python's unittest scripts from what they print, anything
else is one test.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def count_gtest(reports: Path) -> tuple[int, int, list]:
    passed, failed, skips = 0, 0, []
    for report in sorted(reports.glob("*.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif skip is not None or case.get("result") == "skipped":
                message = (skip.get("message") or skip.text or "") if skip is not None else ""
                skips.append((name, " ".join(re.sub(r"^\S+:\d+\s*", "", message.strip()).split())))
            else:
                passed += 1
    return passed, failed, skips


def count_scripts(junit: Path) -> tuple[int, int, list]:
    """Tests of CTest that are not GoogleTest binaries, and crashes of those that are."""
    passed, failed, skips = 0, 0, []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        name, output = case.get("name"), case.findtext("system-out") or ""
        crashed = case.find("failure") is not None or case.get("status") == "fail"
        ran = re.search(r"^Ran (\d+) tests? in", output, re.M)
        if "[==========]" in output:
            failed += crashed and "[  FAILED  ]" not in output  # a crash or a time-out leaves no report
        elif ran:
            # A test with a docstring has its name on the line before.
            reasons = re.findall(r"^(\S+) \(.*\)(?:\n.*)? \.\.\. skipped ['\"](.*)['\"]$", output, re.M)
            bad = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", output)))
            skips += [(f"{name}.{test}", reason) for test, reason in reasons]
            failed += max(bad, int(crashed))
            passed += int(ran.group(1)) - bad - len(reasons)
        elif case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None:
            skips.append((name, (output.strip().splitlines() or ["not run"])[-1]))
        else:
            failed += crashed
            passed += not crashed
    return passed, failed, skips


def skip_lines(skips: list, most_names: int = 4) -> list[str]:
    """One line for each reason, the most frequent first; paths and numbers that differ do not make another reason."""
    groups: dict[str, list] = {}
    for name, reason in skips:
        groups.setdefault(re.sub(r"\d+|/\S+", "*", reason or "no reason given"), []).append((name, reason or "no reason given"))
    lines = []
    for group in sorted(groups.values(), key=lambda group: (-len(group), group[0])):
        names = [name for name, _ in group]
        rest = f" and {len(names) - most_names} more" if len(names) > most_names else ""
        lines.append(f"skipped {len(group)}: {group[0][1]} ({', '.join(names[:most_names])}{rest})")
    return lines


def run(build: Path, suite: str) -> int:
    reports = build / "test-reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    junit = build / "ctest.xml"
    labels = {"unit": ["-LE", "integration"], "integration": ["-L", "integration"], "all": []}[suite]
    command = ["ctest", "--test-dir", str(build), "--parallel", "2", "--no-tests=error", "--output-on-failure", "--output-junit",
               str(junit.resolve()), "--test-output-size-passed", "1000000", "--test-output-size-failed", "1000000", *labels]
    ctest = subprocess.run(command, env=dict(os.environ, GTEST_OUTPUT=f"xml:{reports.resolve()}/"))
    counts = [count_gtest(reports), count_scripts(junit)]
    passed, failed, skips = (sum((c[i] for c in counts), start) for i, start in enumerate((0, 0, [])))
    print("\n".join(skip_lines(skips)) or "nothing skipped")
    if ctest.returncode != 0 and failed == 0:
        failed = 1
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--suite", choices=["unit", "integration", "all"], default="all")
    options = parser.parse_args()
    sys.exit(run(options.build, options.suite))
