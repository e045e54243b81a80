"""What is fitted, and to which runs: the rows as blocks of columns, the constants under trial, and their priors.

fit.py fits these constants; nothing here moves one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.library import Catalog
from scalewright.catalog.published import PublishedRun, load_runs, packaged_runs
from scalewright.catalog.types import Constants, Stack
from scalewright.costs.setting import Setting
from scalewright.costs.step import step_time
from scalewright.errors import ScalewrightError
from scalewright.planner.validation.validate import NotInScopeError, Part, express, measured_step_s, with_recompute
from scalewright.workload.layout import COLUMNS

Array = NDArray[np.float64]
Removed = Mapping[str, float]
NOTHING_REMOVED: Removed = {}

CONSTANTS = ("throttle_exponent", "narrow_throttle_exponent", "expert_cast_host", "latency_factor")
AT_MOST_ONE: set[str] = set()
SCALARS = {"throttle_exponent", "narrow_throttle_exponent"}
"""Constants that decide branches of the cost models, so that trials with other values need calls of their own."""
FACTORS = ("host_time", "elementwise_passes", "attention_share")
# stacks that share their factors with the first of the row: they differ in what overlaps, not in kernels
FAMILIES = (
    ("eager-unfused",),
    ("eager-fused-loss",),
    ("eager",),
    ("compiled", "compiled-async"),
    ("megatron-core", "megatron-bridge"),
)
PRIORS = {
    "throttle_exponent": 0.5, "narrow_throttle_exponent": 0.5, "expert_cast_host": 0.5, "latency_factor": 1.5,
    "eager-unfused.host_time": 1e-3, "eager-unfused.elementwise_passes": 30.0, "eager-unfused.attention_share": 1.0,
    "eager-fused-loss.host_time": 0.4e-3, "eager-fused-loss.elementwise_passes": 28.0,
    "eager-fused-loss.attention_share": 0.4,
    "eager.host_time": 0.7e-3, "eager.elementwise_passes": 28.0, "eager.attention_share": 0.75,
    "compiled.host_time": 0.6e-3, "compiled.elementwise_passes": 12.0, "compiled.attention_share": 0.75,
    "megatron-core.host_time": 0.2e-3, "megatron-core.elementwise_passes": 15.0, "megatron-core.attention_share": 0.6,
}  # fmt: skip
"""What every fit is drawn to: round figures from kernel counts and vendors' documents; attention
rates from FlashAttention-2's comparison with its predecessor (arXiv:2307.08691) and from our H200 table."""
OWN_STEPS = Path(__file__).parent / "results" / "h200_steps.jsonl"


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that differ only in whole-number knobs: costed as columns in one call."""

    setting: Setting
    index: NDArray[np.int64]
    """The row each column belongs to; a row that recomputes a part of its layers has two columns."""
    share_frac: Array


@dataclass(frozen=True, slots=True)
class Problem:
    blocks: tuple[Block, ...]
    measured_s: Array
    sources: NDArray[np.str_]
    groups: NDArray[np.int64]
    names: tuple[tuple[str, str, str], ...]
    """Source, GPU and dtype of each group."""
    has_experts: NDArray[np.bool_]
    weights: Array


def fitted_runs() -> list[PublishedRun]:
    """The published runs, and every second of our own on one H200; the others are never fitted to."""
    own = load_runs(OWN_STEPS) if OWN_STEPS.exists() else []
    return [*load_runs(packaged_runs()), *own[::2]]


def is_fitted(setting: Setting) -> bool:
    """Experts and 8-bit products on PyTorch's own stacks are validated, not fitted: few runs have them, on one machine,
    and they would move what the stacks' other runs say about crossings of memory."""
    is_own = setting.stack.id in ("eager", "compiled", "compiled-async")
    return not (is_own and (setting.shape.moe is not None or setting.recipe.is_narrow))


def build_problem(catalog: Catalog) -> Problem:
    parts: list[tuple[int, Part]] = []
    measured: list[float] = []
    sources, groups, experts = [], [], []
    for run in fitted_runs():
        try:
            case = express(catalog, run)
            run_parts = with_recompute(run, case)
        except (NotInScopeError, ScalewrightError):
            continue
        time = measured_step_s(run, case.spec, case.setting.layout)
        if time is None or not is_fitted(case.setting):
            continue
        parts += [(len(measured), part) for part in run_parts]
        measured.append(time)
        sources.append(run.document)
        experts.append(run.model.moe is not None)
        groups.append((run.document, run.hardware.gpu, str(run.dtype)))
    names = sorted(set(groups))
    group = np.array([names.index(g) for g in groups])
    weights = 1.0 / np.bincount(group)[group]
    return Problem(
        blocks=_blocks(parts),
        measured_s=np.array(measured),
        sources=np.array(sources),
        groups=group,
        names=tuple(names),
        has_experts=np.array(experts),
        weights=weights * len(names) / weights.sum(),
    )


def _blocks(parts: list[tuple[int, Part]]) -> tuple[Block, ...]:
    members: dict[object, list[tuple[int, Part]]] = defaultdict(list)
    for i, part in parts:
        s = part.setting
        shape = s.shape.model_dump_json(exclude={"source"})
        machine = (s.machine.accelerator.id, s.machine.gpus_per_node, s.machine.scale_up_bytes_per_s,
                   s.machine.network_bytes_per_s_per_gpu)  # fmt: skip
        how = (
            s.recipe.name,
            s.mode,
            s.stack.id,
            s.stack.has_ampere_attention,
            s.layout.zero,
            s.layout.sp,
            s.layout.recompute,
        )
        members[shape, machine, how].append((i, part))
    blocks = []
    for rows in members.values():
        layouts = [part.setting.layout for _, part in rows]
        columns: dict[str, Any] = {
            name: np.array([getattr(layout, name) for layout in layouts], dtype=np.int64) for name in COLUMNS
        }
        first = rows[0][1].setting
        blocks.append(
            Block(
                replace(first, layout=replace(first.layout, **columns)),
                np.array([i for i, _ in rows]),
                np.array([part.share_frac for _, part in rows]),
            )
        )
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class Values:
    """The constants and stacks under trial."""

    constants: Constants
    stacks: dict[str, Stack]


def parameter_names() -> list[str]:
    return [*CONSTANTS, *(f"{family[0]}.{factor}" for family in FAMILIES for factor in FACTORS)]


def starting_values(values: Values) -> Array:
    constants = [getattr(values.constants, name).value for name in CONSTANTS]
    factors = [getattr(values.stacks[family[0]], factor).value for family in FAMILIES for factor in FACTORS]
    return np.array(constants + factors)


def with_parameters(values: Values, parameters: Array, removed: Removed) -> Values:
    """The trial with these parameters; removed ones have their neutral value, whatever the array says of them.

    A matrix of parameters holds one trial per row: each value becomes a column across the layouts' axis, but for those
    in SCALARS, which must be the same in all trials.
    """
    parameters = parameters.copy()
    for name, neutral in removed.items():
        parameters[..., parameter_names().index(name)] = neutral

    def changed(fact: object, name: str, value: Array) -> object:
        if value.ndim and name in SCALARS:
            assert np.all(value == value[0]), name
            value = value[0]
        new = value[:, None] if value.ndim else float(value)
        return fact.model_copy(update={"value": new})  # type: ignore[attr-defined]

    count = len(CONSTANTS)
    by_name = np.moveaxis(parameters, -1, 0)
    update = {n: changed(getattr(values.constants, n), n, v) for n, v in zip(CONSTANTS, by_name[:count], strict=True)}
    stacks = dict(values.stacks)
    for i, family in enumerate(FAMILIES):
        chosen = by_name[count + i * len(FACTORS) : count + (i + 1) * len(FACTORS)]
        for stack in family:
            facts = {f: changed(getattr(stacks[stack], f), f, v) for f, v in zip(FACTORS, chosen, strict=True)}
            stacks[stack] = stacks[stack].model_copy(update=facts)
    return Values(values.constants.model_copy(update=update), stacks)


def predict_all(problem: Problem, values: Values, *, rows: NDArray[np.bool_] | None = None) -> Array:
    """Step times of all rows, or of these rows and 1 for the others; for several trials one line per trial."""
    predicted: Array | float = 0.0
    for block in problem.blocks:
        times = np.ones(len(block.index))
        if rows is None or rows[block.index].any():
            s = block.setting
            kept = {"has_ampere_attention": s.stack.has_ampere_attention}  # what the row's year says of its stack
            stack = values.stacks[s.stack.id].model_copy(update=kept)
            trial = replace(s, machine=replace(s.machine, constants=values.constants), stack=stack)
            times = np.asarray(step_time(trial).total)
        if isinstance(predicted, float):
            predicted = np.zeros((*times.shape[:-1], len(problem.measured_s)))
        predicted[..., block.index] += block.share_frac * times
    assert not isinstance(predicted, float)
    return predicted


def origin_and_ceiling() -> tuple[Array, Array]:
    """Logarithms of what every fit is drawn to, and of what no value exceeds."""
    names = parameter_names()
    ceiling = np.array([0.0 if name in AT_MOST_ONE else np.inf for name in names])
    return np.log(np.array([PRIORS[name] for name in names])), ceiling
