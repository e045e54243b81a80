"""Summary of a vision run beyond its steps: epochs, scores, and whether the loader or the device is the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from scalewright.observe.collect import CollectedRun
from scalewright.records import metric_names as names

KIND = "vision-run"
WAITING_FRAC = 0.1
"""Share of a step spent waiting for images above which the loader is the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSummary:
    """One epoch; times are those of the slowest rank."""

    epoch: int
    """From 1."""
    epoch_s: float | None
    """None if the run was resumed in the middle of it."""
    training_s: float | None
    validation_loss: float | None
    top_1_frac: float | None
    top_5_frac: float | None
    counts: bool
    """Whether EPICURE's protocol counts this epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSummary:
    epochs: tuple[EpochSummary, ...]
    images_per_s_per_gpu: float | None
    """Median over the steps that count."""
    data_wait_frac: float | None
    """Share of an ordinary step that waits for images."""
    device_images_per_s: float | None
    """Rate of the devices of all ranks, without the wait."""
    loader_images_per_s: float | None
    """Rate of the loaders of all ranks while nothing else runs; None for synthetic images."""
    limit: Literal["loader", "device", "unknown"]
    copying_s: float | None
    """Copying the data set before the first step."""


def summarize_vision(run: CollectedRun) -> VisionSummary | None:
    """None for a run of another kind."""
    if not str(run.config.get("schema", "")).startswith(f"scalewright.{KIND}/"):
        return None
    num_ranks, batch = int(run.config["num_ranks"]), int(run.config["batch"])
    step_s, wait_s = run.median(names.STEP_TIME), run.median(names.DATA_WAIT)
    waits = None if step_s is None or wait_s is None else wait_s / step_s
    together_s = run.median(names.STEP_TIME, slowest=True)
    device = None
    if together_s is not None and waits is not None and waits < 1:
        device = num_ranks * batch / (together_s * (1.0 - waits))
    limit: Literal["loader", "device", "unknown"] = "unknown"
    if waits is not None:
        limit = "loader" if waits > WAITING_FRAC else "device"
    return VisionSummary(
        epochs=_epochs(run.config, run),
        images_per_s_per_gpu=None if step_s is None else batch / step_s,
        data_wait_frac=waits,
        device_images_per_s=device,
        loader_images_per_s=_sum_of_ranks(run, names.LOADER_RATE),
        limit=limit,
        copying_s=max(_values(run, names.COPYING_TIME), default=None),
    )


def _epochs(config: dict[str, Any], run: CollectedRun) -> tuple[EpochSummary, ...]:
    steps, epochs = int(config["steps_per_epoch"]), []
    ended = {event.step for event in run.happenings if event.name == names.EVENT_STEADY_END}
    for number in range(int(config["epochs"])):
        last = (number + 1) * steps - 1
        if last not in run.steps.get(names.STEP_TIME, {}):
            break
        epochs.append(
            EpochSummary(
                epoch=number + 1,
                epoch_s=_slowest(run, names.EPOCH_TIME, last),
                training_s=_slowest(run, names.TRAINING_TIME, last),
                validation_loss=_slowest(run, names.VALIDATION_LOSS, last),
                top_1_frac=_slowest(run, names.TOP_1, last),
                top_5_frac=_slowest(run, names.TOP_5, last),
                counts=any(number * steps <= step <= last for step in ended),
            )
        )
    return tuple(epochs)


def _slowest(run: CollectedRun, name: str, step: int) -> float | None:
    """The largest of the ranks; scores are summed over ranks and the same on each."""
    return max(run.steps.get(name, {}).get(step, {}).values(), default=None)


def _values(run: CollectedRun, name: str) -> list[float]:
    return [value for ranks in run.steps.get(name, {}).values() for value in ranks.values()]


def _sum_of_ranks(run: CollectedRun, name: str) -> float | None:
    """Of the latest trial."""
    table = run.steps.get(name, {})
    return math.fsum(table[max(table)].values()) if table else None
