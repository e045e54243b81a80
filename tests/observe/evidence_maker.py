"""Evidence made by hand: steps of ranks whose numbers are easy to check."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime, Spot, StepFact
from scalewright.observe.findings.order import explain
from scalewright.observe.findings.rule import Explained, FindingContext

START_S = 1_800_000_000.0


def spot(line: int = 1) -> Spot:
    return Spot(file="log", line=line, text=f"line {line}")


def made(
    *, num_steps: int = 40, num_ranks: int = 2, step_s: Callable[[int], float] = lambda step: 1.0,
    parts: Callable[[int, int], Mapping[str, float]] = lambda step, rank: {},
    memory_bytes: Callable[[int], float] | None = None, values: Mapping[str, float] | None = None,
    settings: Mapping[str, object] | None = None, num_tokens: float | None = None,
    reward: Callable[[int], float] | None = None,
) -> Evidence:  # fmt: skip
    """Steps of every rank, one after the other without a pause."""
    evidence = Evidence()
    at_s = START_S
    for step in range(num_steps):
        at_s += step_s(step) + max(parts(step, rank).get("checkpoint", 0.0) for rank in range(num_ranks))
        for rank in range(num_ranks):
            evidence.steps.append(
                StepFact(
                    step=step, spot=spot(step + 1), dialect="scalewright", rank=rank, at_s=at_s, time_s=step_s(step),
                    parts_s=parts(step, rank), memory_bytes=None if memory_bytes is None else memory_bytes(step),
                    values=dict(values or {}), num_tokens=num_tokens, reward=None if reward is None else reward(step),
                )
            )  # fmt: skip
    evidence.settings |= {name: (str(value), spot()) for name, value in (settings or {}).items()}
    return evidence


def with_parts(evidence: Evidence, *rows: tuple[int, float, float]) -> Evidence:
    """Add a profiled step of one second: rank, exposed communication, data wait."""
    for rank, communication_s, data_s in rows:
        evidence.rank_times.append(
            RankTime(
                rank=rank, spot=spot(), step=1, step_s=1.0, compute_s=1.0 - communication_s - data_s,
                exposed_communication_s=communication_s, data_s=data_s,
            )
        )  # fmt: skip
    return evidence


def fired(evidence: Evidence) -> dict[str, Explained]:
    findings = explain(evidence, FindingContext())
    assert not [note for note in evidence.notes if "could not be checked" in note], evidence.notes
    for one in findings:
        assert one.seen.spots, one.rule.id
        assert one.seen.next_step
    return {one.rule.id: one for one in findings}


def loud(evidence: Evidence) -> list[str]:
    """Rules with a warning or an error, in order."""
    return [name for name, one in fired(evidence).items() if one.severity != "info"]
