"""Documents as they are read, in batches, and what was wrong with the ones that could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scalewright.data.text.reading.aside import AsideFile

BATCH_CHARACTERS = 250_000
"""So that the arrays of a batch stay in a core's cache."""
BATCH_DOCUMENTS = 4096
MOST_NAMED = 5
"""Problems of a kind that are named with their place in one task."""


class TextDocument(NamedTuple):
    """One text, its address (empty if it has none) and where it was read."""

    text: str
    url: str
    origin: str


@dataclass(slots=True)
class ReadTally:
    """What a reader counted beside the documents it gave."""

    problems: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    read_bytes: int = 0
    """Of decompressed input."""
    path: str = ""
    """The file that is being read."""
    aside: AsideFile | None = None
    """Where content that is no document is kept; None: it is only counted."""

    def report(
        self, problem: str, place: str, *, byte: int | None = None, content: bytes = b"", num_bytes: int | None = None,
        error: str = "",
    ) -> None:  # fmt: skip
        """Count a problem, name the first ones, and keep what was lost aside."""
        self.problems[problem] += 1
        named = self.places.setdefault(problem, [])
        if len(named) < MOST_NAMED:
            named.append(place)
        if self.aside is not None and problem not in NOT_ASIDE:
            self.aside.add_unread(
                problem, file=self.path, origin=place, byte=byte, content=content,
                num_bytes=len(content) if num_bytes is None else num_bytes, error=error,
            )  # fmt: skip


TOO_LONG = "longer than max_document"
NOT_JSON = "not JSON"
NO_TEXT = "no text under the key"
REPAIRED = "broken UTF-8, repaired"
CUT_OFF = "file damaged or cut off"
OTHER_MEMBER = "not a text"
KEPT_PROBLEMS = (REPAIRED,)
"""Problems after which the document is still there."""
NOT_ASIDE = (*KEPT_PROBLEMS, OTHER_MEMBER)


def decoded(content: bytes, tally: ReadTally, place: str) -> str:
    """The text of some bytes. Broken UTF-8 becomes replacement characters, and is counted."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        tally.report(REPAIRED, place)
        return content.decode("utf-8", errors="replace")


def batches(documents: Iterable[TextDocument]) -> Iterator[list[TextDocument]]:
    """Lists of documents of a few hundred thousand characters."""
    batch: list[TextDocument] = []
    characters = 0
    for one in documents:
        batch.append(one)
        characters += len(one.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
