"""The calibrate study: what is measured in which order, where its runs go, and what is said of a busy machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.study.calibrate import RESULT, study_folder
from scalewright.study.calibrate_points import Micro, RealRun, points


@pytest.mark.parametrize(("device", "ranks"), [("cpu", 1), ("cpu", 2), ("cuda", 1), ("cuda", 4)])
def test_every_point_has_a_name_of_its_own_and_a_configuration_that_is_accepted(device: str, ranks: int) -> None:
    every = points(device, num_ranks=ranks, scratch="/tmp")  # type: ignore[arg-type]
    assert len({point.name for point in every}) == len(every)
    for point in every:
        config = point.config(point.least_s) if isinstance(point, Micro) else point.config(10)
        assert config["schema"] == f"scalewright.{point.kind}-run/1"
    assert {"gemm", "memory", "attention", "dispatch", "storage", "checkpoint"} <= {point.kind for point in every}
    assert ("collectives" in {point.kind for point in every}) == (ranks > 1)
    assert {point.kind for point in every if isinstance(point, RealRun)} == {"language", "vision"}
    assert [point.kind for point in every if isinstance(point, Micro) and point.is_needed] == ["gemm", "memory"]


def test_products_and_memory_come_first_and_a_real_step_before_the_rest() -> None:
    every = points("cpu", num_ranks=2, scratch="/tmp")
    assert [point.name for point in every[:2]] == ["gemm", "memory"]
    assert any(isinstance(point, RealRun) for point in every[:5])


def test_an_interrupted_attempt_goes_on_and_a_finished_one_is_left_alone(tmp_path: Path) -> None:
    first = study_folder(tmp_path, "mine")
    assert first.parent == tmp_path
    assert first.name.endswith("-mine")
    begun = tmp_path / "20260101T000000Z-mine"
    begun.mkdir()
    assert study_folder(tmp_path, "mine") == begun
    (begun / RESULT).write_text("{}")
    assert study_folder(tmp_path, "mine") != begun
    assert study_folder(tmp_path, "other").name.endswith("-other")
