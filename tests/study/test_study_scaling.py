"""Efficiency in its three senses, and where a curve stops paying."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.study.metrics import METRICS
from scalewright.study.scaling import Curve, efficiency, too_few_points, where_to_stop

PERFECT = {
    "batch_time_s": lambda n, t: t,  # as much for every device, so a batch takes the same time
    "tokens_per_s_per_gpu": lambda n, t: t,
    "epoch_time_s": lambda n, t: t / n,
}


@given(n=st.integers(1, 10_000), m=st.integers(1, 10_000), t=st.floats(1e-3, 1e6))
@pytest.mark.parametrize("name", PERFECT)
def test_perfect_scaling_is_one(name: str, n: int, m: int, t: float) -> None:
    value, least = PERFECT[name](n, t), PERFECT[name](m, t)
    efficiency_frac = efficiency(METRICS[name], scale=n, value=value, least_scale=m, least_value=least)
    assert efficiency_frac == pytest.approx(1.0)


@pytest.mark.parametrize("name", PERFECT)
def test_worse_is_below_one(name: str) -> None:
    worse = 0.8 if METRICS[name].better == "higher" else 1.25
    efficiency_frac = efficiency(
        METRICS[name], scale=4, value=worse * PERFECT[name](4, 8.0), least_scale=1, least_value=8.0
    )
    assert efficiency_frac == pytest.approx(0.8)


def curve(scales: tuple[float, ...]) -> Curve:
    return Curve(group={"system": "lumi"}, indices=tuple(range(len(scales))), scales=scales)


def test_amdahl_is_found_again_and_says_where_to_stop() -> None:
    """10 % serial: a doubling from n to 2n pays while t(n) >= 3/2 t(2n), that is up to parallel / (2 serial) = 4.5."""
    scales = (1.0, 2.0, 4.0, 8.0, 16.0)
    advice = where_to_stop(curve(scales), {i: 0.1 + 0.9 / n for i, n in enumerate(scales)})
    assert advice is not None
    assert advice.serial_frac == pytest.approx(0.1)
    assert advice.serial_interval_frac == pytest.approx((0.1, 0.1))
    assert advice.scale == 8.0  # 4 to 8 still pays (0.325 -> 0.2125), 8 to 16 does not

    # 1 - 0.15625 / 0.2125 = 26 % of the time, 2 x 0.15625 / 0.2125 - 1 = 47 % of the device-hours
    assert advice.sentence == "stop at 8: 16 would save 26% of the time and cost 47% more device-hours"


@given(serial=st.floats(0.0, 0.9), num_scales=st.integers(3, 9))
def test_exact_amdahl_is_recovered_whatever_its_serial_part(serial: float, num_scales: int) -> None:
    scales = tuple(float(2**k) for k in range(num_scales))
    advice = where_to_stop(curve(scales), {i: serial + (1 - serial) / n for i, n in enumerate(scales)})
    assert advice is not None
    assert advice.serial_frac == pytest.approx(serial, abs=1e-9)
    assert advice.serial_interval_frac == pytest.approx((serial, serial), abs=1e-9)


def test_the_fit_is_the_least_relative_error() -> None:
    """Against the normal equations of sum((s + p/n - t)^2 / t^2), solved by hand."""
    scales = (1.0, 2.0, 4.0, 8.0)
    times = (1.0, 0.56, 0.29, 0.18)
    a11, a12, a22, b1, b2 = (
        sum(term(n, t) for n, t in zip(scales, times, strict=True))
        for term in (
            lambda n, t: 1 / t**2, lambda n, t: 1 / (n * t**2), lambda n, t: 1 / (n * t) ** 2,
            lambda n, t: 1 / t, lambda n, t: 1 / (n * t),
        )
    )  # fmt: skip
    serial = (b1 * a22 - b2 * a12) / (a11 * a22 - a12**2)
    parallel = (a11 * b2 - a12 * b1) / (a11 * a22 - a12**2)
    advice = where_to_stop(curve(scales), dict(enumerate(times)))
    assert advice is not None
    assert advice.serial_frac == pytest.approx(serial / (serial + parallel))
    low, high = advice.serial_interval_frac
    assert low <= advice.serial_frac <= high


def test_a_curve_faster_than_in_proportion_has_no_serial_part_and_says_so() -> None:
    scales = (1.0, 2.0, 4.0, 8.0)
    advice = where_to_stop(curve(scales), {i: n**-1.1 for i, n in enumerate(scales)})
    assert advice is not None
    assert advice.serial_frac == 0.0
    assert advice.scale == 8.0
    assert "better than linear" in advice.sentence


def test_a_curve_that_gets_slower_stops_where_it_began() -> None:
    scales = (1.0, 2.0, 4.0)
    advice = where_to_stop(curve(scales), {i: 1.0 + 0.1 * n for i, n in enumerate(scales)})
    assert advice is not None
    assert advice.scale == 1.0
    assert advice.sentence == "stop at 1: 2 is no faster"


@pytest.mark.parametrize("scales", [(4.0,), (1.0, 2.0)])
def test_one_or_two_points_have_no_fit_and_say_so(scales: tuple[float, ...]) -> None:
    assert where_to_stop(curve(scales), {i: 1.0 / n for i, n in enumerate(scales)}) is None
    assert too_few_points(len(scales)) == f"not enough points to fit Amdahl's law ({len(scales)}, need 3)"
    assert too_few_points(0) == ""


@given(most=st.integers(16, 10_000), serial=st.floats(1e-6, 1e-2))
def test_no_more_nodes_are_named_than_the_system_has(most: int, serial: float) -> None:
    scales = (1.0, 2.0, 4.0, 8.0, 16.0)
    advice = where_to_stop(replace(curve(scales), most=float(most)), {i: serial + 1 / n for i, n in enumerate(scales)})
    assert advice is not None
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", advice.sentence.replace(", ", " "))]
    assert max(numbers) <= most
