"""Efficiency in its three senses, and where a curve stops paying."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.study.metrics import METRICS
from scalewright.study.scaling import Curve, efficiency, where_to_stop

PERFECT = {
    "batch_time_s": lambda n, t: t,  # as much for every device, so a batch takes the same time
    "tokens_per_s_per_gpu": lambda n, t: t,
    "epoch_time_s": lambda n, t: t / n,
}


@given(n=st.integers(1, 10_000), m=st.integers(1, 10_000), t=st.floats(1e-3, 1e6))
@pytest.mark.parametrize("name", PERFECT)
def test_perfect_scaling_is_one(name: str, n: int, m: int, t: float) -> None:
    value, least = PERFECT[name](n, t), PERFECT[name](m, t)
    found = efficiency(METRICS[name], scale=n, value=value, least_scale=m, least_value=least)
    assert found == pytest.approx(1.0)


@pytest.mark.parametrize("name", PERFECT)
def test_worse_is_below_one(name: str) -> None:
    worse = 0.8 if METRICS[name].better == "higher" else 1.25
    found = efficiency(METRICS[name], scale=4, value=worse * PERFECT[name](4, 8.0), least_scale=1, least_value=8.0)
    assert found == pytest.approx(0.8)


def curve(scales: tuple[float, ...]) -> Curve:
    return Curve(group={"system": "lumi"}, indices=tuple(range(len(scales))), scales=scales)


def test_amdahl_is_found_again_and_says_where_to_stop() -> None:
    """10 % serial: a doubling from n to 2n pays while t(n) >= 3/2 t(2n), that is up to parallel / (2 serial) = 4.5."""
    scales = (1.0, 2.0, 4.0, 8.0, 16.0)
    found = where_to_stop(curve(scales), {i: 0.1 + 0.9 / n for i, n in enumerate(scales)})
    assert found is not None
    assert found.serial_frac == pytest.approx(0.1)
    assert found.serial_interval_frac == pytest.approx((0.1, 0.1))
    assert found.scale == 8.0  # 4 to 8 still pays (0.325 -> 0.2125), 8 to 16 does not


def test_two_points_say_nothing() -> None:
    assert where_to_stop(curve((1.0, 2.0)), {0: 1.0, 1: 0.5}) is None
