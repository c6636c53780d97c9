#!/usr/bin/env python3
"""Random expressions of chat templates: lowbit against PyPI jinja2, set up as transformers does. Ends with 1 where both
write a text and the texts differ; what only one of them refuses is counted.

needs: pip install jinja2 (exit code 77 without)    usage: compare_templates.py build/release/bin/lowbit_text_dump [SEED
                                                    [COUNT]]

Left out, because lowbit has no such thing and templates no use for it: what Python prints of views, generators and
their places, and Markup (a text of its own, which `escape` and `safe` give).
"""
import json
import random
import subprocess
import sys
import warnings

try:
    from make_template_cases import environment
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TEXTS = ["''", "'a'", "' '", "'abc'", "' a b  '", "'a,b,,c'", "'  1  2   3  '", "'aAa'", "'x\\ny\\r\\nz\\n'", "'Straße'", "'東京 12'", "'a-b_c'",
         "'+7'", "'-12'", "'007'", "'\\u2028x\\x1cy'", "'É'", "','", "'12.5'", "'True'", "'{}-{}'", "'<a href=\"x\">&'", "'one two (three)'"]
INTEGERS = "0 1 2 3 -1 -2 5 7 100".split()
FLOATS = "1.5 0.0 -2.25 3.0 0.1".split()
LISTS = ["[]", "[1]", "[1, 2, 3]", "['b', 'a', 'C']", "[3, 1, 2]", "[[1, 2], [3]]", "(1, 2)", "()", "('a',)", "['a', 1, none]", "[true, false]",
         "[{'n': 1, 'g': 'x'}, {'n': 2, 'g': 'y'}, {'n': 0, 'g': 'x'}]", "range(4)|list"]
DICTS = ["{}", "{'a': 1}", "{'b': 2, 'a': 1}", "{'x': {'y': 1}}", "{'k': none, 'j': [1]}"]
OTHERS = "none true false nothing nothing.x".split()
# t: a text, i: an integer, b: true or false, v: any value; ?: or nothing, like all behind it
METHODS = {"upper": "", "lower": "", "strip": "t?", "lstrip": "t?", "rstrip": "t?", "split": "t? i?", "rsplit": "t i?", "splitlines": "b?",
           "startswith": "t", "endswith": "t", "replace": "t t i?", "title": "", "capitalize": "", "count": "t", "find": "t", "rfind": "t",
           "index": "t", "partition": "t", "rpartition": "t", "removeprefix": "t", "removesuffix": "t", "zfill": "i", "swapcase": "",
           "casefold": "", "isdigit": "", "isalpha": "", "isalnum": "", "isupper": "", "islower": "", "isspace": "", "isdecimal": "",
           "isnumeric": "", "format": "v v"}
FILTERS = {"length": "", "upper": "", "lower": "", "trim": "t?", "first": "", "last": "", "join": "t?", "list": "", "int": "i?", "float": "",
           "string": "", "default": "v b?", "sort": "b?", "abs": "", "title": "", "capitalize": "", "replace": "t t", "min": "", "max": "",
           "sum": "", "tojson": "", "dictsort": "", "indent": "i? b?", "count": ""}
GENERATORS = ["reverse", "unique", "items", "map('upper')", "map('string')", "map(attribute='n')", "select('odd')", "select", "reject('none')",
              "selectattr('n')", "rejectattr('n', 'equalto', 1)"]
TESTS = "defined none string number mapping sequence iterable odd even boolean integer float upper lower true false undefined".split()
OPERATORS = "+ - * / // % ~ == != < <= > >= in and or".split() + ["not in"]


class Expressions:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def atom(self):
        return self.random.choice(self.random.choice([TEXTS, TEXTS, TEXTS, INTEGERS, FLOATS, LISTS, LISTS, DICTS, OTHERS]))

    def arguments(self, kinds, depth):
        out = []
        for kind in kinds.split():
            if kind.endswith("?") and self.random.random() < 0.5:
                break
            out.append({"t": lambda: self.random.choice(TEXTS), "i": lambda: self.random.choice(INTEGERS),
                        "b": lambda: self.random.choice(["true", "false"]), "v": lambda: self.any(depth - 1)}[kind[0]]())
        return f"({', '.join(out)})"

    def any(self, depth):
        if depth <= 0:
            return self.atom()
        choose, inner = self.random.choice, lambda: f"({self.any(depth - 1)})"
        place = lambda: choose(["", *INTEGERS])  # noqa: E731
        forms = {
            "method": lambda: f"({choose(TEXTS)}).{(name := choose(list(METHODS)))}{self.arguments(METHODS[name], depth)}",
            "filter": lambda: f"{inner()}|{(name := choose(list(FILTERS)))}{self.arguments(FILTERS[name], depth)}",
            "generator": lambda: f"{inner()}|{choose(GENERATORS)}|list",
            "truth": lambda: f"1 if {inner()}|{choose(GENERATORS)} else 0",
            "dict": lambda: f"({choose(DICTS)}).{choose(['get(' + repr('a') + ')', 'keys()|list', 'values()|list', 'items()|list'])}",
            "test": lambda: f"{inner()} is {choose(['', 'not '])}{choose(TESTS)}",
            "operator": lambda: f"{inner()} {choose(OPERATORS)} {inner()}",
            "item": lambda: f"{inner()}[{choose(INTEGERS)}]",
            "slice": lambda: f"{inner()}[{place()}:{place()}:{choose(['', '1', '2', '-1'])}]",
            "condition": lambda: f"{inner()} if {inner()} else {inner()}",
            "not": lambda: f"not {inner()}",
        }
        return forms[choose(["method"] * 5 + ["filter"] * 5 + ["operator"] * 3 + list(forms))]()


def main():
    warnings.simplefilter("ignore")
    seed, count = (int(a) for a in (sys.argv[2:] + ["1", "20000"][len(sys.argv[2:]):]))
    env, expressions = environment(), Expressions(seed)
    wanted = {}
    for _ in range(count):
        template = "{{ " + expressions.any(expressions.random.choice([1, 2, 2, 3])) + " }}"
        try:
            wanted[template] = env.from_string(template).render()
        except Exception:  # of any kind: a template may not do that
            wanted[template] = None
    lines = subprocess.run([sys.argv[1], "render"], input="\n".join(map(json.dumps, wanted)), capture_output=True, text=True, check=True).stdout
    differ, refused, accepted = [], 0, 0
    for (template, want), answer in zip(wanted.items(), map(json.loads, lines.splitlines()), strict=True):
        got = answer.get("text")
        refused += got is None and want is not None
        accepted += got is not None and want is None
        if got is not None and want is not None and got != want:
            differ.append((template, want, got))
    for template, want, got in sorted(differ, key=lambda d: len(d[0]))[:40]:
        print(f"{template}\n  jinja2: {want!r}\n  lowbit: {got!r}")
    print(f"{len(wanted)} templates, {len(differ)} differ; lowbit alone refuses {refused}, jinja2 alone {accepted}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
