"""Finished answers of a generation benchmark, one JSON line each: `answers/rank-N.jsonl` in the run directory.

A line is appended when an answer is whole, so that a run that is stopped or fails keeps what it has; run again, it asks
only for the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.errors import DocumentError, EnvironmentFailedError
from scalewright.records.documents import check_schema, schema
from scalewright.records.events import json_lines
from scalewright.records.loader import restore

KIND = "answers"
DIGITS = 7
"""Decimals of a stored time: a tenth of a microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLine:
    """One answer, and when its tokens came. Times count from the start of its load in its attempt."""

    load: int
    """Which of the run's loads."""
    request: int
    index: int
    """Which answer to the request."""
    attempt: int
    """Which attempt of the run gave it."""
    num_prompt: int
    """Tokens of the prompt, as whoever answered counted them."""
    num_tokens: int
    reason: str
    """Why it ended: stop, length, context."""
    arrival_s: float
    """When the request was due."""
    sent_s: float
    """When it was sent; later than due where the benchmark itself was late, or kept to a number at once."""
    first_s: float
    """When the first token came."""
    gaps_s: tuple[float, ...] = ()
    """Between one token, or piece of several tokens, and the next."""
    tokens: tuple[int, ...] = ()
    """Ids of the tokens, where they are known."""

    @property
    def key(self) -> tuple[int, int, int]:
        return self.load, self.request, self.index

    @property
    def end_s(self) -> float:
        return self.first_s + sum(self.gaps_s)

    @property
    def ttft_s(self) -> float:
        """From the moment at which the request was due; in a closed load with a limit that is when it got a place."""
        return self.first_s - self.arrival_s

    @property
    def queued_ttft_s(self) -> float:
        """From the moment at which the request stood in the queue: waiting for a place counts in a closed load too."""
        return self.first_s if self.arrival_s == self.sent_s else self.ttft_s

    @property
    def token_gaps_s(self) -> tuple[float, ...]:
        """Times between tokens. Where a piece held several tokens, its time is shared among them."""
        if not self.gaps_s or self.num_tokens < 2:
            return ()
        share = len(self.gaps_s) / (self.num_tokens - 1)
        return self.gaps_s if share >= 1.0 else tuple(gap_s * share for gap_s in self.gaps_s)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "load": self.load, "request": self.request, "index": self.index, "attempt": self.attempt,
            "num_prompt": self.num_prompt, "num_tokens": self.num_tokens, "reason": self.reason,
            "arrival_s": round(self.arrival_s, DIGITS), "sent_s": round(self.sent_s, DIGITS),
            "first_s": round(self.first_s, DIGITS), "gaps_s": [round(gap_s, DIGITS) for gap_s in self.gaps_s],
        }  # fmt: skip
        return row | ({"tokens": list(self.tokens)} if self.tokens else {})


class AnswerWriter:
    """Appends answers to one file. A line that a kill tore is left behind, and the next one starts anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._failed(error) from error
        self._append({"schema": schema(KIND)}, start="\n")

    def write(self, answer: AnswerLine) -> None:
        self._append(answer.row())

    def _append(self, row: dict[str, Any], *, start: str = "") -> None:
        data = (start + json.dumps(row, separators=(",", ":")) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._handle, data) :]
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"{self._path}: answers cannot be written: {error.strerror}; free space, or choose another --run-dir"
        )

    def close(self) -> None:
        os.close(self._handle)


def read_answers(paths: Iterable[Path]) -> list[AnswerLine]:
    """Every whole answer of these files, each once: of one that was given twice, the first."""
    answers: dict[tuple[int, int, int], AnswerLine] = {}
    for path in paths:
        for answer in _answers(path):
            answers.setdefault(answer.key, answer)
    return [answers[key] for key in sorted(answers)]


def _answers(path: Path) -> Iterator[AnswerLine]:
    for row in json_lines(path):
        if "schema" in row:
            check_schema(row["schema"], KIND, where=str(path))
            continue
        try:
            row |= {key: tuple(row.get(key, ())) for key in ("gaps_s", "tokens")}
        except TypeError as error:
            raise DocumentError(f"{path}: an answer is not whole ({error}); choose another --run-dir") from error
        yield restore(row, AnswerLine, where=str(path))
