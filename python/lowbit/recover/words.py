"""Passages about single words: what the teacher knows, a word of its vocabulary after the other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ..errors import CorruptFile
from ..small_files import read_text

FORMS = Path(__file__).with_name("words.txt")
WORD = "WORD"  # stands in a form for the word; "> " before a form: said by the user of a chat
PASSAGE = 160  # tokens of a passage at most
MIN_P = (0.05, 0.3)  # drawn evenly for each passage: what the teacher is sure of
USUAL = 0.6  # of PASSAGE, how long a passage is: a guess for the first pass


def vocabulary_of(tokenizer: dict) -> dict:
    """{token: id} of a tokenizer.json; nothing where it has another form."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary if isinstance(vocabulary, dict) else {}


def vocabulary_words(tokenizer: dict) -> list[str]:
    """Words of a tokenizer.json: tokens that begin with a space and go on with four Latin letters or more, one for
    "The" and "the"."""
    words = {token[1:] for token in vocabulary_of(tokenizer) if re.fullmatch("[Ġ▁][A-Za-z]{4,}", token)}
    return sorted(word for word in words if word == word.lower() or word.lower() not in words)


def special_tokens(tokenizer: dict) -> set[int]:
    return {token["id"] for token in tokenizer.get("added_tokens") or [] if token.get("special")}


def read_words(file) -> list[str]:
    try:
        words = read_text(file).split("\n")
    except UnicodeDecodeError:
        raise CorruptFile(file, "bytes that are not UTF-8", "words, one to a line")
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise CorruptFile(file, "no line", "words, one to a line")
    return words


class Words:
    """Beginnings of passages. forms: (said by a user, text with WORD in it); chat: what stands before and after a
    user's words, as token ids; `ids`: texts -> token ids of each; `ends`: special tokens, at which a passage ends;
    `end`: the one that stands behind a passage that was cut."""

    def __init__(self, words, forms, chat, prefix, ids, ends, end: int):
        self.words, self.forms, self.chat, self.prefix, self.ids, self.ends, self.end = words, forms, chat, list(prefix), ids, set(ends) | {end}, end
        self.left = []

    def draw(self, rng, count: int) -> list[list[int]]:
        """Each word once before any comes again, in a form drawn for it."""
        while len(self.left) < count:
            self.left += rng.permutation(self.words).tolist()
        words, self.left = self.left[:count], self.left[count:]
        chosen = [self.forms[i] for i in rng.integers(len(self.forms), size=count)]
        lines = [form.replace(WORD, word.capitalize() if form.startswith(WORD) and word.islower() else word)
                 for word, (_, form) in zip(words, chosen)]
        return [self.chat[0] + ids + self.chat[1] if said else self.prefix + ids for ids, (said, _) in zip(self.ids(lines), chosen)]

    def cut(self, tokens: list[int], begun: int, first: bool) -> list[int]:
        """A passage up to the first special token after its `begun` tokens; in a sequence that has begun already,
        without what a chat begins with before its first turn (a system prompt)."""
        last = next((i for i in range(begun, len(tokens)) if tokens[i] in self.ends), None)
        body = tokens + [self.end] if last is None else tokens[:last + 1]
        opening = self.chat[0]
        if not first and opening and body[:len(opening)] == opening:
            body = body[len(opening) - 1 - opening[::-1].index(opening[0]):]
        return body


def continued(begun: list[list[int]], length: int, write) -> list[list[int]]:
    """Beginnings and what is written behind each of them, `length` tokens in all. write: as for pack()."""
    ids, given = np.zeros((len(begun), length), np.int64), np.zeros((len(begun), length), bool)
    for row, beginning in enumerate(begun):
        ids[row, :len(beginning)], given[row, :len(beginning)] = beginning, True
    return write(ids, given, MIN_P).tolist()


def pack(words: Words, count: int, sequence_length: int, rng, write) -> np.ndarray:
    """int32 [count, sequence_length]: passages one behind the other. write(begins [B, T], given [B, T], min_p) gives
    tokens [B, T]."""
    length, sequences, current, written, passages = min(PASSAGE, sequence_length), [], [], 0, 0
    while len(sequences) < count:
        usual = written / passages if passages else USUAL * length
        begun = [ids[:length - 1] for ids in words.draw(rng, max(1, int((count - len(sequences)) * sequence_length / usual)))]
        for row, beginning in zip(continued(begun, length, write), begun):
            passage = words.cut(row, len(beginning), not current)
            written, passages = written + len(passage), passages + 1
            current += passage
            if len(current) >= sequence_length:
                sequences.append(current[:sequence_length])
                current = []
    return np.array(sequences[:count], np.int32)
