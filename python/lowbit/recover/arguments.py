"""Values of options that `lowbit.recover` and `lowbit.sample` share. Nothing here needs torch."""

from __future__ import annotations

import argparse
import re
import sys

# what a sampled sequence begins with
KINDS = ("text", "begin", "chat", "opening", "any", "rewritten", "word", "question")
MIX = "text=1,begin=1,chat=2,opening=3,any=1"


def size(text: str) -> int:
    """20M, 4000, 64K."""
    factor = {"K": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:].upper(), 1)
    try:
        value = int(float(text[:-1] if factor > 1 else text) * factor)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"'{text}': wanted a count such as 20M or 65536")
    return value


def methods(text: str) -> tuple:
    known = ("blocks", "full", "lora", "scales")
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(known) or len(set(chosen)) != len(chosen):
        raise argparse.ArgumentTypeError(f"'{text}': wanted {', '.join(known)}, or several in turn between commas")
    return chosen


def pattern(text: str) -> str:
    """A regular expression that layers are chosen by."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}': {error}: wanted a regular expression, such as self_attn")
    return text


def span(text: str, least: float = 1e-3, most: float = 100) -> tuple:
    """1, or 0.6,1: lowest and highest."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = ()
    if not 1 <= len(values) <= 2 or not least <= values[0] <= values[-1] <= most:
        raise argparse.ArgumentTypeError(f"'{text}': wanted a number from {least:g} to {most:g}, or the lowest and the highest such as 0.6,1")
    return values[0], values[-1]


def part(text: str) -> tuple:
    return span(text, 0, 1)


def shares(text: str) -> dict:
    """text=1,chat=2: kinds of sampled sequences and their shares."""
    try:
        chosen = {kind: float(share) for kind, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        chosen = {}
    if not chosen or not set(chosen) <= set(KINDS) or not all(0 <= share < 1e6 for share in chosen.values()) or not any(chosen.values()):
        raise argparse.ArgumentTypeError(f"'{text}': wanted shares of {', '.join(KINDS)}, such as text=1,chat=2")
    return chosen


class OldName(argparse.Action):
    """An option by a name it once had: it works, and `renamed` of the options says which name it has now."""

    def __init__(self, option_strings, dest, now="", **rest):
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **rest)
        self.now = now

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, values)
        namespace.renamed = [*getattr(namespace, "renamed", []), f"{option_string} is now {self.now}"]


def old_name(p, name: str, now: str, **rest) -> None:
    p.add_argument(name, dest=now.lstrip("-").replace("-", "_"), action=OldName, now=now, **rest)


def say_renamed(options) -> None:
    """Names the new names, once, and takes the list away."""
    for text in options.__dict__.pop("renamed", []):
        if not options.quiet:
            print(f"note: {text}", file=sys.stderr)


class HelpAll(argparse.Action):
    """Help with the options that few need; `everything()` makes the parser that shows them."""

    def __init__(self, option_strings, dest, everything=None, **rest):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help="this text, and the options that few need", **rest)
        self.everything = everything

    def __call__(self, parser, namespace, values, option_string=None):
        self.everything().print_help()
        parser.exit()


def add_sampling(p, shown: bool = True) -> None:
    """Options that `lowbit.recover` and `lowbit.sample` share."""
    def add(*names, help, **rest):
        p.add_argument(*names, help=help if shown else argparse.SUPPRESS, **rest)

    add("--sample-temperature", type=span, default="1", metavar="LOW,HIGH",
                   help="one, or each sampled sequence has one drawn evenly from there [1]")
    add("--sample-min-p", type=part, default="0,0.06", metavar="LOW,HIGH",
                   help="never a token less likely than this part of the likeliest one; one, or drawn for each sequence like the temperature [0,0.06]")
    add("--sample-mix", type=shares, default=MIX, metavar="KIND=SHARE,...",
                   help="what sampled sequences begin with: a few tokens of the text, the token that begins a document or chat, the model's chat "
                   f"template up to a user's first word, an opening, any token; rewritten: all of it text, but for every second span; word: passages about one word each; "
                   f"question: questions and answers [{MIX}]")
    add("--sample-openings", metavar="FILE", help="openings, one to a line, \\n for a line break, '> ' before what a user of a chat says "
                   "[openings.txt of this package]")
    add("--sample-words", metavar="FILE", help="words for the kind `word`, one to a line [words of the model's vocabulary]")
