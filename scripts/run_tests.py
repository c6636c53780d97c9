#!/usr/bin/env python3
"""Runs the CTest suite of a build folder and prints one summary: each skip with its reason, then "N passed, N failed, N skipped".

GoogleTest binaries are counted test by test (from their XML), scripts by the lines of Python's unittest they print.
"""
import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def run(build: Path, suite: str) -> int:
    reports = build / "test-reports"
    reports.mkdir(exist_ok=True)
    for old in reports.glob("*.xml"):
        old.unlink()
    labels = {"unit": ["-LE", "integration"], "integration": ["-L", "integration"], "all": []}[suite]
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error", *labels]
    env = dict(os.environ, GTEST_OUTPUT=f"xml:{reports.resolve()}/", LOWBIT_TEST_REPORTS=str(reports.resolve()))
    ctest = subprocess.run(command, env=env)

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
    for name, reason in skips:
        print(f"skipped {name}: {reason or 'no reason given'}")
    if ctest.returncode != 0 and failed == 0:
        failed = 1  # a test that crashed or timed out leaves no report
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
    return 1 if failed or ctest.returncode != 0 else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--suite", choices=["unit", "integration", "all"], default="all")
    options = parser.parse_args()
    sys.exit(run(options.build, options.suite))
