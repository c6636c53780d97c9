"""Token ids of texts, by the runtime's own tokenizer: `lowbit tokenize` is called, so that they are the ones it would see."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np

from .errors import LowbitError


class Tokenizer:
    """The tokenizer of a model directory or GGUF file. `binary`: the lowbit program; None looks for it in PATH."""

    def __init__(self, model, binary=None):
        self.model, self.binary = str(model), shutil.which(str(binary or "lowbit"))
        if self.binary is None:
            raise LowbitError("lowbit", f"no program '{binary or 'lowbit'}'", "the command line, to tokenize texts",
                              "--lowbit build/release/bin/lowbit, or give token ids as .npy files")
        self._prefix = None

    def _ids(self, *arguments) -> list[int]:
        done = subprocess.run([self.binary, "tokenize", self.model, *arguments, "--json"], capture_output=True)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise LowbitError("lowbit tokenize", message, "token ids")
        return json.loads(done.stdout)["ids"]

    def file(self, path) -> np.ndarray:
        """int64 ids of a text, without any token around it."""
        return np.array(self._ids("--file", str(path), "--no-special"), np.int64)

    @property
    def prefix(self) -> list[int]:
        """What the runtime puts before every text: BOS, or nothing."""
        if self._prefix is None:
            with_text, alone = self._ids("-p", "a"), self._ids("-p", "a", "--no-special")
            starts = range(len(with_text) - len(alone) + 1)
            self._prefix = with_text[:next(i for i in starts if with_text[i:i + len(alone)] == alone)]
        return self._prefix
