"""Communication that training waits for."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime
from scalewright.observe.evidence.series import setting
from scalewright.observe.findings.host import busy_machine, core_wait_frac
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, seconds

BOUND_FRAC = 0.4
"""Share of a step in exposed communication from which it is a warning, where nothing is predicted."""
UNEXPECTED_FACTOR = 2.5
UNEXPECTED_FRAC = 0.4
"""Where a prediction says how long it should take: a warning from so many times that, and this share of the step."""
STARVED_FRAC = 0.6
"""Less may be threads of the library that get no core, where other work uses the machine."""
NOTED_FRAC = 0.15
"""Below it, hiding more communication gains little."""


@finding_rule(
    id="communication-bound",
    severity="warning",
    role="slowed",
    title="Training waits for communication",
    why="Exposed communication is time in which a device only waits for bytes. It grows with the number of devices and "
    "with slow links, and the devices do nothing meanwhile. Waiting for a slower rank is not counted here.",
    advice="Move fewer bytes over slow links: larger micro-batches or more gradient accumulation, 16-bit gradients, "
    "tensor parallelism inside a node only, a smaller data-parallel degree with a larger pipeline. Hide the rest "
    "behind computing: overlap of the gradient reduction, prefetch of parameters. Check the network path first.",
    source="Shoeybi et al. 2019 (arXiv:1909.08053), section 5; Korthikanti et al. 2022 (arXiv:2205.05198)",
    because_of=("tcp-fallback", "tensor-parallel-across-nodes", "straggler-rank", "busy-machine", "wrong-binding",
                "oversubscribed-threads", "throttled-clocks", "data-loader-bound"),
)  # fmt: skip
def communication_bound(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    shares = transfer_shares(evidence)
    if not shares:
        return
    share = statistics.median(share for share, _ in shares)
    if share < NOTED_FRAC:
        return
    worst = max(shares, key=lambda one: one[0])[1]
    step_s = statistics.median(one.step_s for _, one in shares)
    largest = _largest_collective(evidence.rank_times)
    of = f", most of it in {largest}" if largest else ""
    expected_s = predicted_part_s(evidence.prediction, "communication")
    fair = share - (core_wait_frac(evidence) or 0.0)  # a rank that had no core lets the others wait in a collective
    is_bound = fair >= BOUND_FRAC
    saved, how = share, "at most: all exposed communication hidden behind computing"
    if expected_s is not None:
        is_bound = fair >= UNEXPECTED_FRAC and fair * step_s >= UNEXPECTED_FACTOR * expected_s
        of += f"; the prediction has {seconds(expected_s)}"
        if is_bound:
            saved = max(share - expected_s / step_s, 0.0)
            how = "measured against predicted: communication as fast as the prediction expects"
    if share < STARVED_FRAC and next(busy_machine(evidence, context), None) is not None:
        is_bound = False
    yield Seen(
        message=f"exposed communication takes {percent(share)} of a step ({seconds(share * step_s)} of "
        f"{seconds(step_s)}){of}",
        spots=(worst.spot,),
        next_step=_next_step(evidence),
        certainty="certain", score=share, severity=None if is_bound else "info",
        numbers={"exposed_frac": share},
        gain=Gain(step_time_frac=saved, how=how),
    )  # fmt: skip


def _next_step(evidence: Evidence) -> str:
    """Ranks on CPUs do not exchange with NCCL."""
    more_work = "raise the micro-batch or accumulate more"
    if setting(evidence, "device") == "cpu":
        return more_work
    return f"check the network path (NCCL_DEBUG=INFO), then {more_work}"


def transfer_shares(evidence: Evidence) -> list[tuple[float, RankTime]]:
    """By step: share of the rank that waits least. It arrives last, so it waits for bytes and not for other ranks."""
    by_step: dict[int | None, list[RankTime]] = {}
    for one in evidence.rank_times:
        if one.step_s > 0:
            by_step.setdefault(one.step, []).append(one)
    shares = []
    for ranks in by_step.values():
        least = min(ranks, key=lambda one: one.exposed_communication_s)
        shares.append((least.exposed_communication_s / least.step_s, least))
    return shares


def predicted_part_s(prediction: dict[str, object] | None, name: str) -> float | None:
    """A part of the predicted step; None where nothing was predicted."""
    time = (prediction or {}).get("time")
    parts = time.get("parts") if isinstance(time, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("name") == name and isinstance(part.get("total_s"), int | float):
            return float(part["total_s"])
    return None


def _largest_collective(times: list[RankTime]) -> str:
    total: dict[str, float] = {}
    for one in times:
        for name, value in one.exposed_by_collective_s.items():
            total[name] = total.get(name, 0.0) + value
    return max(total, key=lambda name: total[name]) if total else ""
