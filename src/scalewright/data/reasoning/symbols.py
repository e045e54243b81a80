"""The symbols of countdown: one token for each value, operator and mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAD, STOP, ANSWER, NEXT, EQUALS, TARGET, BEGIN = range(7)
MARKS = ("PAD", "EOS", "ANS", ";", "=", "->", ":")
VOCAB_MULTIPLE = 16
"""The vocabulary is a multiple of it, so that tensor parallelism divides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """Marks, then operators, then values."""

    operators: str
    values: int

    @property
    def first_value(self) -> int:
        return len(MARKS) + len(self.operators)

    @property
    def num_symbols(self) -> int:
        return self.first_value + self.values

    @property
    def vocab(self) -> int:
        """Size of the vocabulary; the last few tokens may stand for nothing."""
        return -(-self.num_symbols // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def operator(self, token: int) -> str:
        """The operator of a token; empty where it is none."""
        return self.operators[token - len(MARKS)] if len(MARKS) <= token < self.first_value else ""

    def value(self, token: int) -> int:
        """The value of a token; -1 where it is none."""
        return token - self.first_value if self.first_value <= token < self.num_symbols else -1

    def name(self, token: int) -> str:
        if 0 <= token < len(MARKS):
            return MARKS[token]
        value = self.value(token)
        return str(value) if value >= 0 else self.operator(token) or f"<{token}>"

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(self.name(token) for token in tokens)
