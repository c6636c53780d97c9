"""Questions that the teacher asks about a word each, with what it answers, and with what it answers to another of
them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import LowbitError
from .words import Words, continued

FORMS = Path(__file__).with_name("questions.txt")
BEFORE, BETWEEN = "Q:", "\nA:"
ASKING = 48  # tokens in which a question has to end
LENGTH = (4, 32)  # tokens of a question
ANSWER = (4, 16)  # tokens of an answer at most, drawn for each
USUAL = 40  # tokens that an asked word gives: a guess for the first pass
FEWEST = 16  # words asked for at a time
SPACES = "Ġ▁"  # how vocabularies write a space
BREAKS = ".:!\"“”`*#Ċ\n"  # a question begins behind the last of these


class Questions:
    """asked: what makes the teacher ask; vocabulary: {token: id} of a tokenizer.json; before, between: ids of BEFORE
    and BETWEEN."""

    def __init__(self, asked: Words, vocabulary: dict, before, between):
        self.asked, self.before, self.between = asked, asked.prefix + list(before), list(between)
        self.mark = vocabulary.get("?")
        self.ends = {i for token, i in vocabulary.items() if "?" in token}
        self.breaks = {i for token, i in vocabulary.items() if any(c in token for c in BREAKS)} | asked.ends
        lines = {i for token, i in vocabulary.items() if "Ċ" in token or "\n" in token}
        self.stops = lines | asked.ends
        spaced = {space + token: i for token, i in vocabulary.items() for space in SPACES}
        self.with_space = {spaced[token]: i for token, i in vocabulary.items() if token in spaced}

    def question(self, tokens: list[int], begun: int) -> list[int] | None:
        """The first question behind the `begun` tokens, without what stands before it in its line."""
        at = next((i for i in range(begun, len(tokens)) if tokens[i] in self.ends), None)
        if at is None:
            return None
        begin = next((i + 1 for i in range(at - 1, begun - 1, -1) if tokens[i] in self.breaks), begun)
        asked = tokens[begin:at] + [self.mark]
        return [self.with_space.get(asked[0], asked[0]), *asked[1:]] if LENGTH[0] <= len(asked) <= LENGTH[1] else None

    def answer(self, tokens: list[int], begun: int, most: int) -> list[int]:
        """The text behind `begun` tokens, to the end of its line."""
        end = next((i for i in range(begun, len(tokens)) if tokens[i] in self.stops), len(tokens))
        return tokens[begun:min(end, begun + most)]


def pack_questions(questions: Questions, count: int, sequence_length: int, rng, write) -> np.ndarray:
    """int32 [count, sequence_length]: questions one behind the other in random order, each with its own answer (where
    there is one) and with another's. write: as for words.pack. Errors: LowbitError where the teacher asks or answers
    nothing."""
    wanted, passages, length, asked = count * sequence_length, [], 0, 0
    while length < wanted:
        usual = max(1.0, length / asked) if asked else USUAL
        begun = questions.asked.draw(rng, int((wanted - length) / usual) + FEWEST)
        asked += len(begun)
        found = [questions.question(row, len(beginning)) for row, beginning in zip(continued(begun, max(map(len, begun)) + ASKING, write), begun)]
        heads = [questions.before + question + questions.between for question in found if question]
        rows = continued(heads, max(map(len, heads)) + ANSWER[1], write) if heads else []
        own = [questions.answer(row, len(head), int(rng.integers(ANSWER[0], ANSWER[1] + 1))) for row, head in zip(rows, heads)]
        answered = [i for i, answer in enumerate(own) if answer]
        if not answered:
            raise LowbitError("--sample-mix question", f"no question with an answer where {len(begun)} were asked for", "a model that asks and answers",
                              "other kinds of samples")
        pairs = [(i, i) for i in answered] + [(i, other) for i, other in enumerate(rng.choice(answered, len(heads)).tolist()) if other != i]
        passages += [heads[i] + own[other] + [questions.asked.end] for i, other in pairs]
        length = sum(map(len, passages))
    stream = np.concatenate([passages[i] for i in rng.permutation(len(passages))])
    return stream[:wanted].reshape(count, sequence_length).astype(np.int32)
