"""Whoever answers, as the benchmark sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from scalewright.records.answers import AnswerLine
from scalewright.run.signals import StopSignals
from scalewright.run.traffic.load import LoadResult, RequestLoad


def _nothing() -> None:
    """A server needs no end."""


class Answering(Protocol):
    """Whoever answers: our engine on this rank's group, or a server."""

    def measure(
        self, load: RequestLoad, *, attempt: int, record: Callable[[AnswerLine], None], stop: StopSignals,
        report: Callable[[], None],
    ) -> LoadResult: ...  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Whoever answers, and what the measurements say of it."""

    answering: Answering
    device: dict[str, Any]
    versions: dict[str, str]
    records: bool = True
    """Whether this rank writes answers: one rank of each copy does."""
    is_watched: bool = False
    """Whether it reports steps to the watchdog; a server has a limit of silence instead."""
    conditions: Callable[[], dict[str, Any]] = dict
    notes: Callable[[], list[str]] = list
    close: Callable[[], None] = _nothing
