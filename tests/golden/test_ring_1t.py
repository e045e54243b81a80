"""The study ring-1t: published figures of Ring-1T's system beside predictions, and what the tail of lengths decides."""

from __future__ import annotations

from functools import cache

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.points import open_study
from scalewright.study.results import Results, predict_study

CATALOG = Catalog((packaged_data(),))


@cache
def results() -> Results:
    return predict_study(CATALOG, open_study(CATALOG, "ring-1t"))


def figure(metric: str, **where: object) -> float:
    (index,) = results().study.matching(where)  # type: ignore[arg-type]
    return results().predicted[index].numbers[metric].value


AT_JUPITER = {"system": "jupiter", "pace": "turns", "spread": 1.0}


def test_every_point_is_predicted_and_fits() -> None:
    assert all(outcome.numbers and not outcome.why for outcome in results().predicted)


def test_sync_ways_are_in_the_published_order() -> None:
    """Kind: measured, with devices, network and storage assumed: 6 s, 30 to 60 s, about 600 s."""
    peers, broadcast, file = (
        figure("sync_time_s", rollouts="all done", sync=way, **AT_JUPITER) for way in ("peers", "broadcast", "file")
    )
    assert peers < broadcast < file
    assert 6.0 / 10.0 <= peers <= 6.0  # a bound from below: no conversion, all links at work
    assert 30.0 / 1.5 <= broadcast <= 60.0 * 1.5
    assert 600.0 / 4.0 <= file <= 600.0 * 4.0


def test_the_published_gain_lies_inside_the_range_of_tails() -> None:
    """Kind: measured, with lengths, budget and retention assumed: about 2.5 times on rollout."""
    where = {"system": "jupiter", "pace": "turns", "rollouts": "retention 4", "sync": "peers"}
    gains = {spread: figure("rollout_gain", spread=spread, **where) for spread in (0.5, 1.0, 2.0)}
    assert min(gains.values()) <= 2.5 <= max(gains.values())
    for spread, gain in gains.items():
        assert 1.0 < figure("step_gain", spread=spread, **where) < gain


def test_retention_trades_waste_for_staleness() -> None:
    few, many = (figure("wasted_frac", rollouts=f"retention {n}", sync="peers", **AT_JUPITER) for n in (2, 4))
    assert many < few
    assert many == pytest.approx(0.0, abs=0.1)


def test_the_measured_stages_differ_in_the_budget_only() -> None:
    study = open_study(CATALOG, "ring-1t", is_measured=True)
    by_stage = {point.labels["stage"]: dict(point.resolved) for point in study.points}
    waits, bounded = by_stage["grpo-all-done"], by_stage["grpo-budget"]
    changed = {key for key in bounded if bounded[key] != waits.get(key)}
    assert changed == {"token_budget", "retention"}
