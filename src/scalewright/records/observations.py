"""Rows of a table of observations: what is published, predicted and measured of each, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "cannot say"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEvidence:
    """What speaks for or against an observation."""

    text: str
    """The numbers, in one phrase."""
    verdict: Verdict
    value: float | None = None
    """What is compared with the published figure, in its unit; None where no one number is."""
    low: float | None = None
    high: float | None = None
    why: str = ""
    """Where it does not hold: one sentence that names the terms in which the publication and the prediction differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationRow:
    """One published observation beside our own evidence."""

    id: str
    stage: str
    text: str
    published: str
    """The printed figure with its unit; empty: none is printed."""
    source: str
    url: str = ""
    assumption: str = ""
    """What the prediction assumes, because the publication does not say it."""
    predicted: ObservedEvidence
    """For the system of the publication."""
    measured: ObservedEvidence | None = None
    """On a run of the stages here; None: `not_measured` says why."""
    not_measured: str = ""

    @property
    def verdict(self) -> Verdict:
        """What was measured counts first; where that says nothing, what is predicted."""
        if self.measured is not None and self.measured.verdict != "cannot say":
            return self.measured.verdict
        return self.predicted.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumRow:
    """The fewest devices of a stage in one mode, for each partition of a system."""

    stage: str
    model: str
    mode: str
    num_gpus: dict[str, int | None]
    """By partition; None: it fits nowhere."""
    published: int | None = None
    """What the publication prints, beside the mode that it is held against."""
    published_partition: str = ""
    """Partition that the publication names; empty: it names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationTable:
    """All observations of a publication, and the fewest devices of its stages."""

    id: str
    title: str
    system: str
    rows: tuple[ObservationRow, ...] = ()
    minima: tuple[MinimumRow, ...] = ()
    notes: tuple[str, ...] = ()
