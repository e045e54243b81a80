"""What choosing costs: the expected error of the layout that looks best."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.costs.selection import num_equal_layouts, selection_frac

RESOLUTION = 0.05
EXPECTED_LARGEST = {1: 0.0, 2: 0.5642, 10: 1.5388, 100: 2.5076}
"""Mean of the largest of n standard normal draws (Harter 1961, Biometrika 48, Table 1)."""


def fastest_of(log_time: list[float], *, family: list[int] | None = None, tolerance: float = 0.0) -> float:
    n = len(log_time)
    return selection_frac(
        log_time=np.array(log_time), family=np.array(range(n) if family is None else family), safety=np.arange(n),
        resolution_frac=RESOLUTION, tolerance_frac=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("count", EXPECTED_LARGEST)
def test_the_best_of_equal_layouts_errs_by_the_expected_largest_error(count: int) -> None:
    optimism = np.log1p(fastest_of([0.0] * count)) / np.log1p(RESOLUTION)
    assert optimism == pytest.approx(EXPECTED_LARGEST[count], abs=0.03)


@pytest.mark.parametrize("count", EXPECTED_LARGEST)
def test_the_number_of_equal_layouts_is_found_again(count: int) -> None:
    frac = float(np.expm1(EXPECTED_LARGEST[count] * np.log1p(RESOLUTION)))
    assert num_equal_layouts(selection_frac=frac, resolution_frac=RESOLUTION) == pytest.approx(count, rel=0.05)


def test_layouts_that_share_their_error_count_once() -> None:
    assert fastest_of([0.0] * 50, family=[0] * 50) == pytest.approx(0.0, abs=2e-3)


def test_a_layout_far_behind_changes_nothing() -> None:
    assert fastest_of([0.0, 1.0]) == pytest.approx(fastest_of([0.0]), abs=2e-3)
    assert fastest_of([0.0, 0.03]) > fastest_of([0.0, 0.1]) > 0


def test_a_choice_by_safety_is_less_optimistic_than_one_by_time() -> None:
    times = [0.01 * i for i in range(8)]
    assert 0 < fastest_of(times, tolerance=RESOLUTION) < fastest_of(times)
