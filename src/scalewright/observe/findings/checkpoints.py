"""Checkpoints: how long training waits for them, and how often they are saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.costs.failures import daly_interval_s, job_mttf_s
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import (
    elapsed_s,
    num_ranks,
    setting,
    setting_number,
    setting_spots,
    step_series,
)
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule, run_option
from scalewright.observe.findings.words import percent, seconds

STALL_FRAC = 0.05
"""Share of the time that saving may take before it is a warning: well-kept runs stay below 1 %."""
LEAST_GAIN_FRAC = 0.03
"""A better interval must save this share of the time to be named."""
SHORTEST_SAVE_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCost:
    """What saving cost a run, without the last save, which every run needs."""

    saves: list[StepFact]
    """The slowest rank's report of each step that was held up."""
    blocked_s: float
    total_s: float
    num_saves: int

    @property
    def share_frac(self) -> float:
        return min(self.blocked_s / self.total_s, 1.0) if self.total_s else 0.0


def save_cost(evidence: Evidence) -> SaveCost | None:
    series = step_series(evidence)
    if not series.is_enough:
        return None
    last = series.numbers[-1]
    longest: dict[int, StepFact] = {}
    for steps in series.steady.values():
        for one in steps:
            held_s = one.parts_s.get("checkpoint", 0.0)
            if held_s >= SHORTEST_SAVE_S and one.step != last:
                known = longest.get(one.step)
                if known is None or known.parts_s["checkpoint"] < held_s:
                    longest[one.step] = one
    if not longest:
        return None
    blocked_s = sum(one.parts_s["checkpoint"] for one in longest.values())
    every = [one.step for one in evidence.of_kind("checkpoint_saved")]
    saved_steps = {step for step in every if step != last}
    if every and not saved_steps:
        return None
    total_s = elapsed_s(evidence, series) or sum(series.times_s) + blocked_s
    return SaveCost(
        saves=[longest[step] for step in sorted(longest)], blocked_s=blocked_s, total_s=total_s,
        num_saves=len(saved_steps) or len(longest),
    )  # fmt: skip


@finding_rule(
    id="checkpoint-stall",
    severity="warning",
    role="slowed",
    title="Training waits for checkpoints",
    why="While a checkpoint is written, devices wait: for the copy to the host if it is asynchronous, for the whole "
    "write if it is not. A save that is still being written when the next is due holds up training too.",
    advice="Write asynchronously, shard the state over all ranks, stripe the folder over several targets, write to a "
    "local disk first, and save less often. `scalewright bench checkpoint` measures the ways here.",
    source="Maurya et al. 2024, DataStates-LLM (arXiv:2406.10707); PyTorch documentation, distributed checkpoint",
)
def checkpoint_stall(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    cost = save_cost(evidence)
    if cost is None or cost.share_frac < STALL_FRAC:
        return
    is_sync = setting(evidence, "checkpoint_async") == "false"
    each_s = cost.blocked_s / max(cost.num_saves, 1)
    worst = sorted(cost.saves, key=lambda one: -one.parts_s["checkpoint"])
    yield Seen(
        message=f"training waited {seconds(cost.blocked_s)} for {cost.num_saves} checkpoints, "
        f"{percent(cost.share_frac)} of the time ({seconds(each_s)} "
        f"each{', written while training waits' if is_sync else ''})",
        spots=(*(one.spot for one in worst[:2]), *setting_spots(evidence, "checkpoint_every", "checkpoint_async")),
        next_step=_next_step(evidence, is_sync=is_sync),
        certainty="certain", score=cost.share_frac + 0.01, numbers={"blocked_frac": cost.share_frac, "each_s": each_s},
        gain=Gain(step_time_frac=cost.share_frac, how="measured: the run without waiting for checkpoints"),
    )  # fmt: skip


def _next_step(evidence: Evidence, *, is_sync: bool) -> str:
    """What the command of the run can change: not every one can write while training goes on."""
    in_background = run_option(evidence, "--checkpoint", "async")
    if is_sync and in_background:
        return f"save asynchronously ({in_background})"
    every = run_option(evidence, "--checkpoint-every", "STEPS")
    less_often = f"save less often ({every})" if every else "save less often"
    return f"{less_often}, or to faster storage: `scalewright bench checkpoint` compares ways"


@finding_rule(
    id="checkpoint-interval",
    severity="warning",
    role="wasted",
    title="Checkpoints are saved at the wrong interval",
    why="Saving too often costs time at every save; too rarely, and a failure costs the work since the last one. "
    "Daly's interval loses least, from the time of a save and the time between failures.",
    advice="Save at the interval that is named here. Our commands find it by themselves with "
    "`scalewright bench language --checkpoint-every auto`.",
    source="Daly 2006 (FGCS 22), equation 37",
)
def checkpoint_interval(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    cost = save_cost(evidence)
    device_mttf_s = setting_number(evidence, "device_mttf_s")
    if cost is None or not device_mttf_s or cost.num_saves < 2:
        return
    mttf_s = job_mttf_s(device_mttf_s=device_mttf_s, num_devices=num_ranks(evidence))
    save_s = max(cost.blocked_s / cost.num_saves, SHORTEST_SAVE_S)
    best_s = daly_interval_s(checkpoint_s=save_s, mttf_s=mttf_s)
    used_s = cost.total_s / cost.num_saves
    loss_now, loss_best = _loss_frac(save_s, used_s, mttf_s), _loss_frac(save_s, best_s, mttf_s)
    if loss_now - loss_best < LEAST_GAIN_FRAC:
        return
    often = "too often" if used_s < best_s else "too rarely"
    auto = run_option(evidence, "--checkpoint-every", "auto")
    yield Seen(
        message=f"checkpoints are saved {often}: every {seconds(used_s)}, at {seconds(save_s)} each; with a failure "
        f"every {seconds(mttf_s)} the best interval is {seconds(best_s)}",
        spots=(*(one.spot for one in cost.saves[:2]), *setting_spots(evidence, "checkpoint_every", "device_mttf_s")),
        next_step=f"save every {seconds(best_s)}{f' ({auto})' if auto else ''}", certainty="likely",
        score=loss_now - loss_best,
        severity=None if loss_now - loss_best >= STALL_FRAC else "info",
        numbers={"interval_s": used_s, "best_interval_s": best_s},
        gain=Gain(step_time_frac=loss_now - loss_best, how="Daly's formula with the measured time of a save"),
    )  # fmt: skip


def _loss_frac(save_s: float, interval_s: float, mttf_s: float) -> float:
    """Share of the time lost to saving, and to work that is done again after a failure.

    Equation  C / T + T / (2 M)
    Source    young1974, to first order; costs.failures has the whole form
    Assumes   C and T are small against M
    """
    return min(save_s / interval_s + interval_s / (2.0 * mttf_s), 1.0)
