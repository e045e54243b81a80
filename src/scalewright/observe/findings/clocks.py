"""Clocks of devices: heat and power limits that lower them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import DeviceSample
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent

SLOWED_FRAC = 0.1
"""Share of samples with an active reason from which it is more than a moment."""
BUSY_FRAC = 0.3
"""A device that is less busy has low clocks because it idles."""
LOW_CLOCK_FRAC = 0.85
POWER = ("power_cap", "sw_power")
"""A power cap is the usual state of a busy GPU; it matters only where the clock drops far."""


@finding_rule(
    id="throttled-clocks",
    severity="warning",
    role="slowed",
    title="Heat or a power limit lowers the clock of a device",
    why="A device that is too hot, or whose node brakes its power, lowers its clock, and every other device waits "
    "for it.",
    advice="Report the node: fans, dust, cooling water, a failed power supply. Leave it out meanwhile (`--exclude`). "
    "For a power limit that somebody set: nvidia-smi -q -d POWER.",
    source="NVIDIA, NVML documentation, clocks event reasons",
)
def throttled_clocks(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    devices: dict[tuple[str, str], list[DeviceSample]] = {}
    for one in evidence.device_samples:
        if one.device != "host" and (one.use_frac is None or one.use_frac >= BUSY_FRAC or one.slowed_by):
            devices.setdefault((one.host, one.device), []).append(one)
    slowed = {key: samples for key, samples in devices.items() if _slowed_share(samples) >= SLOWED_FRAC}
    if slowed:
        yield _seen(slowed)
        return
    for event in evidence.of_kind("throttled"):
        yield Seen(
            message=f"a device lowered its clock: {event.message}", spots=(event.spot,), certainty="likely", score=0.1,
            next_step="check temperature and power limit of the device: nvidia-smi -q -d CLOCK,TEMPERATURE,POWER",
        )  # fmt: skip
        return


def _slowed_share(samples: list[DeviceSample]) -> float:
    slow = [one for one in samples if _is_slowed(one)]
    return len(slow) / len(samples)


def _is_slowed(one: DeviceSample) -> bool:
    hard = [reason for reason in one.slowed_by if reason not in POWER]
    if hard:
        return True
    return bool(one.slowed_by) and (_clock_frac(one) or 1.0) < LOW_CLOCK_FRAC


def _clock_frac(one: DeviceSample) -> float | None:
    return one.clock_hz / one.clock_high_hz if one.clock_hz and one.clock_high_hz else None


def _seen(slowed: dict[tuple[str, str], list[DeviceSample]]) -> Seen:
    key = max(slowed, key=lambda one: _slowed_share(slowed[one]))
    active = [one for one in slowed[key] if _is_slowed(one)]
    reasons = sorted({reason for one in active for reason in one.slowed_by})
    clocks = [frac for one in active if (frac := _clock_frac(one)) is not None]
    hottest = max((one.temperature_c for one in active if one.temperature_c is not None), default=None)
    clock = statistics.median(clocks) if clocks else None
    share = _slowed_share(slowed[key])
    lost = None if clock is None else share * (1.0 - clock)
    words = "" if clock is None else f", at {percent(clock)} of its highest clock"
    words += "" if hottest is None else f" and up to {hottest:.0f} degrees"
    where = f"device {key[1]}{f' of {key[0]}' if key[0] else ''}"
    more = f" ({len(slowed)} devices in all)" if len(slowed) > 1 else ""
    return Seen(
        message=f"{where} is slowed by {', '.join(reasons)} in {percent(share)} of the samples{words}{more}",
        spots=tuple(one.spot for one in active[:3]), certainty="certain",
        next_step="report the node to the operators and leave it out (--exclude)", score=max(lost or 0.0, 0.05),
        numbers={"slowed_frac": share, "clock_frac": clock if clock is not None else "unknown"},
        gain=None if lost is None else Gain(
            step_time_frac=lost, how="at most: computing as fast as the highest clock allows, where it is the limit"
        ),
    )  # fmt: skip
