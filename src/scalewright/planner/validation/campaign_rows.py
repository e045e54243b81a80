"""Published whole runs beside planned ones: GPU-hours, their interval, and what the other families say of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median
from typing import Any

from scalewright import __version__, units
from scalewright.catalog.campaign_runs import CampaignRun, campaign_runs
from scalewright.catalog.constant_types.campaign import CampaignConstants
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Constants
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.errors import ScalewrightError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import AUTO, Question, resolve_recipe, resolve_spec
from scalewright.planner.search.pareto import why_none
from scalewright.planner.search.search import search_each
from scalewright.planner.search.space import Space, stacks_by_zero
from scalewright.planner.whole_run import StepWork, WholeRun, step_work, whole_run
from scalewright.records.documents import document
from scalewright.workload.layout import parse_layout

TAIL_FRAC = 0.05
"""On each side of the 90 % interval."""
STORAGE = "nvme-gen4"
"""Where checkpoints of a run go whose storage is not published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRow:
    """One published run and our plan for it, or the reason why there is none."""

    run: CampaignRun
    plan: WholeRun | None = None
    left_out: WholeRun | None = None
    """The plan with factors of the other families."""
    layout_gap_frac: float | None = None
    """Predicted step of the published layout over that of the best one."""
    reason: str = ""

    @property
    def is_inside(self) -> bool | None:
        return None if self.plan is None else _holds(self.plan, self.run)

    @property
    def is_inside_left_out(self) -> bool | None:
        return None if self.left_out is None else _holds(self.left_out, self.run)

    @property
    def named_ratio(self) -> float:
        """Published hours over planned ones with named parts only."""
        assert self.plan is not None
        named_s = sum(float(part.total) for part in self.plan.time.parts if part.name != "unexplained")
        return self.run.num_gpu_hours / (self.plan.num_gpu_hours * named_s / self.plan.time_s)

    def as_dict(self) -> dict[str, Any]:
        run = self.run
        body: dict[str, Any] = {
            "id": run.id,
            "family": run.family,
            "source": run.source.text,
            "published_gpu_hours": run.num_gpu_hours,
            "counts": run.counts,
            "assumed": run.assumed,
        }
        if self.plan is None:
            return body | {"reason": self.reason}
        body |= _planned_dict(self.plan) | {"is_inside": self.is_inside}
        if self.layout_gap_frac is not None:
            body["layout_gap_frac"] = self.layout_gap_frac
        if self.left_out is not None:
            body["left_out"] = _planned_dict(self.left_out) | {"is_inside": self.is_inside_left_out}
        return body


def _holds(plan: WholeRun, run: CampaignRun) -> bool:
    low, high = plan.gpu_hours_interval
    return low <= run.num_gpu_hours <= high


def _planned_dict(plan: WholeRun) -> dict[str, Any]:
    shares = {part.name: float(part.total) / plan.time_s for part in plan.time.parts}
    return {
        "planned_gpu_hours": plan.num_gpu_hours,
        "planned_gpu_hours_interval": list(plan.gpu_hours_interval),
        "goodput_frac": plan.goodput_frac,
        "parts_frac": shares,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignFit:
    """What the published runs say of a campaign."""

    layout_gap_frac: float
    """Less 1."""
    factor_frac: float
    factor_low_frac: float
    factor_high_frac: float

    def put_into(self, constants: Constants) -> Constants:
        """The constants with these values."""
        values = {
            "layout_gap_share": self.layout_gap_frac,
            "campaign_factor": self.factor_frac,
            "campaign_factor_low": self.factor_low_frac,
            "campaign_factor_high": self.factor_high_frac,
        }
        changed = {name: getattr(constants, name).model_copy(update={"value": v}) for name, v in values.items()}
        return constants.model_copy(update=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignTable:
    """All rows, and what they say together."""

    rows: tuple[CampaignRow, ...]
    fit: CampaignFit | None
    """None where no run can be planned."""

    @property
    def planned(self) -> list[CampaignRow]:
        return [row for row in self.rows if row.plan is not None]

    @property
    def num_inside(self) -> int:
        return sum(bool(row.is_inside) for row in self.planned)

    @property
    def num_inside_left_out(self) -> int:
        return sum(bool(row.is_inside_left_out) for row in self.planned)

    @property
    def median_error_frac(self) -> float:
        """Of planned over published hours, each family left out."""
        plans = [(row.left_out or row.plan, row.run) for row in self.planned]
        return float(
            median(abs(plan.num_gpu_hours / run.num_gpu_hours - 1.0) for plan, run in plans if plan is not None)
        )

    def as_document(self) -> dict[str, Any]:
        return document(
            "campaign-validation",
            {
                "scalewright": __version__,
                "num_runs": len(self.planned),
                "num_families": len({row.run.family for row in self.planned}),
                "num_inside": self.num_inside,
                "num_inside_left_out": self.num_inside_left_out,
                **({"median_error_left_out_frac": self.median_error_frac} if self.planned else {}),
                "rows": [row.as_dict() for row in self.rows],
            },
        )


def campaign_table(catalog: Catalog, runs: Iterable[CampaignRun] | None = None) -> CampaignTable:
    """Plan every run as a user would. The shipped runs, which the constants are fitted to, are planned again with what
    the other families say; runs that are given are in no fit."""
    rows = [_row(catalog, run) for run in (campaign_runs() if runs is None else runs)]
    planned = [row for row in rows if row.plan is not None]
    families = {row.run.family for row in planned} if runs is None else set()
    others = {family: fit([r for r in planned if r.run.family != family]) for family in families}
    for index, row in enumerate(rows):
        if row.plan is not None and row.run.family in others:
            constants = others[row.run.family].put_into(row.plan.work.constants)
            work = replace(row.plan.work, constants=constants)
            rows[index] = replace(row, left_out=_whole(catalog, row.run, work))
    return CampaignTable(rows=tuple(rows), fit=fit(planned) if planned else None)


def _row(catalog: Catalog, run: CampaignRun) -> CampaignRow:
    try:
        best, own = _best(catalog, run)
    except ScalewrightError as error:
        return CampaignRow(run=run, reason=str(error))
    if isinstance(best, str):
        return CampaignRow(run=run, reason=best)
    gap = None if own is None else own.time_s / best.time_s
    plan = _whole(catalog, run, step_work(best, is_searched=True))
    return CampaignRow(run=run, plan=plan, layout_gap_frac=gap)


def _best(catalog: Catalog, run: CampaignRun) -> tuple[Answer | str, Answer | None]:
    """The best layout of a search, or why there is none; and the published layout."""
    spec, machine = resolve_spec(catalog, run.model, run.seq), _machine(catalog, run)
    recipe, stack_of = resolve_recipe(run.precision, machine), stacks_by_zero(run.stack, catalog, machine)
    space = Space(
        spec=spec, machine=machine, num_gpus=run.num_gpus, global_batch=run.global_batch, recipes=(recipe,),
        stack_of=stack_of, is_auto_stack=run.stack == AUTO, catalog=catalog,
    )  # fmt: skip
    result = search_each([space], only_best=True)[0]
    best = result.best(1, "time")
    if not best:
        return f"the smallest layout {why_none(result)}", None
    if run.layout is None:
        return best[0], None
    layout = parse_layout(run.layout)
    question = Question(
        spec=spec, machine=machine, stack=stack_of(int(layout.zero)), recipe=recipe, layout=layout, catalog=catalog
    )  # fmt: skip
    return best[0], answer(question)


def _machine(catalog: Catalog, run: CampaignRun) -> Machine:
    if run.system is not None:
        return machine_from_system(catalog, run.system)
    return machine_from_hardware(
        catalog, gpu=run.gpu, gpus_per_node=run.gpus_per_node, scale_up_bytes_per_s=None,
        network_bytes_per_s_per_gpu=units.parse(run.network_per_gpu, units.BYTES_PER_S),
    )  # fmt: skip


def _whole(catalog: Catalog, run: CampaignRun, work: StepWork) -> WholeRun:
    num_tokens = units.parse(run.tokens, units.COUNT)
    return whole_run(work=work, storage_entry=catalog.storage(STORAGE), num_tokens=num_tokens)


def fit(rows: Sequence[CampaignRow]) -> CampaignFit:
    """The gap of published layouts, and the factor that is left with its 90 % interval for another family.

    Equation  mean and spread of log ratios, each family weighing the same;  mean +- t(F - 1) s sqrt(1 + 1/F)
    """
    gaps = [(row.run.family, math.log(row.layout_gap_frac)) for row in rows if row.layout_gap_frac is not None]
    gap = math.exp(_mean(gaps)) - 1.0 if gaps else 0.0
    assert rows[0].plan is not None
    now = rows[0].plan.work.constants.layout_gap_share.value
    # Named parts are nearly proportional to 1 + shares, so another gap scales them.
    shares = 1.0 + sum(_other_shares(rows[0].plan.work.constants))
    scale = (shares + now) / (shares + gap)
    ratios = [(row.run.family, math.log(row.named_ratio * scale)) for row in rows]
    middle, families = _mean(ratios), len({family for family, _ in ratios})
    spread = math.sqrt(_mean([(f, (x - middle) ** 2) for f, x in ratios]) * families / max(families - 1, 1))
    reach = _student(families - 1) * spread * math.sqrt(1.0 + 1.0 / families)
    return CampaignFit(
        layout_gap_frac=gap,
        factor_frac=math.exp(middle),
        factor_low_frac=math.exp(middle - reach),
        factor_high_frac=math.exp(middle + reach),
    )


def _other_shares(c: CampaignConstants) -> tuple[float, ...]:
    return c.slow_step_share.value, c.evaluation_share.value, c.ramp_up_share.value, c.rollback_share.value


def _mean(values: Sequence[tuple[str, float]]) -> float:
    """Mean over families of the mean in each."""
    families: dict[str, list[float]] = {}
    for family, value in values:
        families.setdefault(family, []).append(value)
    return sum(sum(v) / len(v) for v in families.values()) / len(families)


def _student(freedom: int) -> float:
    """Student's t at 95 %, from the normal quantile z: z + (z^3 + z) / 4n, within 1 % from five degrees on."""
    z = NormalDist().inv_cdf(1.0 - TAIL_FRAC)
    return z + (z**3 + z) / (4.0 * max(freedom, 1))
