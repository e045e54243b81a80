"""Runs that go on but do not learn: a loss that is not a number, does not move, jumps, or grows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import step_series
from scalewright.observe.findings.ends.ending import ending_by, quoted, seen_end
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule

ROUNDING_FRAC = 4 * 2.0**-23
"""Four units in the last place of fp32."""
LEAST_FROZEN = 20
"""Equal losses in a row before a loss counts as frozen: a loss printed with four digits repeats by chance now and
then, twenty times in a row it does not."""
LEAST_LOST = 3
"""Gradient norms in a row, up to the last report, that are not a number: loss scaling skips single steps."""
LEAST_STEPS = 30
"""Steps with a loss before its course is judged."""
WINDOW = 20
"""Steps of the running median that a spike is compared with."""
LEAST_SPIKE_FRAC = 0.2
"""A jump counts from this share of the loss on. PaLM and OPT rewound at jumps far above; noise of a batch is a few
percent."""
SPIKE_SIGMAS = 8.0
"""And from so many robust deviations on, so that a noisy loss has no spikes."""
DIVERGED_FRAC = 0.15
"""A loss this far above its lowest running median, at the end, has diverged."""
LEAST_LOSS = 0.05
"""Losses near zero, as of reinforcement learning, have no relative course."""
MAD_TO_SIGMA = 1.4826
"""Standard deviations per median absolute deviation, for normal noise."""


def _losses(evidence: Evidence) -> list[StepFact]:
    """Steps with a loss, of the lowest rank that reports one."""
    series = step_series(evidence)
    for rank in series.ranks:
        steps = [one for one in series.by_rank[rank] if one.loss is not None]
        if steps:
            return steps
    return []


def _values(steps: Sequence[StepFact]) -> list[float]:
    return [one.loss for one in steps if one.loss is not None]


@finding_rule(
    id="loss-nan",
    severity="error",
    role="ended",
    title="The loss is not a number",
    why="From the first NaN or infinity on, weights are lost too, and every further step is wasted. Usual causes: a "
    "learning rate that is too high, FP16 without loss scaling, a bad batch, a division by zero, or damaged hardware "
    "if it cannot be repeated.",
    advice="Go back to the last checkpoint before it. Clip gradients, lower the learning rate, use BF16, and skip the "
    "batch if it comes back at the same data. Run with torch.autograd.set_detect_anomaly(True) to get the operation.",
    source="PaLM (arXiv:2204.02311), 5.1: rewind and skip batches; OPT logbook (arXiv:2205.01068), 2.5",
)
def loss_nan(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    steps = _losses(evidence)
    bad = [one for one in steps if not math.isfinite(_values([one])[0])]
    if bad:
        good_after = [one for one in steps if one.step > bad[-1].step]
        before = [one for one in steps if one.step < bad[0].step]
        recovered = len(good_after) >= 3
        course = _course_before(before)
        yield Seen(
            message=f"The loss is {bad[0].loss} from step {bad[0].step} on ({len(bad)} of {len(steps)} steps"
            f"{', and finite again later' if recovered else ''}){course}",
            spots=tuple(one.spot for one in [*bad[:2], *before[-1:]]),
            next_step=f"resume from a checkpoint before step {bad[0].step} with a lower learning rate or gradient "
            "clipping; use BF16 instead of FP16",
            certainty="certain",
            score=0.5 if recovered else 0.95,
            severity="warning" if recovered else None,
            numbers={"first_step": float(bad[0].step), "num_steps": float(len(bad))},
        )
        return
    for ending in ending_by(evidence, "loss-nan"):
        yield seen_end(
            ending,
            f"{ending.who} ended because of a value that is not a number{ending.when}: {quoted(ending.first)}",
            "resume from the last checkpoint with a lower learning rate or gradient clipping; use BF16 instead of FP16",
        )
        return
    lost = _trailing_without_norm(evidence)
    if len(lost) >= LEAST_LOST:
        yield Seen(
            message=f"The gradient norm is not a number from step {lost[0].step} to the last report, so that "
            "nothing is learned any more",
            spots=tuple(one.spot for one in lost[:2]), certainty="certain", score=0.95,
            next_step=f"resume from a checkpoint before step {lost[0].step}; use BF16 instead of FP16, or a lower "
            "learning rate",
            numbers={"first_step": float(lost[0].step), "num_steps": float(len(lost))},
        )  # fmt: skip
        return
    counted = [one for one in evidence.steps if one.values.get("number of nan iterations", 0.0) > 0]
    noted = evidence.of_kind("nan")
    if counted or noted:
        spots = tuple(one.spot for one in counted[:2]) or tuple(one.spot for one in noted[:2])
        yield Seen(
            message=f"{len(counted) or len(noted)} reports of values that are not a number", spots=spots,
            next_step="look at the gradient norm before these steps, and clip it", score=0.5, severity="warning",
        )  # fmt: skip


def _trailing_without_norm(evidence: Evidence) -> list[StepFact]:
    """The last reports of the first rank that has gradient norms, as far as none is a number."""
    series = step_series(evidence)
    for rank in series.ranks:
        steps = [one for one in series.by_rank[rank] if one.grad_norm is not None]
        if steps:
            lost = []
            for one in reversed(steps):
                if one.grad_norm is not None and math.isfinite(one.grad_norm):
                    break
                lost.append(one)
            return lost[::-1]
    return []


def _course_before(before: Sequence[StepFact]) -> str:
    norms = [one.grad_norm for one in before if one.grad_norm is not None and math.isfinite(one.grad_norm)]
    if len(norms) > 4 and norms[-1] > 5 * statistics.median(norms):
        times = norms[-1] / statistics.median(norms)
        return f"; the gradient norm was {norms[-1]:.3g} before it, {times:.0f} times its median"
    return ""


def _is_same(loss: float | None, last: float | None) -> bool:
    """The same but for the order of a sum: ranks and batches in another order change the last digits of fp32."""
    return loss is not None and last is not None and math.isclose(loss, last, rel_tol=ROUNDING_FRAC)


@finding_rule(
    id="loss-frozen",
    severity="error",
    role="suspect",
    title="The loss does not move",
    why="A loss that is the same number at every step means that nothing is trained: a learning rate of 0, gradients "
    "that are zero or skipped, all tokens masked, or the same logged value again.",
    advice="Check the learning rate and the gradient norm in the log, labels that are all ignored (-100), frozen "
    "parameters, and skipped iterations of the loss scaler.",
    source="house rule: twenty equal losses in a row do not happen by chance",
)
def loss_frozen(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    steps = [one for one in _losses(evidence) if math.isfinite(_values([one])[0])]
    if len(steps) < LEAST_FROZEN:
        return
    run = 1
    while run < len(steps) and _is_same(steps[-run - 1].loss, steps[-1].loss):
        run += 1
    if run < LEAST_FROZEN:
        return
    last = steps[-1]
    rates = {one.learning_rate for one in steps[-run:] if one.learning_rate is not None}
    norms = {one.grad_norm for one in steps[-run:] if one.grad_norm is not None}
    if rates == {0.0}:
        why, advice = "; the learning rate is 0", "give a learning rate above 0; check the scheduler's warm-up and end"
    elif norms and max(norms) == 0.0:
        why, advice = "; the gradient norm is 0", "check that labels are not all ignored and parameters are trained"
    else:
        why, advice = "", "check the learning rate, labels that are all ignored (-100), and skipped iterations"
    yield Seen(
        message=f"The loss is {last.loss:g} in each of the last {run} steps (from step {steps[-run].step} on){why}",
        spots=(steps[-run].spot, last.spot), next_step=advice, certainty="certain" if why else "likely", score=0.9,
        numbers={"first_step": float(steps[-run].step), "num_steps": float(run)},
    )  # fmt: skip


@finding_rule(
    id="loss-spike",
    severity="warning",
    role="suspect",
    title="The loss jumps and comes back",
    why="Jumps cost the steps until the loss is back, and may come before divergence. They follow from bad batches, a "
    "high learning rate, a small epsilon of Adam, or logits that grow.",
    advice="Note step and batch. Clip gradients to 1.0, lower the learning rate, or rewind and skip the batches.",
    source="PaLM (arXiv:2204.02311), 5.1; OLMo 2 (arXiv:2501.00656), 4: stability",
    because_of=("loss-nan", "loss-diverging"),
)
def loss_spike(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    steps = [one for one in _losses(evidence) if math.isfinite(_values([one])[0])]
    spikes = _spikes(steps)
    if not spikes or _diverged(steps) is not None:
        return
    worst = max(spikes, key=lambda pair: _values([pair[0]])[0] / pair[1])
    height = _values([worst[0]])[0] / worst[1]
    yield Seen(
        message=f"The loss jumped at {len(spikes)} step{'' if len(spikes) == 1 else 's'}; at step {worst[0].step} to "
        f"{worst[0].loss:.4g}, {height:.1f} times its running median",
        spots=tuple(one.spot for one, _ in spikes[:3]),
        next_step="clip gradients (to 1.0), or lower the learning rate; rewind and skip the batch if it stays",
        score=min(len(spikes) / len(steps), 1.0),
        numbers={"num_spikes": float(len(spikes)), "worst_step": float(worst[0].step)},
    )


def _spikes(steps: Sequence[StepFact]) -> list[tuple[StepFact, float]]:
    """Steps far above the running median before them, with that median; a wide jump counts once."""
    values = _values(steps)
    if len(values) < LEAST_STEPS or min(values) < LEAST_LOSS:
        return []
    spikes: list[tuple[StepFact, float]] = []
    last = -WINDOW
    for index in range(WINDOW, len(values)):
        window = values[index - WINDOW : index]
        middle = statistics.median(window)
        sigma = MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in window)
        over = values[index] - middle
        if over > LEAST_SPIKE_FRAC * middle and over > SPIKE_SIGMAS * sigma:
            if index - last > WINDOW // 2:
                spikes.append((steps[index], middle))
            last = index
    return spikes


@finding_rule(
    id="loss-diverging",
    severity="error",
    role="suspect",
    title="The loss grows",
    why="The loss at the end is well above the lowest that it had: training has become unstable, and further steps "
    "are wasted.",
    advice="Go back to the checkpoint at the lowest loss, lower the learning rate or lengthen the warm-up, and clip "
    "gradients.",
    source="PaLM (arXiv:2204.02311), 5.1; OPT logbook (arXiv:2205.01068), 2.5",
    because_of=("loss-nan",),
)
def loss_diverging(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    steps = [one for one in _losses(evidence) if math.isfinite(_values([one])[0])]
    course = _diverged(steps)
    if course is None:
        return
    index, lowest, end = course
    yield Seen(
        message=f"The loss rose from {lowest:.4g} near step {steps[index].step} to {end:.4g} at step {steps[-1].step}",
        spots=(steps[index].spot, steps[-1].spot),
        next_step=f"resume before step {steps[index].step} with a lower learning rate or a longer warm-up",
        score=0.9,
        numbers={"lowest_step": float(steps[index].step), "rise_frac": end / lowest - 1},
    )


def _diverged(steps: Sequence[StepFact]) -> tuple[int, float, float] | None:
    """Index and value of the lowest running median, and the last one, if it is far above."""
    values = _values(steps)
    if len(values) < LEAST_STEPS or min(values) < LEAST_LOSS:
        return None
    width = max(len(values) // 10, 5)
    medians = [statistics.median(values[index - width : index]) for index in range(width, len(values) + 1)]
    lowest = min(range(len(medians)), key=medians.__getitem__)
    end, low = medians[-1], medians[lowest]
    noise = MAD_TO_SIGMA * statistics.median(abs(b - a) for a, b in pairwise(values))
    if end > (1 + DIVERGED_FRAC) * low and end - low > 4 * noise:
        return lowest + width - 1, low, end
    return None
