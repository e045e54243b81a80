"""Ranks beside each other: means per rank, who waits for whom, and the rank that sets the pace.

Every rank leaves a collective at the same moment, but each enters when it is ready. So the rank that spends least time
in a call came last, and what the others spent more was waiting for it. Only lengths are compared: clocks may disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from scalewright.observe.breakdown.distribution import TimeVariation, variation
from scalewright.observe.evidence.facts import RankTime

MUTUAL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank leaves before all have entered."""
PARTS = ("compute_s", "exposed_communication_s", "data_s", "idle_s", "memory_copy_s", "checkpoint_s", "validation_s")
"""Parts of a step, in the order in which they are shown; they add up."""
OWN_PARTS = ("compute_s", "data_s", "idle_s", "memory_copy_s", "checkpoint_s", "validation_s")
"""Parts that a rank causes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMean:
    """A rank's mean over its steps."""

    rank: int
    host: str
    num_steps: int
    step_s: float
    parts_s: dict[str, float]
    """By the names of PARTS."""
    optimizer_s: float
    overlapped_s: float
    waited_s: float | None
    """In a step, inside of collectives, for ranks that came later; None where no call can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalRank:
    """The rank that the others wait for."""

    rank: int
    waited_s: float
    """What another rank waits in a step, the median of them."""
    own_waited_s: float
    excess_part: str
    """The part of PARTS in which it differs most from the median of the others."""
    excess_s: float
    typical_s: float
    """The median of that part over the other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossRanks:
    ranks: tuple[RankMean, ...]
    critical: CriticalRank | None
    """None: with one rank, or where calls cannot be compared."""
    steps: TimeVariation | None
    compute: TimeVariation | None

    @property
    def step_s(self) -> float:
        return max(rank.step_s for rank in self.ranks)


def best_times(times: Iterable[RankTime]) -> list[RankTime]:
    """Of one kind: traces of devices, else our own measurements, else traces of hosts, which a profiler slows."""
    every = [time for time in times if time.step_s > 0.0]
    kinds = (
        [time for time in every if time.is_traced and time.on_device],
        [time for time in every if not time.is_traced],
    )
    return kinds[0] or kinds[1] or every


def across_ranks(times: Sequence[RankTime]) -> AcrossRanks | None:
    """None without times."""
    by_rank: dict[int, list[RankTime]] = {}
    for time in times:
        by_rank.setdefault(time.rank, []).append(time)
    if not by_rank:
        return None
    waits = waits_s(times)
    means = tuple(_mean(rank, own, waits.get(rank)) for rank, own in sorted(by_rank.items()))
    numbered = {(time.rank, place): time for own in by_rank.values() for place, time in _numbered(own)}
    return AcrossRanks(
        ranks=means, critical=_critical(means),
        steps=variation({key: time.step_s for key, time in numbered.items()}),
        compute=variation({key: time.compute_s for key, time in numbered.items()}),
    )  # fmt: skip


def _numbered(times: Sequence[RankTime]) -> list[tuple[int, RankTime]]:
    """With the step's number, or its place where a trace has none."""
    return [(place if time.step is None else time.step, time) for place, time in enumerate(times)]


def _mean(rank: int, times: Sequence[RankTime], waited_s: float | None) -> RankMean:
    return RankMean(
        rank=rank, host=times[0].host, num_steps=len(times), step_s=fmean(time.step_s for time in times),
        parts_s={name: fmean(getattr(time, name) for time in times) for name in PARTS},
        optimizer_s=fmean(time.optimizer_s for time in times),
        overlapped_s=fmean(time.overlapped_communication_s for time in times), waited_s=waited_s,
    )  # fmt: skip


def waits_s(times: Sequence[RankTime]) -> dict[int, float]:
    """Seconds of a step that each rank waited in exposed collectives for later ranks; ranks without such calls lack."""
    tables: dict[tuple[int, str, tuple[int, ...]], dict[int, RankTime]] = {}
    for time in times:
        for key in time.calls_s:
            name, _, group = key.partition("/")
            if time.step is not None and name in MUTUAL:
                tables.setdefault((time.step, key, tuple(time.group_ranks.get(group, ()))), {})[time.rank] = time
    totals: dict[int, float] = {}
    steps: dict[int, set[int]] = {}
    for (step, key, _), by_rank in tables.items():
        if len(by_rank) < 2 or len({len(time.calls_s[key]) for time in by_rank.values()}) != 1:
            continue  # a rank that made other calls cannot be compared with it
        calls = np.array([time.calls_s[key] for time in by_rank.values()])
        alone = np.array([time.exposed_calls_s.get(key, time.calls_s[key]) for time in by_rank.values()])
        waited = np.sum(np.minimum(calls - np.min(calls, axis=0), alone), axis=1)
        for rank, seconds in zip(by_rank, waited.tolist(), strict=True):
            totals[rank] = totals.get(rank, 0.0) + seconds
            steps.setdefault(rank, set()).add(step)
    return {rank: total / len(steps[rank]) for rank, total in totals.items()}


def _critical(means: Sequence[RankMean]) -> CriticalRank | None:
    known = [mean for mean in means if mean.waited_s is not None]
    if len(known) < 2:
        return None
    latest = min(known, key=lambda mean: mean.waited_s or 0.0)
    others = [mean for mean in known if mean is not latest]
    typical = {name: median(mean.parts_s[name] for mean in others) for name in OWN_PARTS}
    part = max(OWN_PARTS, key=lambda name: latest.parts_s[name] - typical[name])
    return CriticalRank(
        rank=latest.rank, waited_s=median(mean.waited_s or 0.0 for mean in others), own_waited_s=latest.waited_s or 0.0,
        excess_part=part, excess_s=latest.parts_s[part] - typical[part], typical_s=typical[part],
    )  # fmt: skip
