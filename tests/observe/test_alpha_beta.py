"""Alpha-beta fits: known lines are found, also through noise and outliers, and their intervals hold what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.observe.alpha_beta import Fit, fit_collectives
from scalewright.workload.collective import bus_share

SIZES = [2**k for k in range(10, 27)]


def rows_of(
    times_s: list[float], *, sizes: list[int] = SIZES, op: str = "all-reduce", num_ranks: int = 4
) -> list[dict[str, Any]]:
    return [
        {"op": op, "backend": "gloo", "dtype": "fp32", "num_ranks": num_ranks, "num_nodes": 1, "size_bytes": size,
         "time_s": time}
        for size, time in zip(sizes, times_s, strict=True)
    ]  # fmt: skip


def line(alpha_s: float, rate: float, *, sizes: list[int] = SIZES, share: float = 1.5) -> list[float]:
    return [alpha_s + size * share / rate for size in sizes]


def predicted_time_s(fits: Sequence[Fit], size_bytes: float) -> float:
    """Of one operation, by the line that the size falls to."""
    ordered = sorted(fits, key=lambda fit: fit.from_bytes)
    below = [fit for fit in ordered if fit.from_bytes <= size_bytes]
    return (below[-1] if below else ordered[0]).time_s(size_bytes)


@settings(deadline=None)
@given(alpha=st.floats(1e-6, 1e-2), rate=st.floats(1e6, 1e12), op=st.sampled_from(["all-reduce", "broadcast"]))
def test_an_exact_line_is_found_as_one(alpha: float, rate: float, op: str) -> None:
    (fit,) = fit_collectives(rows_of(line(alpha, rate, share=bus_share(op, 4)), op=op))
    assert fit.time_s(SIZES[0]) == pytest.approx(alpha + SIZES[0] * bus_share(op, 4) / rate, rel=1e-6)
    assert fit.time_s(SIZES[-1]) == pytest.approx(alpha + SIZES[-1] * bus_share(op, 4) / rate, rel=1e-6)
    assert (fit.from_bytes, fit.to_bytes, fit.num_points) == (SIZES[0], SIZES[-1], len(SIZES))


def test_intervals_hold_the_truth_nineteen_times_in_twenty() -> None:
    random, inside_alpha, inside_rate, trials = np.random.default_rng(1), 0, 0, 100
    for _ in range(trials):
        noisy = np.array(line(50e-6, 1e9)) * random.normal(1.0, 0.03, len(SIZES))
        fits = fit_collectives(rows_of(list(noisy)))
        first, last = fits[0], fits[-1]
        inside_alpha += first.alpha_low_s <= 50e-6 <= first.alpha_high_s
        inside_rate += last.bytes_per_s_low <= 1e9 <= (last.bytes_per_s_high or np.inf)
    # Lines are chosen and reweighted after the data, which narrows intervals a little: at least 88 %.
    assert inside_alpha / trials >= 0.88
    assert inside_rate / trials >= 0.88


def test_one_wild_time_moves_the_line_little() -> None:
    times = line(50e-6, 1e9)
    times[8] *= 5.0
    (fit,) = fit_collectives(rows_of(times))
    assert fit.bytes_per_s == pytest.approx(1e9, rel=0.02)
    assert fit.alpha_s == pytest.approx(50e-6, rel=0.02)


def test_two_regimes_become_two_lines_that_meet_where_the_library_changes() -> None:
    """Small messages start fast and crawl, large ones start late and run: NCCL's LL and Simple."""
    times = [20e-6 + s * 1.5 / 1e8 if s < 2**18 else 2.5e-3 + s * 1.5 / 2e9 for s in SIZES]
    fits = fit_collectives(rows_of(times))
    assert [fit.from_bytes for fit in fits] == [2**10, 2**18]
    assert [fit.bytes_per_s for fit in fits] == pytest.approx([1e8, 2e9], rel=0.01)
    assert [fit.alpha_s for fit in fits] == pytest.approx([20e-6, 2.5e-3], rel=0.02)
    for size, time in zip(SIZES, times, strict=True):
        assert predicted_time_s(fits, size) == pytest.approx(time, rel=0.02)


def test_noise_alone_is_no_second_regime() -> None:
    random, several = np.random.default_rng(2), 0
    for _ in range(50):
        noisy = [
            row | {"time_low_s": row["time_s"] * 0.9, "time_high_s": row["time_s"] * 1.1}
            for row in rows_of(list(np.array(line(50e-6, 1e9)) * random.normal(1.0, 0.1, len(SIZES))))
        ]
        several += len(fit_collectives(noisy)) > 1
    assert several <= 10


@settings(max_examples=50, deadline=None)
@given(noise=st.lists(st.floats(0.1, 10.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_no_size_is_ever_predicted_to_take_less_than_nothing(noise: list[float]) -> None:
    fits = fit_collectives(rows_of([t * n for t, n in zip(line(50e-6, 1e9), noise, strict=True)]))
    for size in (1, *SIZES, 2**30):
        assert not fits or predicted_time_s(fits, size) > 0.0


def test_groups_are_fitted_apart_and_too_few_sizes_not_at_all() -> None:
    two, four = rows_of(line(1e-5, 1e9), num_ranks=2), rows_of(line(3e-5, 1e9), num_ranks=4)
    two_sizes = rows_of([1e-5, 2e-5], sizes=[1024, 2048], op="broadcast")
    fits = fit_collectives([*two, *four, *two_sizes])
    assert [(fit.op, fit.num_ranks) for fit in fits] == [("all-reduce", 2), ("all-reduce", 4)]
    assert fit_collectives([]) == []


def test_times_that_do_not_grow_give_no_line_rather_than_a_negative_bandwidth() -> None:
    assert fit_collectives(rows_of([1e-3 - size * 1e-12 for size in SIZES])) == []


def test_a_fit_goes_into_a_document_and_back() -> None:
    (fit,) = fit_collectives(rows_of(line(50e-6, 1e9)))
    assert Fit(**fit.document()) == fit


def protocol_jump_s(size: int) -> float:
    return 120e-6 + size / 1e9 if size < 2**19 else 400e-6 + size / 2e9


def falling_rate_s(size: int) -> float:
    """A buffer that outgrows two caches."""
    return 150e-6 + min(size, 2**20) / 2.5e9 + min(max(size - 2**20, 0), 7 * 2**20) / 1.4e9 + max(size - 2**23, 0) / 8e8


@pytest.mark.parametrize(
    "law_s", [lambda size: 200e-6 + size / 1.2e9, protocol_jump_s, falling_rate_s], ids=["line", "jump", "caches"]
)
def test_sizes_between_the_fitted_ones_are_met_through_noise(law_s: Callable[[int], float]) -> None:
    """Every other size from 64 KiB to 64 MiB fitted, 5 % of noise: nine of ten others within 15 % of the law."""
    random, sizes = np.random.default_rng(3), [round(2**16 * 2 ** (i / 2)) for i in range(21)]
    errors = []
    for _ in range(30):
        noisy = [law_s(size) * float(np.exp(random.normal(0.0, 0.05))) for size in sizes[::2]]
        fits = fit_collectives(rows_of(noisy, sizes=sizes[::2], op="broadcast"))
        errors += [abs(predicted_time_s(fits, size) / law_s(size) - 1.0) for size in sizes[1::2]]
    assert np.mean(np.array(errors) < 0.15) >= 0.9
