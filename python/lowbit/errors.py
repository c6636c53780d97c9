"""Errors with the parts that the command line prints: where, what was there, what was wanted, and what to do."""

from __future__ import annotations

import re


class LowbitError(Exception):
    """One line: `WHERE: got X, wanted Y. hint: Z`. Subclasses are the kinds a caller may want to tell apart."""

    def __init__(self, where: object, got: object, wanted: object, hint: str = "") -> None:
        super().__init__(f"{where}: got {got}, wanted {wanted}" + (f". hint: {hint}" if hint else ""))
        self.where, self.got, self.wanted, self.hint = str(where), str(got), str(wanted), hint


class CorruptFile(LowbitError):
    """A file that breaks its format."""


class Unsupported(LowbitError):
    """Something that exists but that this version does not know."""


class WrongTeacher(LowbitError):
    """The teacher is not the model that the checkpoint was made from."""


class TextTooShort(LowbitError):
    """A text with fewer tokens than one sequence."""


class Diverged(LowbitError):
    """Training stopped: the loss rose or is no number."""


def parts_of_line(line: str) -> tuple[str, ...] | None:
    """where, got, wanted and hint of an error line of the library or the command; None when it is none."""
    parts = re.fullmatch(r"(?:error: )?(.*?): got (.*?)(?:, wanted (.*?))?(?:\. hint: (.*))?", line, re.S)
    return parts.groups("") if parts else None
