"""Published whole runs: planned GPU-hours, their interval, and what left-out families say."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from scalewright.catalog.campaign_runs import campaign_runs
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import DocumentError
from scalewright.planner.validation.campaign_rows import CampaignTable, campaign_table, fit

CATALOG = Catalog((packaged_data(),))
LARGEST_DRIFT = 0.1
"""A refit of the step moves plans by a few per cent; above this `benchmarks/fit_campaign.py --write` is due."""


@cache
def table() -> CampaignTable:
    return campaign_table(CATALOG)


def test_published_hours_are_inside_the_interval_with_their_family_left_out() -> None:
    """Kind: measured. 40 whole runs of 24 teams, each planned without its own family: at least 80 % inside."""
    inside = table().num_inside_left_out / len(table().planned)
    assert inside >= 0.8
    assert len(table().planned) == len(table().rows) >= 40
    assert len({row.run.family for row in table().rows}) >= 20


def test_the_interval_is_not_bought_with_width() -> None:
    for row in table().planned:
        assert row.left_out is not None
        low, high = row.left_out.gpu_hours_interval
        assert high / low < 6.0, row.run.id
    assert table().median_error_frac < 0.3


def test_the_shipped_constants_are_those_of_the_fit() -> None:
    constants, now = CATALOG.constants(), table().fit
    assert now is not None
    assert constants.campaign_factor.value == pytest.approx(now.factor_frac, rel=LARGEST_DRIFT)
    assert constants.campaign_factor_low.value == pytest.approx(now.factor_low_frac, rel=LARGEST_DRIFT)
    assert constants.campaign_factor_high.value == pytest.approx(now.factor_high_frac, rel=LARGEST_DRIFT)
    assert 1.0 + constants.layout_gap_share.value == pytest.approx(1.0 + now.layout_gap_frac, rel=LARGEST_DRIFT)


def test_a_family_of_many_runs_weighs_as_one() -> None:
    rows = table().planned
    pythia = [row for row in rows if row.run.family == "pythia"]
    once, thrice = fit(rows), fit([*rows, *pythia, *pythia])
    assert once.factor_frac == pytest.approx(thrice.factor_frac)


def test_every_run_has_a_source_and_says_what_its_hours_hold() -> None:
    for run in campaign_runs():
        assert run.source.url, run.id
        assert run.counts.startswith(("charged", "running")), run.id


def test_a_file_with_a_wrong_row_is_refused_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "runs.toml"
    text = (packaged_data() / "published" / "campaign_runs.toml").read_text()
    file.write_text(text.replace('counts = "charged"', 'counts = "some"', 1))
    with pytest.raises(DocumentError, match="charged or running"):
        campaign_runs(file)
