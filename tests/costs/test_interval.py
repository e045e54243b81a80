"""The interval brackets the prediction and is wider where no fitted run has been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from properties.cases import CATALOG, changed, cost_of, setting
from scalewright.catalog.published import PublishedRun, load_runs, packaged_runs
from scalewright.costs.interval import interval_s, other_jobs_note, unseen
from scalewright.costs.machine import machine_from_system, with_network
from scalewright.errors import ScalewrightError
from scalewright.planner.validation.validate import Case, NotInScopeError, express
from scalewright.workload.precision import RECIPES

OWN_STEPS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_steps.jsonl"


def test_interval_brackets_the_prediction() -> None:
    low, high = interval_s(time_s=10.0, setting=setting())
    assert low < 10.0 < high


@pytest.mark.parametrize("system", ["frontier", "laptop"])
def test_interval_is_wider_on_devices_no_run_was_fitted_on(system: str) -> None:
    here = setting()
    there = replace(here, machine=machine_from_system(CATALOG, system))
    assert unseen(there)
    seen_low, seen_high = interval_s(time_s=1.0, setting=here)
    low, high = interval_s(time_s=1.0, setting=there)
    assert low < seen_low
    assert high > seen_high


def test_interval_is_wider_for_more_devices_than_any_run_had() -> None:
    assert not unseen(changed(setting(), dp=8))
    assert unseen(changed(setting(), dp=2**20))


def test_lists_of_what_was_seen_are_those_of_the_fitted_runs() -> None:
    runs = [*load_runs(packaged_runs()), *load_runs(OWN_STEPS)]
    constants = CATALOG.constants()
    settings = [case.setting for run in runs if (case := expressed(run)) is not None]
    assert {s.machine.accelerator.id for s in settings} == set(constants.seen_accelerators)
    assert {s.recipe.name for s in settings} == set(constants.seen_precisions)


def test_what_each_stack_was_seen_with_is_that_of_the_fitted_runs() -> None:
    seen: dict[str, set[str]] = {}
    for run in [*load_runs(packaged_runs()), *load_runs(OWN_STEPS)]:
        case = expressed(run)
        if case is None:
            continue
        has = seen.setdefault(case.setting.stack.id, set())
        has |= {"8 bit"} if case.setting.recipe.is_narrow else set()
        has |= {"experts"} if case.setting.shape.moe is not None else set()
    assert seen == {stack: set(what) for stack, what in CATALOG.constants().seen_with_stack.items()}


def test_kernels_that_no_fitted_run_of_a_stack_had_widen_the_interval_and_are_named() -> None:
    here = replace(setting(), machine=machine_from_system(CATALOG, "generic-h100"), recipe=RECIPES["fp8"])
    megatron = replace(here, stack=CATALOG.stack("megatron-core"))
    compiled = replace(here, stack=CATALOG.stack("compiled"))
    assert unseen(megatron) == []
    assert unseen(compiled) == ["no fitted run of compiled multiplied in 8 bit"]
    assert interval_s(time_s=1.0, setting=compiled)[1] > interval_s(time_s=1.0, setting=megatron)[1]


def test_ranges_of_shapes_are_those_of_the_fitted_runs() -> None:
    runs = [*load_runs(packaged_runs()), *load_runs(OWN_STEPS)]
    shapes = [case.spec.transformer for case in map(expressed, runs) if case is not None]
    constants = CATALOG.constants()
    for name, (least, most) in constants.seen_shapes.items():
        values = [getattr(shape, name) for shape in shapes]
        assert (min(values), max(values)) == (least, most)
    assert max(shape.moe.num_experts for shape in shapes if shape.moe is not None) == constants.seen_experts.value


def expressed(run: PublishedRun) -> Case | None:
    """A run that was fitted to: neither experts nor 8 bit on PyTorch's own stacks (benchmarks/fit_problem.py)."""
    try:
        case = express(CATALOG, run)
    except (NotInScopeError, ScalewrightError):
        return None
    is_own = case.setting.stack.id in ("eager", "compiled", "compiled-async")
    has_other_kernels = case.setting.shape.moe is not None or case.setting.recipe.is_narrow
    return None if is_own and has_other_kernels else case


@pytest.mark.parametrize("change", [{"seq": 2**21}, {"hidden": 65536}, {"vocab": 1_000_000}, {"head_dim": 256}])
def test_shapes_outside_the_fitted_range_widen_the_interval_and_are_named(change: dict[str, int]) -> None:
    here = setting()
    there = replace(here, shape=here.shape.model_copy(update=change))
    assert len(unseen(there)) == len(unseen(here)) + 1
    assert str(next(iter(change.values()))) in unseen(there)[-1]
    assert interval_s(time_s=1.0, setting=there)[1] > interval_s(time_s=1.0, setting=here)[1]


def test_interval_is_wider_where_other_jobs_are_in_the_way() -> None:
    """512 of LUMI's 2,978 nodes beside 16, which fit under one leaf; each layout of a column for itself."""
    small, large = (changed(setting(machine="lumi"), dp=dp, gbs=dp) for dp in (128, 4096))
    assert other_jobs_note(small) == ""
    assert "--network quiet" in other_jobs_note(large)
    costs = [cost_of(one) for one in (small, large)]
    quiet = cost_of(replace(large, machine=with_network(large.machine, "quiet")))
    widths = [float(cost.interval_s[1]) / float(cost.interval_s[0]) for cost in (quiet, costs[1])]
    assert widths[1] > widths[0]
    together = cost_of(changed(small, dp=np.array([128, 4096]), gbs=np.array([128, 4096])))
    for index, cost in enumerate(costs):
        assert [end[index] for end in together.interval_s] == pytest.approx(list(cost.interval_s))


@pytest.mark.parametrize("name", ["lumi", "generic-a100"])
def test_interval_of_a_shared_network_holds_the_quiet_day_and_the_bad_one(name: str) -> None:
    machine = with_network(machine_from_system(CATALOG, name), "shared")
    assert machine.network is not None
    here = changed(setting(machine=machine), dp=2048, gbs=2048)
    low, high = (float(end) for end in cost_of(here).interval_s)
    for network in (
        replace(machine.network, is_shared=False),
        replace(machine.network, congestion=machine.network.congestion_high),
    ):
        assert low <= cost_of(replace(here, machine=replace(machine, network=network))).time.total <= high


def test_quiet_network_leaves_the_interval_as_it_is() -> None:
    quiet = with_network(machine_from_system(CATALOG, "lumi"), "quiet")
    here = changed(setting(machine=quiet), dp=4096, gbs=4096)
    cost = cost_of(here)
    assert other_jobs_note(here) == ""
    assert float(cost.interval_s[1]) == pytest.approx(interval_s(time_s=cost.time.total, setting=here)[1])
