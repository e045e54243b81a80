"""Faster, slower or noise: the bootstrap against machines of known speed."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.study.diff import ratio_of_medians


def runs(random: np.random.Generator, *, speed: float, num_runs: int, drift_frac: float = 0.02) -> list[np.ndarray]:
    """Runs of 40 steps: each run a little off, each step noisy with a tail."""
    return [
        speed * (1.0 + drift_frac * random.standard_normal()) * (1.0 + 0.03 * random.standard_exponential(40))
        for _ in range(num_runs)
    ]


def test_equal_machines_are_mostly_called_equal() -> None:
    random = np.random.default_rng(1)
    called = 0
    for _ in range(50):
        _, (low, high) = ratio_of_medians(runs(random, speed=1.0, num_runs=8), runs(random, speed=1.0, num_runs=8))
        called += low > 1.0 or high < 1.0
    assert called <= 7  # nominally 2 or 3; few runs make a bootstrap a little bold


@pytest.mark.parametrize("slowdown", [1.10, 1.25])
def test_a_real_slowdown_is_found(slowdown: float) -> None:
    random = np.random.default_rng(2)
    num_detected = 0
    for _ in range(20):
        ratio, (low, _) = ratio_of_medians(
            runs(random, speed=1.0, num_runs=5), runs(random, speed=slowdown, num_runs=5)
        )
        assert ratio == pytest.approx(slowdown, rel=0.06)
        num_detected += low > 1.0
    assert num_detected >= 19


def test_the_interval_narrows_with_more_runs() -> None:
    random = np.random.default_rng(3)
    widths = []
    for count in (3, 30):
        _, (low, high) = ratio_of_medians(
            runs(random, speed=1.0, num_runs=count), runs(random, speed=1.0, num_runs=count)
        )
        widths.append(high - low)
    assert widths[1] < 0.6 * widths[0]
