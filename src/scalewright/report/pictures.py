"""What a figure of a prediction shows, whatever was predicted: operations, terms of time, terms of memory."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.types import Precision
from scalewright.costs.generation import decode_operations
from scalewright.costs.machine import Machine
from scalewright.costs.operations import operations
from scalewright.costs.roofline import Operation, Placement, place
from scalewright.costs.vision import vision_operations
from scalewright.planner.predict import Prediction
from scalewright.planner.stages.serving import GenerationPrediction
from scalewright.planner.stages.vision_step import VisionPrediction
from scalewright.planner.whatif import term_times

Terms = list[tuple[str, float]]
Drawable = Prediction | VisionPrediction | GenerationPrediction
NUM_POINTS = 9
MIN_SHARE_FRAC = 0.005
"""Of the step, below which an operation is no point, unless it is among the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A prediction as three panels need it."""

    machine: Machine
    precision: Precision
    operations: list[Operation]
    time_title: str
    time_terms: Terms
    memory_terms: Terms
    reserved_bytes: float
    fits: bool

    @property
    def total_s(self) -> float:
        return sum(value for _, value in self.time_terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One operation, its passes together, under the device's roofs."""

    name: str
    kind: str
    intensity_flop_per_byte: float
    cache_intensity_flop_per_byte: float
    """Over what passes between the second-level cache and the units."""
    achieved_flop_per_s: float
    share_frac: float
    """Of the step."""
    placement: Placement
    """Of the pass that takes the longest."""


def picture_of(prediction: Drawable) -> Picture:
    if isinstance(prediction, Prediction):
        return _of_training(prediction)
    return _of_vision(prediction) if isinstance(prediction, VisionPrediction) else _of_generation(prediction)


def _of_training(p: Prediction) -> Picture:
    terms = [(term.name, float(term.total)) for term in p.cost.memory.parts]
    reserve = float(p.cost.reserved_bytes) - float(p.cost.memory.total)
    return Picture(
        machine=p.machine, precision=p.recipe.matmul, operations=operations(p.setting), time_title="step time",
        time_terms=term_times(p.cost.time), memory_terms=[*terms, ("reserve", reserve)],
        reserved_bytes=float(p.cost.reserved_bytes), fits=bool(p.cost.fits),
    )  # fmt: skip


def _of_vision(p: VisionPrediction) -> Picture:
    terms = [(term.name, float(term.total)) for term in p.memory.parts]
    return Picture(
        machine=p.machine, precision=p.recipe.matmul, operations=vision_operations(p.setting), time_title="step time",
        time_terms=term_times(p.time), memory_terms=[*terms, ("reserve", p.reserved_bytes - float(p.memory.total))],
        reserved_bytes=p.reserved_bytes, fits=p.fits,
    )  # fmt: skip


def _of_generation(p: GenerationPrediction) -> Picture:
    found = decode_operations(
        p.serving, num_sequences=p.num_running, num_context=p.mean_context, num_steps=p.num_steps
    )  # fmt: skip
    return Picture(
        machine=p.serving.machine, precision=p.serving.recipe.matmul, operations=found, time_title="all answers",
        time_terms=term_times(p.time), memory_terms=[(t.name, float(t.total)) for t in p.memory.parts],
        reserved_bytes=float(p.memory.total), fits=p.fits,
    )  # fmt: skip


def points(picture: Picture) -> list[Point]:
    """The operations that take the most time, largest first; one that other stages hide is still there."""
    by_name: dict[str, list[Operation]] = {}
    for op in picture.operations:
        by_name.setdefault(op.name, []).append(op)
    found = [_point(name, ops, picture) for name, ops in by_name.items()]
    ranked = sorted(found, key=lambda point: point.share_frac, reverse=True)
    return [point for i, point in enumerate(ranked[:NUM_POINTS]) if i < 3 or point.share_frac >= MIN_SHARE_FRAC]


def _point(name: str, ops: list[Operation], picture: Picture) -> Point:
    work = sum(op.flop * op.num_per_step for op in ops)
    time = sum(op.total_s for op in ops)
    longest = max(ops, key=lambda op: op.total_s)
    return Point(
        name=name.replace("_", " "),
        kind=ops[0].kind,
        intensity_flop_per_byte=work / sum(op.traffic_bytes * op.num_per_step for op in ops),
        cache_intensity_flop_per_byte=work / sum(op.cache_bytes * op.num_per_step for op in ops),
        achieved_flop_per_s=work / time,
        share_frac=time / picture.total_s,
        placement=place(longest, picture.machine, picture.precision),
    )
