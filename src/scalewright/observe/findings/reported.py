"""Numbers that a run reports of itself and that cannot be right."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import num_ranks, setting, setting_number, setting_spots, step_series
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule
from scalewright.observe.findings.words import percent, seconds

ABOVE_PEAK_FACTOR = 1.05
ABOVE_MEASURED_FACTOR = 1.5
"""A peak that was measured here may be exceeded by another shape of product."""
FLOP_FACTOR = 1.5
"""Reported over recomputed FLOP/s: counting conventions (recomputation, attention, vocabulary) differ by less."""
CLOCK_FACTOR = 3.0
"""Time between the ends of steps over the time that steps report: validation and saves explain less than this."""
SAME_FRAC = 0.05
LEAST_DIFFERENT_FRAC = 0.25

TRAINS_TEXT = (None, "language", "engine", "imported")
"""Kinds of run directories whose tokens train a language model; None: a log alone."""


@finding_rule(
    id="impossible-flop",
    severity="error",
    role="suspect",
    title="The reported FLOP/s are impossible",
    why="More FLOP/s than the device can do means that the time, the count of FLOP or the number of devices is "
    "wrong. Every figure that follows from it is wrong too.",
    advice="Check the count of FLOP (sparse against dense peak, recomputation, number of devices) and the clock. "
    "`scalewright predict` computes model FLOP of a step.",
    source="verl issue 1208 (MFU 1.018); Megatron-Bridge issue 5344 (one run restated from 9.33 to 1.42)",
)
def impossible_flop(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    steps = [one for rank in series.steady.values() for one in rank]
    shares = [one for one in steps if one.mfu_frac is not None]
    peak = setting_number(evidence, "peak_flop_per_s")
    above = _above(evidence)
    over = [one for one in shares if (one.mfu_frac or 0.0) > above]
    if len(over) * 2 > len(shares) and over:
        worst = max(over, key=lambda one: one.mfu_frac or 0.0)
        yield _impossible(f"MFU is reported as {percent(worst.mfu_frac or 0.0)}", worst, evidence)
        return
    rates = [one for one in steps if one.flop_per_s is not None]
    beyond = [one for one in rates if peak and (one.flop_per_s or 0.0) > above * peak]
    if beyond and len(beyond) * 2 > len(rates) and peak:
        worst = max(beyond, key=lambda one: one.flop_per_s or 0.0)
        times = (worst.flop_per_s or 0.0) / peak
        yield _impossible(f"a device reports {times:.1f} times the FLOP/s of its peak", worst, evidence)


def _above(evidence: Evidence) -> float:
    is_cpu = setting(evidence, "device") == "cpu" or (setting(evidence, "accelerator") or "").startswith("cpu")
    return ABOVE_MEASURED_FACTOR if is_cpu else ABOVE_PEAK_FACTOR


def _impossible(words: str, worst: StepFact, evidence: Evidence) -> Seen:
    return Seen(
        message=f"{words}: no device computes faster than its peak",
        spots=(worst.spot, *setting_spots(evidence, "peak_flop_per_s")), certainty="certain", score=1.0,
        next_step="check the clock, the count of FLOP and the peak that is divided by",
    )  # fmt: skip


@finding_rule(
    id="clock-disagrees",
    severity="warning",
    role="suspect",
    title="Steps report less time than passes",
    why="Steps follow each other more slowly than their reported times say. Either much happens between them, such as "
    "validation, or the clock of the steps is wrong.",
    advice="Time steps with a monotonic clock, after the device is done (torch.cuda.synchronize).",
    source="PyTorch documentation, asynchronous execution of CUDA kernels",
    because_of=("impossible-flop", "checkpoint-stall"),
)
def clock_disagrees(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    for rank, steps in series.steady.items():
        ends = {one.step: one for one in steps if one.at_s is not None and one.time_s}
        pairs = [(ends[step - 1], one) for step, one in ends.items() if step - 1 in ends]
        ratios = [
            ((b.at_s or 0.0) - (a.at_s or 0.0)) / (b.time_s or 1.0) for a, b in pairs if not b.parts_s.get("checkpoint")
        ]
        if len(ratios) < 10 or statistics.median(ratios) < CLOCK_FACTOR:
            continue
        one = pairs[len(pairs) // 2][1]
        yield Seen(
            message=f"rank {rank} reports steps of {seconds(statistics.median(b.time_s or 0.0 for _, b in pairs))}, "
            f"but they "
            f"end {seconds(statistics.median((b.at_s or 0.0) - (a.at_s or 0.0) for a, b in pairs))} apart",
            spots=(one.spot,), certainty="likely", score=0.5,
            next_step="check how the step is timed", numbers={"factor": statistics.median(ratios)},
        )  # fmt: skip
        return


@finding_rule(
    id="tokens-not-executed",
    severity="error",
    role="suspect",
    title="Reported tokens are not the tokens that were trained on",
    why="A throughput counts tokens. If the count is made from the configuration, it stays the same when batches are "
    "dropped, padded or repeated.",
    advice="Count the targets that enter the loss, over all ranks that hold different samples.",
    source="The reported throughput of this project is checked so; verl issue 7049",
)
def tokens_not_executed(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    for one in evidence.happenings:
        if one.values.get("event") == "token_check" and one.values.get("value") == 0.0:
            yield Seen(
                message=f"the count of tokens does not agree: {one.message}", spots=(one.spot,), certainty="certain",
                score=0.9, next_step="count the targets whose loss is computed",
            )  # fmt: skip
            return


@finding_rule(
    id="flop-mismatch",
    severity="warning",
    role="suspect",
    title="Reported FLOP/s do not follow from model, tokens and time",
    why="Model FLOP of a step follow from the model's shape and the tokens. A report that differs by more than "
    "counting conventions explain uses another model, another batch or another number of devices.",
    advice="Recompute it: `scalewright predict --model ... --json` has model_flop of a step.",
    source="Narayanan et al. 2021 (arXiv:2104.04473), equation 3; Megatron-Bridge issue 5344",
    because_of=("impossible-flop",),
)
def flop_mismatch(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    flop_per_token = _flop_per_token(evidence)
    if flop_per_token is None or setting(evidence, "num_experts") not in (None, "0", "1"):
        return
    ratios = []
    for one in series.job_steps:
        tokens, rate = one.num_tokens, one.flop_per_s
        if tokens is None and setting_number(evidence, "gbs") and setting_number(evidence, "seq"):
            tokens = (setting_number(evidence, "gbs") or 0.0) * (setting_number(evidence, "seq") or 0.0)
        if tokens and rate and one.time_s:
            ratios.append((rate * one.time_s * num_ranks(evidence) / (tokens * flop_per_token), one))
    if len(ratios) < 3:
        return
    ratio = statistics.median(value for value, _ in ratios)
    if 1.0 / FLOP_FACTOR <= ratio <= FLOP_FACTOR:
        return
    yield Seen(
        message=f"the reported FLOP/s are {ratio:.2g} times what the model's shape, the tokens and the time give",
        spots=(ratios[len(ratios) // 2][1].spot, *setting_spots(evidence, "layers", "hidden")), certainty="likely",
        score=0.4, numbers={"ratio": ratio},
        next_step="check the model's shape, the number of devices and the tokens in the formula",
    )  # fmt: skip


def _flop_per_token(evidence: Evidence) -> float | None:
    """Model FLOP of forward and backward for one token.

    Equation  72 l h^2 (1 + s / 6h) + 6 h V    (96 with full recomputation is not counted: model FLOP)
    Source    narayanan2021 (arXiv:2104.04473), equation 3 without recomputation, per token
    Assumes   a dense transformer with a feed-forward width of 4h (or f: 12 h f instead of 48 h^2),
    causal masks not saved
    """
    layers, hidden, vocab, seq = (setting_number(evidence, name) for name in ("layers", "hidden", "vocab", "seq"))
    if not layers or not hidden or not vocab or not seq or setting(evidence, "kind") not in TRAINS_TEXT:
        return None
    ffn = setting_number(evidence, "ffn_hidden") or 4.0 * hidden
    per_layer = 24.0 * hidden**2 + 12.0 * hidden * ffn + 12.0 * seq * hidden
    return layers * per_layer + 6.0 * hidden * vocab


@finding_rule(
    id="wrong-device-count",
    severity="warning",
    role="suspect",
    title="The throughput is divided by another number of devices",
    why="Tokens per second and device, times the devices, must be the tokens of a step over its time. In separate "
    "roles the generator's devices are easily forgotten.",
    advice="Divide by all devices that the job holds, generators and reward models included.",
    source="verl issue 7049: throughput of separate roles divided by the trainer's GPUs only",
)
def wrong_device_count(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    devices = setting_number(evidence, "num_gpus") or setting_number(evidence, "num_ranks")
    if not devices:
        return
    implied = [
        (one.num_tokens / one.time_s / one.tokens_per_s, one) for one in evidence.steps
        if one.is_per_device and one.tokens_per_s and one.num_tokens and one.time_s
    ]  # fmt: skip
    if len(implied) < 3:
        return
    count = statistics.median(value for value, _ in implied)
    is_whole = abs(count - round(count)) <= SAME_FRAC * count and round(count) >= 1
    if not is_whole or abs(count - devices) / devices < LEAST_DIFFERENT_FRAC:
        return
    yield Seen(
        message=f"the reported throughput per device is the job's divided by {round(count)}, but the job has "
        f"{devices:.0f} devices",
        spots=(implied[0][1].spot, *setting_spots(evidence, "num_gpus", "num_ranks")), certainty="likely", score=0.6,
        next_step=f"divide by {devices:.0f}: every figure per device is {devices / round(count):.2g} times too high",
        numbers={"divided_by": round(count), "devices": devices},
    )  # fmt: skip
