"""Predict one training step of a transformer."""

from __future__ import annotations

from scalewright.costs.interval import other_jobs_note, own_flows_note, unseen
from scalewright.costs.step import StepCost, step_cost
from scalewright.planner.answer import Answer, tight_memory
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.planner.figures import TransformerFigures
from scalewright.planner.question import Question
from scalewright.planner.search.constraints import span_problem

MIN_EFFICIENT_HEAD_DIM_MULTIPLE = 8


def predict_transformer(question: Question) -> Answer:
    """A step that was checked to divide the model."""
    return _answer(question, step_cost(spec=question.spec, setting=question.setting))


def _answer(question: Question, cost: StepCost) -> Answer:
    num_tokens = int(question.layout.gbs) * question.spec.transformer.seq
    return Answer(
        question=question,
        time=cost.time,
        memory=cost.memory,
        reserved_bytes=float(cost.reserved_bytes),
        device_bytes=float(cost.device_bytes),
        needed_bytes=float(cost.needed_bytes),
        host_memory=cost.host_memory,
        interval_s=(float(cost.interval_s[0]), float(cost.interval_s[1])),
        bound_s=float(cost.bound_s),
        fits=bool(cost.fits),
        fits_host=bool(cost.fits_host),
        num_units=num_tokens,
        footprint=_footprint(question, cost, num_tokens),
        warnings=tuple(_warnings(question, cost)),
        figures=TransformerFigures(spec=question.spec, setting=question.setting, cost=cost),
    )


def _footprint(question: Question, cost: StepCost, num_tokens: int) -> Footprint | None:
    """Energy, money and carbon of one step."""
    if question.facility is None:
        return None
    return footprint(
        machine=question.machine,
        recipe=question.recipe,
        facility=question.facility,
        time_s=float(cost.time.total),
        num_gpus=question.num_gpus,
        num_tokens=num_tokens,
        hardware_flop=float(cost.hardware_flop),
    )


def _warnings(question: Question, cost: StepCost) -> list[str]:
    shape, machine, warnings = question.spec.transformer, question.machine, []
    if not machine.matmul_is_published(question.recipe.matmul):
        share = machine.constants.unpublished_matmul_share
        warnings.append(
            f"no best {question.recipe.matmul} matmul rate of {machine.accelerator.id} is published: "
            f"{share.value:.0%} of peak is assumed"
        )
    if shape.head_dim % MIN_EFFICIENT_HEAD_DIM_MULTIPLE:
        warnings.append(f"head size {shape.head_dim} is not a multiple of 8: it leaves the matrix units or is padded")
    spans = span_problem(int(question.layout.tp), machine, num_gpus=question.num_gpus)
    if spans is not None:
        warnings.append(
            f"{spans}, so the sums of every layer cross the network: plan excludes such layouts, and plan "
            f"--fix tp={question.layout.tp} includes them"
        )
    warnings += tight_memory(question, float(cost.needed_bytes))
    warnings += _host_warnings(question, cost)
    warnings += [f"{reason}: the interval is wider" for reason in unseen(question.setting)]
    warnings += filter(None, [other_jobs_note(question.setting), own_flows_note(question.setting)])
    return [*warnings, *machine.assumptions, *(question.facility.notes if question.facility else ())]


def _host_warnings(question: Question, cost: StepCost) -> list[str]:
    machine, mode, warnings = question.machine, question.mode, []
    if mode.name != "full":
        warnings.append(f"mode {mode}: {mode.title}")
    if mode.is_offload and machine.host_link_bytes_per_s is None:
        warnings.append(f"{machine.name}: link to the host unknown, moving state is not timed")
    if mode.is_offload and machine.host_memory_bytes_per_s is None:
        warnings.append(f"{machine.name}: memory rate of the hosts unknown, the optimizer there is not timed")
    if not cost.fits_host and machine.host_memory_bytes is not None:
        largest = max(cost.host_memory.parts, key=lambda part: float(part.total)).name.replace("_", " ")
        warnings.append(f"host memory of a node is too small: most of it goes to {largest}; use more nodes")
    return warnings
