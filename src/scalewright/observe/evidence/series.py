"""Views of the steps of evidence: steady steps of each rank, the step time of the job, settings as numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Spot, StepFact

NUM_WARMUP_STEPS = 3
"""Steps left out at the start: compilation, first collectives, allocators that grow."""
IS_PROFILED = "is_profiled"
LEAST_STEPS = 8
"""Fewer steady steps say little about times."""
KNOWN_RANK = 0
"""Where a log names no rank."""


@dataclass(frozen=True)
class StepSeries:
    """Steps of a run by rank. A step that was repeated after a restart counts once, as it was last."""

    by_rank: Mapping[int, Sequence[StepFact]]

    @property
    def ranks(self) -> list[int]:
        return sorted(self.by_rank)

    @cached_property
    def numbers(self) -> list[int]:
        return sorted({one.step for steps in self.by_rank.values() for one in steps})

    @cached_property
    def steady(self) -> Mapping[int, Sequence[StepFact]]:
        """Without the first steps and without those that a profiler made slower."""
        first = self.numbers[NUM_WARMUP_STEPS] if len(self.numbers) > 2 * NUM_WARMUP_STEPS else -math.inf
        kept = {
            rank: [one for one in steps if one.step >= first and IS_PROFILED not in one.values]
            for rank, steps in self.by_rank.items()
        }
        return {rank: steps for rank, steps in kept.items() if steps}

    @cached_property
    def job_steps(self) -> list[StepFact]:
        """Of each steady step, the slowest rank's: the others wait for it. Steps without a time are left out."""
        slowest: dict[int, StepFact] = {}
        for steps in self.steady.values():
            for one in steps:
                if one.time_s is None:
                    continue
                other = slowest.get(one.step)
                if other is None or (other.time_s or 0.0) < one.time_s:
                    slowest[one.step] = one
        return [slowest[step] for step in sorted(slowest)]

    @cached_property
    def times_s(self) -> list[float]:
        return [one.time_s for one in self.job_steps if one.time_s is not None]

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.times_s) if self.times_s else None

    @property
    def is_enough(self) -> bool:
        return len(self.times_s) >= LEAST_STEPS

    def part_of_slowest_s(self, part: str) -> dict[int, float]:
        """By steady step: the longest time of a part over the ranks."""
        longest: dict[int, float] = {}
        for steps in self.steady.values():
            for one in steps:
                if part in one.parts_s:
                    longest[one.step] = max(longest.get(one.step, 0.0), one.parts_s[part])
        return longest

    def spots(self, steps: Iterable[StepFact], *, most: int = 3) -> tuple[Spot, ...]:
        return tuple(one.spot for one in list(steps)[:most])


def step_series(evidence: Evidence) -> StepSeries:
    """The steps of the dialect that reported most of them: two programs may report the same steps."""
    by_dialect: dict[str, list[StepFact]] = {}
    for one in evidence.steps:
        by_dialect.setdefault(one.dialect, []).append(one)
    if not by_dialect:
        return StepSeries({})
    chosen = max(by_dialect.values(), key=len)
    by_rank: dict[int, dict[int, StepFact]] = {}
    for one in chosen:
        rank = KNOWN_RANK if one.rank is None else one.rank
        by_rank.setdefault(rank, {})[one.step] = one
    return StepSeries({rank: [steps[step] for step in sorted(steps)] for rank, steps in by_rank.items()})


def setting(evidence: Evidence, name: str) -> str | None:
    entry = evidence.settings.get(name)
    return None if entry is None else entry[0]


def setting_number(evidence: Evidence, name: str) -> float | None:
    """A setting as a number; None where it is missing or none."""
    words = setting(evidence, name)
    if words is None:
        return None
    try:
        value = float(words.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def setting_spots(evidence: Evidence, *names: str) -> tuple[Spot, ...]:
    """Where settings stand, each place once."""
    spots = [evidence.settings[name][1] for name in names if name in evidence.settings]
    return tuple({(spot.file, spot.line): spot for spot in spots}.values())


def num_ranks(evidence: Evidence) -> int:
    """Ranks of the job: as configured, else those that reported."""
    configured = setting_number(evidence, "num_ranks")
    if configured:
        return int(configured)
    return max(len({one.rank for one in evidence.steps}), 1)


def ranks_in_words(evidence: Evidence, series: StepSeries) -> str:
    """Ranks that reported: `2 ranks`, or `1 of 2 ranks` where the job has more."""
    reported, configured = len(series.ranks), num_ranks(evidence)
    if reported < configured:
        return f"{reported:,} of {configured:,} ranks"
    return f"{reported:,} rank{'' if reported == 1 else 's'}"


def elapsed_s(evidence: Evidence, series: StepSeries) -> float | None:
    """Time from the end of one steady step to the end of the next, summed: with all that happens between steps.

    None where the reports have no time of day.
    """
    del evidence
    if not series.ranks:
        return None
    ends = {one.step: one.at_s for one in series.steady.get(series.ranks[0], ()) if one.at_s is not None}
    spans = [ends[step] - ends[step - 1] for step in ends if step - 1 in ends]
    return sum(spans) if len(spans) >= LEAST_STEPS else None
