"""Many questions at once, at the speed of the vectorised cost models.

Questions of one transformer on one machine that differ only in the whole-number knobs of their layouts (tp, pp, vpp,
cp, ep, dp, mbs, gbs) are costed in one call on NumPy columns: the same call that `answer` makes with one layout. What
does not vectorise (vision, generation, RL) is answered one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.step import step_cost
from scalewright.planner.answer import answer
from scalewright.planner.energy_use import footprint
from scalewright.planner.question import Question, TransformerStep
from scalewright.workload.layout import COLUMNS

Floats = NDArray[np.float64]

FIGURES = (
    "step_time_s", "step_time_low_s", "step_time_high_s", "step_time_bound_s", "mfu_frac", "memory_bytes",
    "reserved_bytes", "device_bytes", "fits", "energy_j", "cost_usd",
)  # fmt: skip
"""Columns of figures. Not a number where a stage has no such figure, or a question no answer."""


def answer_columns(questions: Sequence[Question | None]) -> dict[str, Floats]:
    """The figures of every question, a row each; a question that is None has none."""
    columns = {name: np.full(len(questions), np.nan) for name in FIGURES}
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, question in enumerate(questions):
        if question is not None:
            groups[_group(question, row)].append(row)
    for rows in groups.values():
        members = [question for question in (questions[row] for row in rows) if question is not None]
        if isinstance(members[0].stage, TransformerStep):
            figures = _transformer_figures(members)
        else:
            figures = _single_figures(members[0])
        for name, values in figures.items():
            columns[name][rows] = values
    return columns


def _group(question: Question, row: int) -> tuple[object, ...]:
    """What must be equal for questions to share a call. A question that is not a transformer's step gets its own call.

    Models, machines and stacks are compared by identity: rows of one grid share them, and comparing machines by value
    would cost more than predicting on them.
    """
    if not isinstance(question.stage, TransformerStep):
        return (row,)
    layout, feed = question.layout, question.feed
    shared = (id(question.spec), id(question.machine), id(question.stack), id(feed.storage))
    loading = (feed.one_file_each, feed.async_checkpoint, feed.num_loaders)
    return (*shared, *loading, question.recipe, question.mode, layout.zero, layout.sp, layout.recompute)


def _transformer_figures(questions: Sequence[Question]) -> dict[str, FloatLike]:
    first = questions[0]
    knobs: dict[str, Any] = {name: np.array([getattr(q.layout, name) for q in questions]) for name in COLUMNS}
    layout = replace(first.layout, **knobs)
    cost = step_cost(spec=first.spec, setting=replace(first.setting, layout=layout))
    time, num_gpus = _column(cost.time.total, questions), _column(layout.num_gpus, questions)
    flop = _column(cost.hardware_flop, questions)
    energy, money = [], []
    for row, question in enumerate(questions):
        if question.facility is None:
            energy.append(np.nan)
            money.append(np.nan)
            continue
        used = footprint(
            machine=question.machine, recipe=question.recipe, facility=question.facility, time_s=float(time[row]),
            num_gpus=int(num_gpus[row]), num_tokens=int(question.layout.gbs) * question.spec.transformer.seq,
            hardware_flop=float(flop[row]),
        )  # fmt: skip
        energy.append(float(used.energy.total))
        money.append(np.nan if used.cost_usd is None else used.cost_usd)
    return {
        "step_time_s": time,
        "step_time_low_s": cost.interval_s[0],
        "step_time_high_s": cost.interval_s[1],
        "step_time_bound_s": cost.bound_s,
        "mfu_frac": cost.mfu_frac,
        "memory_bytes": cost.memory.total,
        "reserved_bytes": cost.reserved_bytes,
        "device_bytes": cost.device_bytes,
        "fits": cost.fits,
        "energy_j": np.array(energy),
        "cost_usd": np.array(money),
    }


def _single_figures(question: Question) -> dict[str, FloatLike]:
    prediction = answer(question)
    return {
        "step_time_s": prediction.time_s,
        "step_time_low_s": prediction.interval_s[0],
        "step_time_high_s": prediction.interval_s[1],
        "step_time_bound_s": prediction.bound_s,
        "memory_bytes": prediction.memory_bytes,
        "reserved_bytes": prediction.reserved_bytes,
        "device_bytes": prediction.device_bytes,
        "fits": float(prediction.fits),
        **({} if prediction.energy is None else {"energy_j": float(prediction.energy.total)}),
        **({} if prediction.money is None else {"cost_usd": float(prediction.money.total)}),
    }


def _column(value: FloatLike, questions: Sequence[Question]) -> Floats:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (len(questions),))
