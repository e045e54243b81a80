"""The figure of a plan: what is in it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.errors import ConfigError
from scalewright.planner.energy_use import facility_of
from scalewright.planner.plan import make_plan
from scalewright.planner.request import PlanRequest, resolve_work
from scalewright.report.planner.plan_plot import bars, plot_plan, scaling_points
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe
from scalewright.workload.training import TEXT

CATALOG = Catalog((packaged_data(),))


def plan_document(model: str, system: str, num_gpus: int, global_batch: int) -> dict[str, Any]:
    spec, machine = from_catalog(CATALOG.model(model)), machine_from_system(CATALOG, system)
    facility = facility_of(CATALOG, system, machine.accelerator.id)
    work = resolve_work(spec, tokens=None, steps=100, global_batch=global_batch)
    request = PlanRequest(
        spec=spec, system=system, machine=machine, stack="auto", counts=(num_gpus,), global_batch=global_batch,
        recipes=(recipe("bf16"),), work=work, feed=TEXT, facility=facility,
    )  # fmt: skip
    return make_plan(CATALOG, request).as_document()


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return plan_document("llama3-8b", "leonardo", 16, 64)


def test_bars_hold_the_whole_of_time_and_memory(plan: dict[str, Any]) -> None:
    shown = bars(plan)
    assert len(shown) == 1 + len(plan["alternatives"]) > 1
    for bar, body in zip(shown, [plan["best"], *plan["alternatives"]], strict=True):
        assert sum(bar.time.values()) == pytest.approx(body["step_time_s"])
        assert sum(bar.memory.values()) == pytest.approx(body["device_bytes"])
        assert bar.interval_s[0] < bar.time_s < bar.interval_s[1]


def test_the_curve_has_every_node_count_that_fits(plan: dict[str, Any]) -> None:
    points = scaling_points(plan)
    assert [p.num_nodes for p in points] == sorted(row["num_nodes"] for row in plan["scaling"] if row["fits"])
    assert len(points) > 2


def test_svg_names_layouts_terms_and_axes_and_is_the_same_twice(plan: dict[str, Any], tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot_plan(tmp_path / name, plan)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    words = set(re.findall(r">([^<>]+)</text>", text))
    assert {bar.label for bar in bars(plan)} <= words
    assert {"matmul", "activations", "reserve", "nodes", "predicted step time (s)", "device"} <= words
    assert any(word.startswith("llama3-8b on leonardo") for word in words)


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")])
def test_kinds_of_picture(plan: dict[str, Any], tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"plan{suffix}"
    plot_plan(path, plan)
    assert path.read_bytes().startswith(start)


def test_what_cannot_be_drawn_is_refused_and_nothing_written(plan: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no kind of picture"):
        plot_plan(tmp_path / "plan.bmp", plan)
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot_plan(tmp_path / "plan.png", plan | {"best": None})
    assert list(tmp_path.iterdir()) == []


def test_one_node_count_has_no_curve(plan: dict[str, Any], tmp_path: Path) -> None:
    plot_plan(tmp_path / "plan.svg", plan | {"scaling": plan["scaling"][:1], "recommended": None})
    assert ">nodes<" not in (tmp_path / "plan.svg").read_text()
