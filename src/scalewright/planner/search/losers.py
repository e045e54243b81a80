"""Why other layouts lost: the best of each rival family against the winner, term by term, or the rule it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalewright import units
from scalewright.planner.answer import Answer
from scalewright.planner.limits import differences
from scalewright.planner.search.constraints import reasons, span_problem
from scalewright.planner.search.search import SearchResult
from scalewright.planner.search.space import RECOMPUTE, ZERO, Space, divisors
from scalewright.workload.layout import Layout

NUM_TERMS = 3
SMALLEST_TERM_FRAC = 0.05
"""Terms below this part of the largest difference are not listed."""
SAME_FRAC = 1e-9
"""If no term differs by more, the rival is the same layout under another name, such as ZeRO-2 behind a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A family of layouts that has one knob at another value, and its best member."""

    knob: str
    value: str
    prediction: Answer | None
    """None where no member fits or divides."""
    loss_s: float
    """Step time above the winner's; infinite where there is no member."""
    terms: tuple[tuple[str, float], ...]
    """Differences in seconds, the largest first."""
    reason: str

    @property
    def sentence(self) -> str:
        if self.prediction is None:
            return self.reason
        verb = "loses" if self.loss_s >= 0 else "gains"
        loss = units.format(abs(self.loss_s), units.SECONDS)
        return f"{self.knob}={self.value} {verb} {loss}: {units.format_differences(dict(self.terms), units.SECONDS)}"

    def as_dict(self) -> dict[str, Any]:
        body = {"knob": self.knob, "value": self.value, "sentence": self.sentence}
        if self.prediction is None:
            return body
        return body | {
            "layout": self.prediction.question.layout.brief,
            "loss_s": self.loss_s,
            "terms_s": dict(self.terms),
        }


def losers(result: SearchResult, winner: Answer) -> list[Loser]:
    """Rival families, the closest first, then those that are impossible."""
    rivals = [_loser(result, winner, knob, value) for knob, value in _rivals(result.space, winner)]
    least = SAME_FRAC * winner.time_s
    different = [r for r in rivals if r.prediction is None or any(abs(delta) > least for _, delta in r.terms)]
    return sorted(different, key=lambda loser: (loser.loss_s, loser.knob, loser.value))


def _rivals(space: Space, winner: Answer) -> Iterator[tuple[str, str]]:
    """Other values of each searched knob: all of a short list, the neighbours in a long one."""
    layout, per_node = winner.question.layout, space.machine.gpus_per_node
    moe = space.shape.moe
    every = divisors(space.num_gpus)
    options: dict[str, tuple[int, ...]] = {
        "tp": tuple(n for n in every if n <= 2 * per_node),
        "pp": every,
        "cp": every,
        "ep": divisors(moe.num_experts) if moe is not None else (1,),
        "vpp": space.interleavings(),
        "mbs": divisors(space.global_batch),
        "zero": ZERO,
        "sp": (0, 1),
    }
    for knob, values in options.items():
        if knob not in space.fixed.values:
            chosen = int(getattr(layout, knob))
            near = values if knob in ("tp", "zero", "sp") else _neighbours(values, chosen)
            yield from ((knob, str(v)) for v in near if v != chosen)
    if "recompute" not in space.fixed.values:
        yield from (("recompute", r) for r in RECOMPUTE if r != layout.recompute)
    yield from (("precision", r.name) for r in space.recipes if r.name != winner.question.recipe.name)


def _neighbours(values: tuple[int, ...], chosen: int) -> tuple[int, ...]:
    at = values.index(chosen) if chosen in values else 0
    return values[max(at - 1, 0) : at + 2]


def _loser(result: SearchResult, winner: Answer, knob: str, value: str) -> Loser:
    among = result.having(knob, value if knob in ("recompute", "precision") else int(value))
    fastest = result.fastest(1, among)
    if fastest:
        other = result.prediction(fastest[0])
        deltas = differences(winner.time, other.time)
        shown = [d for d in deltas[:NUM_TERMS] if abs(d[1]) >= SMALLEST_TERM_FRAC * abs(deltas[0][1])]
        loss_s = other.time_s - winner.time_s
        return Loser(knob=knob, value=value, prediction=other, loss_s=loss_s, terms=tuple(shown), reason="")
    reason = _why_none(result, winner.question.layout, knob, value, among)
    return Loser(knob=knob, value=value, prediction=None, loss_s=np.inf, terms=(), reason=reason)


def _why_none(result: SearchResult, layout: Layout, knob: str, value: str, among: np.typing.NDArray[np.bool_]) -> str:
    """Why no layout of a family is possible: the least memory any needs, or the rule that the nearest breaks."""
    smallest = result.smallest(among)
    if smallest is not None:
        return f"{knob}={value} {result.problem(smallest)} at least"
    space = result.space
    spans = span_problem(int(value), space.machine, num_gpus=space.num_gpus) if knob == "tp" else None
    if spans is not None:
        return f"{spans}, so its sums cross the network; --fix tp={value} includes it"
    problems = reasons(_with(layout, knob, int(value), space.num_gpus), space)
    if problems:
        return problems[0].partition(";")[0]
    if knob == "zero" and int(layout.dp) * int(layout.cp) == 1:
        return f"zero={value} shares state among replicas, and there is one"
    return f"{knob}={value} does not divide"


def _with(layout: Layout, knob: str, value: int, num_gpus: int) -> Layout:
    """The layout with one knob changed and dp filled up to the number of devices."""
    changed = replace(layout, **{knob: bool(value) if knob == "sp" else value})  # type: ignore[arg-type]
    if knob in ("tp", "pp", "cp"):
        per_copy = int(changed.tp) * int(changed.pp) * int(changed.cp)
        changed = replace(changed, dp=max(num_gpus // per_copy, 1))
    return changed
