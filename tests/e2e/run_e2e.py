#!/usr/bin/env python3
"""Runs one module of these tests: run_e2e.py MODULE --binary build/release/bin/lowbit --work build/release/e2e [TEST
...]

With LOWBIT_TEST_REPORTS set, also leaves MODULE.xml there, in the form GoogleTest and JUnit use.
"""
import argparse
import importlib
import os
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import cli


class CountingResult(unittest.TextTestResult):
    """Remembers what passed, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)


def write_report(result, module, folder):
    suite = ElementTree.Element("testsuite", name=module)

    def add(test, tag=None, text=""):
        *_, group, name = test.id().split(".")
        case = ElementTree.SubElement(suite, "testcase", classname=f"{module}.{group}", name=name)
        if tag:
            ElementTree.SubElement(case, tag, message=text)

    for test in result.passed:
        add(test)
    for test, reason in result.skipped:
        add(test, "skipped", reason)
    for test, trace in result.failures + result.errors:
        add(test, "failure", trace)
    ElementTree.ElementTree(suite).write(Path(folder) / f"e2e_{module}.xml")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("tests", nargs="*", help="Class or Class.test")
    parser.add_argument("--binary", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    options = parser.parse_args()
    cli.BINARY, cli.WORK = options.binary.resolve(), options.work.resolve()
    cli.start_sanitized()
    module = importlib.import_module(options.module)
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(options.tests, module) if options.tests else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=2, resultclass=CountingResult).run(suite)
    for test, reason in result.skipped:
        print(f"skipped {test.id()}: {reason}")
    if os.environ.get("LOWBIT_TEST_REPORTS"):
        write_report(result, options.module, os.environ["LOWBIT_TEST_REPORTS"])
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
