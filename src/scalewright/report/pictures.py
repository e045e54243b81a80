"""Data of the figure of a prediction: operations, terms of time, terms of memory."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.types import Precision
from scalewright.costs import vision
from scalewright.costs.generation import decode_operations
from scalewright.costs.machine import Machine
from scalewright.costs.operations import operations
from scalewright.costs.roofline import Operation, Placement, place
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer
from scalewright.planner.figures import GenerationFigures, RlFigures, TransformerFigures, VisionFigures
from scalewright.planner.generation import Generation
from scalewright.planner.limits import term_times

Terms = list[tuple[str, float]]
NUM_POINTS = 9
MIN_SHARE_FRAC = 0.005
"""Share of the step below which an operation is not drawn, unless it is among the first three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data of three panels."""

    machine: Machine
    precision: Precision
    operations: list[Operation]
    time_title: str
    time_terms: Terms
    memory_terms: Terms
    device_bytes: float
    verdict: str

    @property
    def total_s(self) -> float:
        return sum(value for _, value in self.time_terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """One operation, all its passes together, in the roofline plot."""

    name: str
    kind: str
    intensity_flop_per_byte: float
    cache_intensity_flop_per_byte: float
    """Over the bytes between the second-level cache and the compute units."""
    achieved_flop_per_s: float
    share_frac: float
    """Of the step."""
    placement: Placement
    """Of the longest pass."""


def picture_of(answer: Answer) -> Picture:
    """The panels of a training step or of generation. An RL step has several stages and no picture."""
    question, reserve = answer.question, answer.device_bytes - answer.memory_bytes
    terms = [(term.name, float(term.total)) for term in answer.memory.parts]
    match answer.figures:
        case TransformerFigures():
            points_of = operations(question.setting)
        case VisionFigures() as figures:
            points_of = vision.operations(figures.setting)
        case GenerationFigures() as figures:
            points_of = decode_operations(
                figures.serving, num_sequences=figures.num_running, num_context=figures.mean_context,
                num_steps=figures.num_steps,
            )  # fmt: skip
        case RlFigures():
            raise ConfigError("a plot shows one stage, and an RL step has several: plot one of its stages")
    is_generation = isinstance(question.stage, Generation)
    return Picture(
        machine=question.machine, precision=question.recipe.matmul, operations=points_of,
        time_title="all answers" if is_generation else "step time", time_terms=term_times(answer.time),
        memory_terms=terms if is_generation else [*terms, ("reserve", reserve)],
        device_bytes=answer.device_bytes, verdict=answer.verdict,
    )  # fmt: skip


def points(picture: Picture) -> list[RooflinePoint]:
    """The operations that take the most time, largest first, also those that overlap with others."""
    by_name: dict[str, list[Operation]] = {}
    for op in picture.operations:
        by_name.setdefault(op.name, []).append(op)
    every = [_point(name, ops, picture) for name, ops in by_name.items()]
    ranked = sorted(every, key=lambda point: point.share_frac, reverse=True)
    return [point for i, point in enumerate(ranked[:NUM_POINTS]) if i < 3 or point.share_frac >= MIN_SHARE_FRAC]


def _point(name: str, ops: list[Operation], picture: Picture) -> RooflinePoint:
    work = sum(op.flop * op.num_per_step for op in ops)
    time = sum(op.total_s for op in ops)
    longest = max(ops, key=lambda op: op.total_s)
    return RooflinePoint(
        name=name.replace("_", " "),
        kind=ops[0].kind,
        intensity_flop_per_byte=work / sum(op.traffic_bytes * op.num_per_step for op in ops),
        cache_intensity_flop_per_byte=work / sum(op.cache_bytes * op.num_per_step for op in ops),
        achieved_flop_per_s=work / time,
        share_frac=time / picture.total_s,
        placement=place(longest, picture.machine, picture.precision),
    )
