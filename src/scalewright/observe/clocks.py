"""Clocks of hosts compared by steps that all ranks end together, so that times of two hosts can be ordered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, Spot

LEAST_SHARED_STEPS = 3
"""Steps that two clocks must share before their offset is believed: one may have waited for a disk."""
TOLERANCE_S = 1.0
"""Offsets below are no finding: a step's line is written some time after the step."""
UNKNOWN_SLACK_S = 5.0
"""Times of two hosts whose clocks could not be compared are ordered only if they are further apart. Hosts of one
cluster keep time by NTP to well below a second; a log line may wait that long in a buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Offsets of clocks against one of them."""

    offsets_s: Mapping[str, float]
    """By clock (a host, or a file where no host is named): how far it is ahead; only those that were compared."""
    reference: str = ""
    host_of_rank: Mapping[int, str] = field(default_factory=dict)

    def clock_of(self, *, host: str, rank: int | None, spot: Spot) -> str:
        return host or (self.host_of_rank.get(rank, "") if rank is not None else "") or spot.file

    def at_s(self, happening: Happening) -> float | None:
        """When it happened by the reference's clock, as far as that is known."""
        if happening.at_s is None:
            return None
        clock = self.clock_of(host=happening.host, rank=happening.rank, spot=happening.spot)
        return happening.at_s - self.offsets_s.get(clock, 0.0)

    def slack_s(self, one: Happening, other: Happening) -> float:
        """How far apart two times must be before their order says something."""
        clocks = {self.clock_of(host=h.host, rank=h.rank, spot=h.spot) for h in (one, other)}
        if len(clocks) == 1:
            return 0.0
        return TOLERANCE_S if clocks <= set(self.offsets_s) else UNKNOWN_SLACK_S

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about clocks that disagree."""
        wrong = {clock: offset for clock, offset in self.offsets_s.items() if abs(offset) > TOLERANCE_S}
        return tuple(
            f"The clock of {clock} is {abs(offset):,.1f} s {'ahead of' if offset > 0 else 'behind'} that of "
            f"{self.reference}, by steps that both wrote: times are corrected."
            for clock, offset in sorted(wrong.items())
        )


def compare_clocks(evidence: Evidence) -> Clocks:
    """Offsets of all clocks that share steps with the one that has the most."""
    hosts = {one.rank: one.host for one in evidence.happenings if one.rank is not None and one.host}
    clocks = Clocks(offsets_s={}, host_of_rank=hosts)
    times: dict[str, dict[int, float]] = defaultdict(dict)
    for step in evidence.steps:
        if step.at_s is not None:
            clock = clocks.clock_of(host=step.host, rank=step.rank, spot=step.spot)
            times[clock].setdefault(step.step, step.at_s)
    if not times:
        return clocks
    reference = max(sorted(times), key=lambda name: len(times[name]))
    offsets = {reference: 0.0}
    for clock, ends in times.items():
        shared = [ends[step] - times[reference][step] for step in ends if step in times[reference]]
        if clock != reference and len(shared) >= LEAST_SHARED_STEPS:
            offsets[clock] = median(shared)
    return Clocks(offsets_s=offsets, reference=reference, host_of_rank=hosts)
