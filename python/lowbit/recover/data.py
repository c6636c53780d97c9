"""Sequences of tokens to train on: cut from texts, and mixed with sampled ones."""

from __future__ import annotations

import numpy as np

from ..errors import CorruptFile, LowbitError, TextTooShort
from ..tokens import Tokenizer

HELD_OUT = 16  # sequences at the end of the text, for the report; at most an eighth of it
PROMPT = 8  # tokens of text that a sampled sequence continues
SPAN = (8, 48)  # tokens that two sequences swap at a time


def random(seed: int, *path: int) -> np.random.Generator:
    """A generator that depends on its place alone, so that a run can be continued anywhere."""
    return np.random.default_rng([seed, *path])


class Texts:
    """Token ids of all texts, sequence by sequence. `train(rng, count)` cuts sequences anywhere; `held` [sequences,
    length] are never cut from."""

    def __init__(self, files, tokenizer: Tokenizer, sequence_length: int, vocab: int):
        self.prefix = tokenizer.prefix if tokenizer else []
        self.sequence_length, body = sequence_length, sequence_length - len(self.prefix)
        self.parts, held = [], []
        for file in files:
            ids = _read(file, tokenizer)
            if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
                raise CorruptFile(file, f"token {ids.max()}", f"tokens below {vocab}")
            if len(ids) < body:
                raise TextTooShort(file, f"{len(ids)} tokens", f"at least one sequence of {sequence_length}", "a longer text, or --sequence-length")
            keep = min(HELD_OUT, len(ids) // body // 8)
            cut = len(ids) - keep * body
            held += [self._with_prefix(ids[cut + i * body:cut + (i + 1) * body]) for i in range(keep)]
            self.parts.append(ids[:cut])
        self.held = np.stack(held) if held else np.stack([self._with_prefix(self.parts[0][:body])])
        self.starts = np.array([len(p) - body + 1 for p in self.parts])

    def _with_prefix(self, ids):
        return np.concatenate([np.array(self.prefix, np.int64), ids])

    def train(self, rng, count: int) -> np.ndarray:
        """int64 [count, sequence_length]."""
        body = self.sequence_length - len(self.prefix)
        part = rng.choice(len(self.parts), count, p=self.starts / self.starts.sum())
        begin = (rng.random(count) * self.starts[part]).astype(np.int64)
        return np.stack([self._with_prefix(self.parts[p][b:b + body]) for p, b in zip(part, begin)])


def _read(file, tokenizer):
    if str(file).endswith(".npy"):
        ids = np.load(file)
        if ids.ndim != 1 or ids.dtype.kind not in "ui":
            raise CorruptFile(file, f"{ids.dtype} {list(ids.shape)}", "one row of integers: token ids")
        return ids.astype(np.int64)
    if tokenizer is None:
        raise LowbitError(file, "a text and no tokenizer", "token ids (.npy)")
    return tokenizer.file(file)


def swap_spans(a: np.ndarray, b: np.ndarray, rng) -> None:
    """Two sequences swap every second span, in place: passages go on with what has nothing to do with them."""
    at, own = 0, True
    while at < len(a):
        length = int(rng.integers(SPAN[0], SPAN[1] + 1))
        if not own:
            a[at:at + length], b[at:at + length] = b[at:at + length].copy(), a[at:at + length].copy()
        at, own = at + length, not own


def mixed_batch(texts: Texts, samples, share: float, seed: int, step: int, batch: int, swap: float = 0.0) -> np.ndarray:
    """int64 [batch, sequence_length]: `share` of it text, the rest sampled sequences; which ones depends on seed and
    step alone. `swap`: part of the sequences that swap spans in pairs, the sampled ones first."""
    rng = random(seed, 1, step)
    count = batch if samples is None or not len(samples) else int(np.floor(share * batch + rng.random()))
    parts = [texts.train(rng, count)] if count else []
    if count < batch:
        # Each pass over the samples takes every one of them once.
        per_pass = max(1, int(len(samples) // max(1.0, (1 - share) * batch)))
        order = random(seed, 2, step // per_pass).permutation(len(samples))
        at = int((step % per_pass) * (1 - share) * batch)
        parts.append(samples[order[(at + np.arange(batch - count)) % len(samples)]].astype(np.int64))
    sequences = np.concatenate(parts)
    for pair in range(min(batch // 2, round(swap * batch / 2))):
        swap_spans(sequences[-1 - 2 * pair], sequences[-2 - 2 * pair], rng)
    return sequences
