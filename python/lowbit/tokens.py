"""Token ids of texts, by the runtime's own tokenizer: `lowbit tokenize` is called, so that they are the ones it would
see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np

from .errors import LowbitError, parts_of_line


def find_program(given=None) -> str:
    """The lowbit program: the given one, or the one beside this Python, where pip puts it, or in PATH."""
    beside = None if given else shutil.which("lowbit", path=os.path.dirname(sys.executable))
    found = beside or shutil.which(str(given or "lowbit"))
    if found is None:
        raise LowbitError("lowbit", f"no program '{given or 'lowbit'}'", "the command line, to tokenize texts",
                          "--lowbit build/release/bin/lowbit, or give token ids as .npy files")
    return found


class Tokenizer:
    """The tokenizer of a model directory or GGUF file. `binary`: the lowbit program; None: find_program's."""

    def __init__(self, model, binary=None):
        self.model, self.binary, self._prefix = str(model), find_program(binary), None

    def _ids(self, *arguments) -> list[int]:
        return self._run(*arguments)["ids"]

    def _run(self, *arguments, given: str | None = None) -> dict:
        done = subprocess.run([self.binary, "tokenize", self.model, *arguments, "--json"], capture_output=True,
                              input=None if given is None else given.encode())
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise LowbitError(*(parts_of_line(message) or ("lowbit tokenize", message, "token ids")))
        return json.loads(done.stdout)

    def file(self, path) -> np.ndarray:
        """int64 ids of a text, without any token around it."""
        return np.array(self._ids("--file", str(path), "--no-special"), np.int64)

    def ids(self, text: str) -> list[int]:
        """Of a short text, without any token around it; text such as <|im_end|> is that token."""
        return self._ids("-p", text, "--no-special", "--parse-special")

    def lines(self, lines, separator: int) -> list[list[int]]:
        """ids() of each of many texts, in one run: between them stands the special token `separator`."""
        joined = self.text([separator]).join(lines)
        ids = np.array(self._run("--file", "-", "--no-special", "--parse-special", given=joined)["ids"], np.int64)
        parts = [part[part != separator].tolist() for part in np.split(ids, np.flatnonzero(ids == separator))]
        return parts if len(parts) == len(lines) else [self.ids(line) for line in lines]

    def text(self, ids) -> str:
        """The text of token ids (some 10,000 at most)."""
        return self._run("--decode", ",".join(map(str, ids)))["text"]

    @property
    def prefix(self) -> list[int]:
        """Tokens that the runtime puts before every text: BOS, or none."""
        if self._prefix is None:
            with_text, alone = self._ids("-p", "a"), self._ids("-p", "a", "--no-special")
            starts = range(len(with_text) - len(alone) + 1)
            self._prefix = with_text[:next(i for i in starts if with_text[i:i + len(alone)] == alone)]
        return self._prefix
